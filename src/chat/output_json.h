// JSON inside of answers, read byte by byte: what can still become well-formed JSON, and calls written as objects.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace argent::output {

constexpr uint32_t kDepth = 64;          // of containers in containers in one call
constexpr size_t kLongestName = 256;     // bytes of a key or a name that could mean something
constexpr size_t kHeldArguments = 1024;  // arguments longer than this are streamed before their call is complete

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
inline bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

// UTF-8 one byte at a time: shortest forms only, no surrogates, nothing above U+10FFFF.
class Utf8 {
 public:
  bool feed(char c);  // false: not UTF-8
  bool complete() const { return left_ == 0; }

 private:
  uint8_t left_ = 0;                  // continuation bytes to come
  uint8_t low_ = 0x80, high_ = 0xbf;  // range of the next one
};

// A JSON value that is an object or an array, as RFC 8259 has it: whatever it accepts, other parsers accept.
class JsonScan {
 public:
  enum class At : uint8_t {
    value,       // a value must come
    first_item,  // behind [
    first_key,   // behind {
    key,         // behind a comma in an object
    colon,
    after,  // behind a value in a container
    string,
    escape,
    hex,
    minus,
    zero,
    digits,
    point,
    fraction,
    exponent,
    exponent_sign,
    exponent_digits,
    literal,
    done,
  };

  bool feed(char c);  // false: c cannot come here
  At at() const { return at_; }
  bool in_string() const { return at_ == At::string || at_ == At::escape || at_ == At::hex; }
  bool done() const { return at_ == At::done; }
  uint32_t depth() const { return depth_; }  // open containers

 private:
  bool begin_value(char c);
  bool open(bool object);
  bool close(bool object);
  bool string_byte(char c);
  bool hex_digit(char c);
  bool number_byte(char c);
  bool after_value(char c);

  At at_ = At::value;
  bool string_is_key_ = false;
  uint32_t depth_ = 0;
  uint64_t objects_ = 0;  // bit d: the container at depth d + 1 is an object
  Utf8 utf8_;
  uint32_t unit_ = 0;       // of \uXXXX
  uint32_t unit_left_ = 0;  // digits to come
  bool high_ = false;       // a high surrogate waits for its low one
  std::string_view literal_;
};

// Whether all of text is one JSON value no deeper than kDepth.
bool is_json(std::string_view text);

// Appends text as a JSON string; false: it is not UTF-8.
bool append_quoted(std::string& out, std::string_view text);

// The calls of one block of text, while it is being read.
struct Calls {
  struct Call {
    std::string name, arguments;  // name is empty as long as it is unknown
  };
  const std::set<std::string, std::less<>>* names = nullptr;  // of the request's tools
  std::vector<Call> calls;
  bool doomed = false;  // the block's grammar may still hold, but it is text

  bool known(std::string_view name) const { return names->contains(name); }
  void doom() { doomed = true; }
};

// What became of a block with one more byte.
enum class Verdict : uint8_t {
  more,
  end,  // the block is complete with this byte
  bad,  // the block cannot go on with this byte
};

// {"name": ..., "arguments" or "parameters": {...}} or an array of such objects; "id" and "type" may be there too.
// Arguments go to the calls byte by byte.
class JsonCalls {
 public:
  explicit JsonCalls(Calls& calls) : calls_(calls) {}
  Verdict feed(char c);  // the first byte is { or [

 private:
  enum class Key : uint8_t { none, name, arguments, other };
  void member(JsonScan::At before, uint32_t depth, char c);
  void string_ended();

  Calls& calls_;
  JsonScan scan_;
  uint32_t level_ = 1;  // depth inside of a call's object
  bool capturing_ = false, captured_key_ = false;
  std::string captured_;  // the raw string
  Key key_ = Key::none;
  bool has_name_ = false, has_arguments_ = false, in_arguments_ = false;
};

}  // namespace argent::output
