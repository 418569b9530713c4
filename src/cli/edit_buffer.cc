#include <clocale>
#include <cwchar>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

#include "cli/line_editor.h"

namespace argent::cli {
namespace {

bool continues(char byte) { return (uint8_t(byte) & 0xc0) == 0x80; }

// The character at the beginning of valid UTF-8; an ill-formed byte stands for itself.
std::pair<char32_t, size_t> decode(std::string_view text) {
  const uint8_t first = uint8_t(text[0]);
  const size_t length = first < 0xc2 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 1;
  if (length == 1 || text.size() < length) return {first, 1};
  char32_t code = first & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    if (!continues(text[i])) return {first, 1};
    code = code << 6 | (uint8_t(text[i]) & 0x3f);
  }
  return {code, length};
}

size_t width_of(char32_t code) {
  static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (code < 0x20 || code == 0x7f) return 2;  // shown as ^X
  if (code < 0x7f) return 1;
  if (!utf8) return 1;
  const locale_t before = ::uselocale(utf8);
  const int width = ::wcwidth(wchar_t(code));
  ::uselocale(before);
  return width < 0 ? 1 : size_t(width);
}

bool is_word(char c) { return c != ' ' && c != '\t' && c != '\n'; }

}  // namespace

size_t display_width(std::string_view text) {
  size_t width = 0;
  while (!text.empty()) {
    const auto [code, length] = decode(text);
    width += width_of(code);
    text.remove_prefix(length);
  }
  return width;
}

void EditBuffer::insert(std::string_view text) {
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

// Steps over combining characters, so that the cursor never stands inside what looks like one.
size_t EditBuffer::before(size_t at) const {
  while (at > 0) {
    --at;
    if (continues(text_[at])) continue;
    const std::string_view rest = std::string_view(text_).substr(at);
    if (rest[0] == '\n' || width_of(decode(rest).first) > 0) break;
  }
  return at;
}

size_t EditBuffer::after(size_t at) const {
  if (at >= text_.size()) return text_.size();
  at += decode(std::string_view(text_).substr(at)).second;
  while (at < text_.size() && text_[at] != '\n') {
    const auto [code, length] = decode(std::string_view(text_).substr(at));
    if (width_of(code) > 0) break;
    at += length;
  }
  return at;
}

size_t EditBuffer::word_before(size_t at) const {
  while (at > 0 && !is_word(text_[at - 1])) --at;
  while (at > 0 && is_word(text_[at - 1])) --at;
  return at;
}

void EditBuffer::word_right() {
  while (cursor_ < text_.size() && !is_word(text_[cursor_])) ++cursor_;
  while (cursor_ < text_.size() && is_word(text_[cursor_])) ++cursor_;
}

size_t EditBuffer::start_of_line(size_t at) const {
  const size_t newline = at == 0 ? std::string::npos : text_.rfind('\n', at - 1);
  return newline == std::string::npos ? 0 : newline + 1;
}

size_t EditBuffer::end_of_line(size_t at) const { return std::min(text_.find('\n', at), text_.size()); }

void EditBuffer::line_start() { cursor_ = start_of_line(cursor_); }
void EditBuffer::line_end() { cursor_ = end_of_line(cursor_); }

bool EditBuffer::up() {
  const size_t start = start_of_line(cursor_);
  if (start == 0) return false;
  const size_t column = display_width(std::string_view(text_).substr(start, cursor_ - start));
  const size_t above = start_of_line(start - 1);
  cursor_ = above;
  while (cursor_ < start - 1 && display_width(std::string_view(text_).substr(above, cursor_ - above)) < column) right();
  return true;
}

bool EditBuffer::down() {
  const size_t start = start_of_line(cursor_), end = end_of_line(cursor_);
  if (end == text_.size()) return false;
  const size_t column = display_width(std::string_view(text_).substr(start, cursor_ - start));
  const size_t below = end + 1, last = end_of_line(below);
  cursor_ = below;
  while (cursor_ < last && display_width(std::string_view(text_).substr(below, cursor_ - below)) < column) right();
  return true;
}

void EditBuffer::erase_before() {
  const size_t begin = before(cursor_);
  text_.erase(begin, cursor_ - begin);
  cursor_ = begin;
}

void EditBuffer::erase_after() { text_.erase(cursor_, after(cursor_) - cursor_); }

void EditBuffer::kill(size_t begin, size_t end) {
  if (begin == end) return;
  killed_ = text_.substr(begin, end - begin);
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

void EditBuffer::kill_word() { kill(word_before(cursor_), cursor_); }
void EditBuffer::kill_to_start() { kill(start_of_line(cursor_), cursor_); }

void EditBuffer::kill_to_end() {
  const size_t end = end_of_line(cursor_);
  kill(cursor_, end == cursor_ && end < text_.size() ? end + 1 : end);
}

bool wants_more_lines(std::string_view text) {
  if (text.starts_with("\"\"\"")) return text.find("\"\"\"", 3) == std::string_view::npos;
  return text.ends_with('\\');
}

std::string joined_message(std::string_view text) {
  if (text.starts_with("\"\"\"")) {
    text.remove_prefix(3);
    const size_t end = text.find("\"\"\"");
    std::string inside(text.substr(0, end));
    if (inside.starts_with('\n')) inside.erase(0, 1);
    if (inside.ends_with('\n')) inside.pop_back();
    if (end != std::string_view::npos) inside += text.substr(end + 3);
    return inside;
  }
  std::string out;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] != '\\' || i + 1 >= text.size() || text[i + 1] != '\n') out += text[i];
  return out;
}

}  // namespace argent::cli
