#include "chat/output_json.h"

#include "chat/template.h"

namespace argent::output {

bool Utf8::feed(char c) {
  auto b = static_cast<uint8_t>(c);
  if (left_) {
    if (b < low_ || b > high_) return false;
    low_ = 0x80;
    high_ = 0xbf;
    --left_;
    return true;
  }
  if (b < 0x80) return true;
  if (b < 0xc2 || b > 0xf4) return false;
  left_ = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
  if (b == 0xe0) low_ = 0xa0;
  if (b == 0xed) high_ = 0x9f;
  if (b == 0xf0) low_ = 0x90;
  if (b == 0xf4) high_ = 0x8f;
  return true;
}

bool JsonScan::open(bool object) {
  if (depth_ == kDepth) return false;
  objects_ = object ? objects_ | uint64_t{1} << depth_ : objects_ & ~(uint64_t{1} << depth_);
  ++depth_;
  at_ = object ? At::first_key : At::first_item;
  return true;
}

bool JsonScan::close(bool object) {
  if (depth_ == 0 || (objects_ >> (depth_ - 1) & 1) != object) return false;
  at_ = --depth_ ? At::after : At::done;
  return true;
}

bool JsonScan::begin_value(char c) {
  if (c == '{' || c == '[') return open(c == '{');
  if (depth_ == 0) return false;
  if (c == '"') {
    at_ = At::string;
    string_is_key_ = false;
  } else if (c == '-') {
    at_ = At::minus;
  } else if (c >= '0' && c <= '9') {
    at_ = c == '0' ? At::zero : At::digits;
  } else if (c == 't' || c == 'f' || c == 'n') {
    at_ = At::literal;
    literal_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
  } else {
    return false;
  }
  return true;
}

bool JsonScan::hex_digit(char c) {
  uint32_t digit = 0;
  if (c >= '0' && c <= '9') {
    digit = c - '0';
  } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
    digit = (c | 32) - 'a' + 10;
  } else {
    return false;
  }
  unit_ = unit_ << 4 | digit;
  if (--unit_left_) return true;
  at_ = At::string;
  bool low = unit_ >= 0xdc00 && unit_ < 0xe000;
  if (low != high_) return false;  // half of a pair
  high_ = unit_ >= 0xd800 && unit_ < 0xdc00;
  return true;
}

bool JsonScan::string_byte(char c) {
  if (at_ == At::hex) return hex_digit(c);
  if (at_ == At::escape) {
    if (high_ && c != 'u') return false;
    if (c == 'u') {
      at_ = At::hex;
      unit_ = 0;
      unit_left_ = 4;
      return true;
    }
    at_ = At::string;
    return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
  }
  if (!utf8_.feed(c) || (high_ && c != '\\')) return false;
  if (c == '\\') {
    at_ = At::escape;
  } else if (c == '"') {
    at_ = string_is_key_ ? At::colon : At::after;
  } else {
    return static_cast<uint8_t>(c) >= 0x20;
  }
  return true;
}

bool JsonScan::number_byte(char c) {
  bool digit = c >= '0' && c <= '9';
  switch (at_) {
    case At::minus:
      at_ = c == '0' ? At::zero : At::digits;
      return digit;
    case At::point:
    case At::fraction:
      if (digit) {
        at_ = At::fraction;
        return true;
      }
      if (at_ == At::point) return false;
      break;
    case At::exponent:
      if (c == '+' || c == '-') {
        at_ = At::exponent_sign;
        return true;
      }
      [[fallthrough]];
    case At::exponent_sign:
    case At::exponent_digits:
      if (digit) {
        at_ = At::exponent_digits;
        return true;
      }
      return at_ == At::exponent_digits && after_value(c);
    default:  // zero, digits
      if (digit) return at_ == At::digits;
      if (c == '.') {
        at_ = At::point;
        return true;
      }
  }
  if (c == 'e' || c == 'E') {
    at_ = At::exponent;
    return true;
  }
  return after_value(c);
}

bool JsonScan::after_value(char c) {
  if (c == '}' || c == ']') return close(c == '}');
  at_ = At::after;
  if (c == ',') {
    at_ = objects_ >> (depth_ - 1) & 1 ? At::key : At::value;
    return true;
  }
  return is_space(c);
}

bool JsonScan::feed(char c) {
  switch (at_) {
    case At::first_item:
      if (c == ']') return close(false);
      [[fallthrough]];
    case At::value:
      return is_space(c) || begin_value(c);
    case At::first_key:
      if (c == '}') return close(true);
      [[fallthrough]];
    case At::key:
      if (is_space(c)) return true;
      at_ = At::string;
      string_is_key_ = true;
      return c == '"';
    case At::colon:
      if (is_space(c)) return true;
      at_ = At::value;
      return c == ':';
    case At::after:
      return after_value(c);
    case At::string:
    case At::escape:
    case At::hex:
      return string_byte(c);
    case At::literal:
      if (c != literal_[0]) return false;
      literal_.remove_prefix(1);
      if (literal_.empty()) at_ = At::after;
      return true;
    case At::done:
      return false;
    default:
      return number_byte(c);
  }
}

bool is_json(std::string_view text) {
  // In brackets it is a container, whatever it was; the comma of two values would show at depth 1.
  JsonScan scan;
  scan.feed('[');
  bool any = false;
  for (char c : text) {
    if (scan.depth() == 1 && (c == ',' || c == ']') && !scan.in_string()) return false;
    if (!scan.feed(c)) return false;
    any |= !is_space(c);
  }
  return any && scan.depth() == 1 && scan.feed(']') && scan.done();
}

bool append_quoted(std::string& out, std::string_view text) {
  Utf8 utf8;
  out += '"';
  for (char c : text) {
    if (!utf8.feed(c)) return false;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<int>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
  return utf8.complete();
}

Verdict JsonCalls::feed(char c) {
  JsonScan::At before = scan_.at();
  uint32_t depth = scan_.depth();
  if (!scan_.feed(c)) return Verdict::bad;
  if (depth == 0) level_ = c == '[' ? 2 : 1;
  if (!calls_.doomed) member(before, depth, c);
  if (!scan_.done()) return Verdict::more;
  if (calls_.calls.empty()) calls_.doom();
  return Verdict::end;
}

void JsonCalls::member(JsonScan::At before, uint32_t depth, char c) {
  if (in_arguments_) {
    calls_.calls.back().arguments += c;
    in_arguments_ = scan_.depth() > level_;
    return;
  }
  if (capturing_) {
    if (!scan_.in_string()) return string_ended();
    captured_ += c;
    if (captured_.size() > kLongestName) calls_.doom();
    return;
  }
  if (is_space(c) || depth > level_) return;
  bool value_begins = before == JsonScan::At::value || before == JsonScan::At::first_item;
  if (depth + 1 == level_ && value_begins && c != ']') {  // an item of the array, or the one object
    if (c != '{') return calls_.doom();
    calls_.calls.emplace_back();
    has_name_ = has_arguments_ = false;
  } else if (depth == level_ && scan_.depth() < level_) {
    if (!has_name_ || !has_arguments_) calls_.doom();
  } else if (depth == level_ && scan_.in_string() &&
             (before == JsonScan::At::key || before == JsonScan::At::first_key)) {
    capturing_ = captured_key_ = true;
    captured_.clear();
  } else if (depth == level_ && value_begins) {
    bool fits = c == (key_ == Key::arguments ? '{' : '"');
    if (!fits) return calls_.doom();
    if (key_ == Key::name) {
      capturing_ = true;
      captured_key_ = false;
      captured_.clear();
    } else if (key_ == Key::arguments) {
      in_arguments_ = true;
      calls_.calls.back().arguments += c;
    }
  }
}

void JsonCalls::string_ended() {
  capturing_ = false;
  Json decoded = Json::parse("\"" + captured_ + "\"", nullptr, false);
  std::string text = decoded.is_string() ? decoded.get<std::string>() : std::string();
  if (!captured_key_) {
    if (!calls_.known(text)) return calls_.doom();
    calls_.calls.back().name = std::move(text);
    return;
  }
  bool* seen = nullptr;
  if (text == "name") {
    key_ = Key::name;
    seen = &has_name_;
  } else if (text == "arguments" || text == "parameters") {
    key_ = Key::arguments;
    seen = &has_arguments_;
  } else if (text == "id" || text == "type") {
    key_ = Key::other;
  } else {
    return calls_.doom();
  }
  if (!seen) return;
  if (*seen) return calls_.doom();  // twice: which one is meant?
  *seen = true;
}

}  // namespace argent::output
