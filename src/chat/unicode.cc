#include "chat/unicode.h"

#include <algorithm>
#include <iterator>

namespace argent::jinja {
namespace {

struct FlagRange {
  uint32_t first;  // until the next range begins
  uint16_t flags;
};

struct CaseRun {
  uint32_t first, last, step;
  int32_t delta;
};

struct SpecialCase {
  uint32_t code;
  uint32_t to[3];  // zero-padded
};

#include "chat/unicode_tables.inc"

template <size_t N, size_t M>
int map_with(const CaseRun (&runs)[N], const SpecialCase (&special)[M], uint32_t code, uint32_t out[3]) {
  const SpecialCase* s = std::lower_bound(std::begin(special), std::end(special), code,
                                          [](const SpecialCase& a, uint32_t c) { return a.code < c; });
  if (s != std::end(special) && s->code == code) {
    int n = 0;
    while (n < 3 && s->to[n]) out[n] = s->to[n], ++n;
    return n;
  }
  // Runs of step 2 may interleave (upper and lower letters alternate), so the one that holds the code is not always the
  // last that begins before it.
  const CaseRun* r = std::upper_bound(std::begin(runs), std::end(runs), code,
                                      [](uint32_t c, const CaseRun& a) { return c < a.first; });
  for (int back = 0; back < 4 && r != std::begin(runs); ++back) {
    --r;
    if (code <= r->last && (code - r->first) % r->step == 0) {
      out[0] = code + r->delta;
      return 1;
    }
  }
  out[0] = code;
  return 1;
}

bool continuation(std::string_view text, size_t pos) { return pos < text.size() && (text[pos] & 0xC0) == 0x80; }

}  // namespace

Char char_at(std::string_view text, size_t pos) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[pos + i]); };
  uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead >= 0xC2 && lead < 0xE0 && continuation(text, pos + 1)) return {(lead & 0x1Fu) << 6 | (byte(1) & 0x3Fu), 2};
  if (lead >= 0xE0 && lead < 0xF0 && continuation(text, pos + 1) && continuation(text, pos + 2)) {
    uint32_t code = (lead & 0x0Fu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
    if (code >= 0x800 && (code < 0xD800 || code > 0xDFFF)) return {code, 3};
  }
  if (lead >= 0xF0 && lead < 0xF5 && continuation(text, pos + 1) && continuation(text, pos + 2) &&
      continuation(text, pos + 3)) {
    uint32_t code = (lead & 0x07u) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
    if (code >= 0x10000 && code <= 0x10FFFF) return {code, 4};
  }
  return {0xDC00u + lead, 1};
}

size_t char_before(std::string_view text, size_t pos) {
  for (size_t back = 2; back <= 4 && back <= pos; ++back) {
    if (char_at(text.substr(0, pos), pos - back).length == back) return pos - back;
  }
  return pos - 1;
}

size_t char_count(std::string_view text) {
  size_t n = 0;
  for (size_t i = 0; i < text.size(); ++n) i += char_at(text, i).length;
  return n;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

size_t first_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    Char c = char_at(text, i);
    if (c.code >= 0xDC00 && c.code <= 0xDCFF) return i;
    i += c.length;
  }
  return text.size();
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

uint16_t char_flags(uint32_t code) {
  auto r = std::upper_bound(std::begin(kFlags), std::end(kFlags), code,
                            [](uint32_t c, const FlagRange& a) { return c < a.first; });
  return std::prev(r)->flags;
}

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

int map_case(CaseMap map, uint32_t code, uint32_t out[3]) {
  switch (map) {
    case CaseMap::upper:
      return map_with(kUpperRuns, kUpperSpecial, code, out);
    case CaseMap::lower:
      return map_with(kLowerRuns, kLowerSpecial, code, out);
    case CaseMap::title:
      return map_with(kTitleRuns, kTitleSpecial, code, out);
    case CaseMap::fold:
      return map_with(kFoldRuns, kFoldSpecial, code, out);
  }
  return 0;
}

}  // namespace argent::jinja
