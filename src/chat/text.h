// A string that remembers which of its bytes came from the input. Every operation on template strings is built from
// these few, so the marks follow the bytes wherever they go.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace argent::jinja {

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

class Text {
 public:
  Text() = default;
  explicit Text(std::string bytes, bool from_input = false) : bytes_(std::move(bytes)) {
    if (from_input && !bytes_.empty()) input_.push_back({0, bytes_.size()});
  }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Sorted, disjoint, never touching: the bytes that came from the input.
  const std::vector<ByteRange>& input() const { return input_; }
  bool is_input(size_t pos) const;

  void append(std::string_view bytes, bool from_input = false);
  void append(const Text& other);
  void append(const Text& other, size_t begin, size_t end);  // other[begin, end)
  // New bytes that stand for what is at source[pos] (an upper-case letter, an escape).
  void append_like(std::string_view bytes, const Text& source, size_t pos) { append(bytes, source.is_input(pos)); }
  Text slice(size_t begin, size_t end) const;
  size_t footprint() const { return bytes_.size() + input_.size() * sizeof(ByteRange); }

 private:
  void mark(size_t begin, size_t end);  // begin is not before the last range

  std::string bytes_;
  std::vector<ByteRange> input_;
};

// The first occurrence of needle in text at or after from, in linear time whatever the two are; npos when there is
// none.
size_t find_bytes(std::string_view text, std::string_view needle, size_t from = 0);
size_t rfind_bytes(std::string_view text, std::string_view needle);  // the last occurrence

// [begin, end) of text without the characters of `chars` at either side (whitespace when chars is null).
ByteRange stripped(std::string_view text, const std::string_view* chars, bool left, bool right);

}  // namespace argent::jinja
