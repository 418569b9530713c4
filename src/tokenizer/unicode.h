// The classes of characters that pre-tokenizers distinguish, of Unicode 15.1 as in llama.cpp, and checked UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace argent {

// \p{L} \p{N} \p{M} \p{P} \p{S} and \s, which here is White_Space: it includes U+0085 and not U+001C to U+001F.
// Everything else (control, format, unassigned) is `other`.
enum class CharClass : uint8_t { other, letter, number, mark, punctuation, symbol, space };

// The two stages of the generated table, and what lies beyond it.
inline constexpr uint32_t kClassIndexSize = 804;
inline constexpr uint32_t kMarkPlaneFirst = 0xE0100, kMarkPlaneLast = 0xE01EF;
extern const uint8_t kClassIndex[kClassIndexSize];
extern const char kClassBlocks[];

inline CharClass char_class(uint32_t cp) {
  if (cp >> 8 < kClassIndexSize) return CharClass(kClassBlocks[kClassIndex[cp >> 8] * 256 + (cp & 255)] - '0');
  return cp >= kMarkPlaneFirst && cp <= kMarkPlaneLast ? CharClass::mark : CharClass::other;
}

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// What stands at the start of a not empty text. A well-formed character has length 1 to 4. What is ill-formed has cp
// U+FFFD and the length of its maximal subpart: the longest prefix of a well-formed character, or else one byte.
struct Utf8Char {
  uint32_t cp;
  uint8_t length;
  bool valid;
  bool incomplete;  // not valid, but would be if more bytes followed the end of the text
};
inline Utf8Char decode_utf8(const char* text, size_t size) {
  const auto* p = reinterpret_cast<const uint8_t*>(text);
  if (p[0] < 0x80) return {p[0], 1, true, false};
  // Second bytes are narrower after E0 and F0 (no overlong forms), ED (no surrogates) and F4 (nothing past U+10FFFF).
  uint32_t n, cp, low = 0x80, high = 0xBF;
  if (p[0] >= 0xC2 && p[0] <= 0xDF) {
    n = 2, cp = p[0] & 0x1F;
  } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
    n = 3, cp = p[0] & 0x0F;
    if (p[0] == 0xE0) low = 0xA0;
    if (p[0] == 0xED) high = 0x9F;
  } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
    n = 4, cp = p[0] & 0x07;
    if (p[0] == 0xF0) low = 0x90;
    if (p[0] == 0xF4) high = 0x8F;
  } else {
    return {0xFFFD, 1, false, false};
  }
  for (uint32_t i = 1; i < n; ++i) {
    if (i == size) return {0xFFFD, uint8_t(i), false, true};
    if (p[i] < low || p[i] > high) return {0xFFFD, uint8_t(i), false, false};
    cp = cp << 6 | (p[i] & 0x3F);
    low = 0x80, high = 0xBF;
  }
  return {cp, uint8_t(n), true, false};
}

inline bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text.data() + i, text.size() - i);
    if (!c.valid) return false;
    i += c.length;
  }
  return true;
}

inline void append_utf8(uint32_t cp, std::string& out) {
  if (cp < 0x80) {
    out += char(cp);
  } else if (cp < 0x800) {
    out += {char(0xC0 | cp >> 6), char(0x80 | (cp & 0x3F))};
  } else if (cp < 0x10000) {
    out += {char(0xE0 | cp >> 12), char(0x80 | (cp >> 6 & 0x3F)), char(0x80 | (cp & 0x3F))};
  } else {
    out += {char(0xF0 | cp >> 18), char(0x80 | (cp >> 12 & 0x3F)), char(0x80 | (cp >> 6 & 0x3F)),
            char(0x80 | (cp & 0x3F))};
  }
}

}  // namespace argent
