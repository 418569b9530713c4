// Characters as Python's str methods see them (tables of Unicode 14, Python 3.11), over UTF-8 text. A byte that is not
// valid UTF-8 counts as one character of its own and is copied as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace argent::jinja {

enum CharFlag : uint16_t {
  kAlpha = 1,
  kDecimal = 2,
  kDigit = 4,
  kNumeric = 8,
  kLower = 16,
  kUpper = 32,
  kTitle = 64,
  kPrintable = 128,
  kCased = 256,
  kCaseIgnorable = 512,
};

struct Char {
  uint32_t code = 0;    // 0xDC00 + byte for a byte that is not valid UTF-8
  uint32_t length = 1;  // bytes
};

// The character that starts at text[pos]; pos < text.size().
Char char_at(std::string_view text, size_t pos);
// The start of the character that ends before text[pos]; pos > 0.
size_t char_before(std::string_view text, size_t pos);
size_t char_count(std::string_view text);
bool is_ascii(std::string_view text);
// The position of the first byte that is not part of valid UTF-8; text.size() when all of it is valid.
size_t first_invalid_utf8(std::string_view text);

void append_utf8(std::string& out, uint32_t code);

uint16_t char_flags(uint32_t code);
bool is_space(uint32_t code);

enum class CaseMap { upper, lower, title, fold };
// Up to three code points; returns how many.
int map_case(CaseMap map, uint32_t code, uint32_t out[3]);

}  // namespace argent::jinja
