#include "chat/text.h"

#include <algorithm>
#include <cstdint>

#include "chat/unicode.h"

namespace argent::jinja {

bool Text::is_input(size_t pos) const {
  auto r =
      std::upper_bound(input_.begin(), input_.end(), pos, [](size_t p, const ByteRange& a) { return p < a.begin; });
  return r != input_.begin() && pos < std::prev(r)->end;
}

void Text::mark(size_t begin, size_t end) {
  if (begin == end) return;
  if (!input_.empty() && input_.back().end == begin) {
    input_.back().end = end;
  } else {
    input_.push_back({begin, end});
  }
}

void Text::append(std::string_view bytes, bool from_input) {
  size_t at = bytes_.size();
  bytes_.append(bytes);
  if (from_input) mark(at, bytes_.size());
}

void Text::append(const Text& other) { append(other, 0, other.size()); }

void Text::append(const Text& other, size_t begin, size_t end) {
  size_t at = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  auto r = std::upper_bound(other.input_.begin(), other.input_.end(), begin,
                            [](size_t p, const ByteRange& a) { return p < a.end; });
  for (; r != other.input_.end() && r->begin < end; ++r) {
    mark(at + std::max(r->begin, begin) - begin, at + std::min(r->end, end) - begin);
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text out;
  out.append(*this, begin, end);
  return out;
}

size_t find_bytes(std::string_view text, std::string_view needle, size_t from) {
  constexpr size_t kShort = 16;  // below this the library's search costs at most 16 times the text
  if (from > text.size()) return std::string_view::npos;
  if (needle.size() <= kShort) return text.find(needle, from);
  // Knuth-Morris-Pratt: a hostile pair of strings must not take n * m steps.
  std::vector<uint32_t> border(needle.size(), 0);
  for (size_t i = 1, k = 0; i < needle.size(); ++i) {
    while (k && needle[i] != needle[k]) k = border[k - 1];
    if (needle[i] == needle[k]) ++k;
    border[i] = static_cast<uint32_t>(k);
  }
  for (size_t i = from, k = 0; i < text.size(); ++i) {
    while (k && text[i] != needle[k]) k = border[k - 1];
    if (text[i] == needle[k]) ++k;
    if (k == needle.size()) return i + 1 - k;
  }
  return std::string_view::npos;
}

size_t rfind_bytes(std::string_view text, std::string_view needle) {
  if (needle.size() <= 16) return text.rfind(needle);
  std::string reversed_text(text.rbegin(), text.rend());
  std::string reversed_needle(needle.rbegin(), needle.rend());
  size_t at = find_bytes(reversed_text, reversed_needle);
  return at == std::string_view::npos ? at : text.size() - at - needle.size();
}

ByteRange stripped(std::string_view text, const std::string_view* chars, bool left, bool right) {
  auto strip = [&](size_t pos, Char c) {
    return chars ? find_bytes(*chars, text.substr(pos, c.length)) != std::string_view::npos : is_space(c.code);
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    Char c = char_at(text, begin);
    if (!strip(begin, c)) break;
    begin += c.length;
  }
  while (right && end > begin) {
    size_t at = char_before(text, end);
    if (!strip(at, char_at(text, at))) break;
    end = at;
  }
  return {begin, end};
}

}  // namespace argent::jinja
