#include "server/http_reader.h"

#include <algorithm>
#include <charconv>

namespace argent::server {
namespace {

constexpr size_t kHeadBytes = 64u << 10;
constexpr size_t kEventBytes = 16u << 20;

char lower_case(char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; }
bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower_case(x) == lower_case(y); });
}
std::string_view trimmed(std::string_view text) {
  const size_t from = text.find_first_not_of(" \t");
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(" \t") + 1 - from);
}
// A comma-separated list's words.
template <class F>
void each_word(std::string_view list, F f) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (const std::string_view word = trimmed(list.substr(0, comma)); !word.empty()) f(word);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
}
// All of the text as a number, without sign or spaces.
template <class T>
bool read_number(std::string_view text, T& value, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size() && text[0] != '-';
}

}  // namespace

std::string_view ResponseReader::header(std::string_view name) const {
  for (const auto& [key, value] : headers_)
    if (same_word(key, name)) return value;
  return {};
}

Result<size_t> ResponseReader::take(std::string_view bytes, const Body& body) {
  size_t at = 0;
  while (at < bytes.size() && state_ != State::done) {
    const std::string_view rest = bytes.substr(at);
    if (state_ == State::data || state_ == State::length || state_ == State::until_close) {
      const size_t n = state_ == State::until_close ? rest.size() : size_t(std::min<uint64_t>(left_, rest.size()));
      at += n;
      left_ -= state_ == State::until_close ? 0 : n;
      if (left_ == 0 && state_ != State::until_close) state_ = state_ == State::data ? State::data_end : State::done;
      if (!body(rest.substr(0, n))) return at;
      continue;
    }
    const size_t end = rest.find('\n');
    const size_t n = end == std::string_view::npos ? rest.size() : end + 1;
    at += n;
    head_bytes_ += n;
    if (head_bytes_ > kHeadBytes) return fail(Code::invalid, "the response's head is longer than {} bytes", kHeadBytes);
    if (end == std::string_view::npos) {
      partial_ += rest;
      continue;
    }
    partial_ += rest.substr(0, end);
    if (partial_.ends_with('\r')) partial_.pop_back();
    const std::string text = std::move(partial_);
    partial_.clear();
    ARGENT_TRY(line(text));
  }
  return at;
}

Status ResponseReader::end() {
  if (state_ == State::until_close) state_ = State::done;
  if (state_ == State::done) return {};
  return fail(Code::io, "the connection ended {} the answer", head_done() ? "within" : "before");
}

Status ResponseReader::line(std::string_view text) {
  switch (state_) {
    case State::status:
      return status_line(text);
    case State::header:
      return text.empty() ? head_ends() : field(text);
    case State::size: {
      const std::string_view digits = trimmed(text.substr(0, text.find(';')));
      if (digits.empty() || digits.size() > 15 || !read_number(digits, left_, 16))
        return fail(Code::invalid, "the size of a chunk is '{}'", text.substr(0, 32));
      state_ = left_ ? State::data : State::trailer;
      head_bytes_ = 0;
      return {};
    }
    case State::data_end:
      if (!text.empty()) return fail(Code::invalid, "a chunk is longer than its size");
      state_ = State::size;
      return {};
    default:  // trailers say nothing that is wanted here
      if (text.empty()) state_ = State::done;
      return {};
  }
}

Status ResponseReader::status_line(std::string_view text) {
  const bool http =
      text.starts_with("HTTP/1.") && text.size() >= 12 && text[8] == ' ' && (text.size() == 12 || text[12] == ' ');
  if (!http || !read_number(text.substr(9, 3), status_) || status_ < 100)
    return fail(Code::invalid, "the answer is not HTTP/1: '{}'", text.substr(0, 32));
  keep_alive_ = text[7] != '0';
  state_ = State::header;
  return {};
}

Status ResponseReader::field(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == 0 || colon == std::string_view::npos ||
      text.substr(0, colon).find_first_of(" \t") != std::string_view::npos)
    return fail(Code::invalid, "a header is '{}'", text.substr(0, 32));
  headers_.emplace_back(text.substr(0, colon), trimmed(text.substr(colon + 1)));
  return {};
}

Status ResponseReader::head_ends() {
  if (status_ < 200 && status_ != 101) {
    headers_.clear();
    state_ = State::status;
    return {};
  }
  bool chunked = false, coded = false, has_length = false;
  uint64_t length = 0;
  for (const auto& [key, value] : headers_) {
    if (same_word(key, "connection"))
      each_word(value, [&](std::string_view word) {
        if (same_word(word, "close")) keep_alive_ = false;
        if (same_word(word, "keep-alive")) keep_alive_ = true;
      });
    if (same_word(key, "transfer-encoding"))
      each_word(value, [&](std::string_view word) { coded = true, chunked = same_word(word, "chunked"); });
    if (same_word(key, "content-length")) {
      uint64_t n = 0;
      if (value.empty() || !read_number(std::string_view(value), n) || (has_length && n != length))
        return fail(Code::invalid, "the content-length is '{}'", value.substr(0, 32));
      has_length = true, length = n;
    }
  }
  head_bytes_ = 0;
  if (status_ == 204 || status_ == 304) {
    state_ = State::done;
  } else if (chunked) {
    state_ = State::size;
  } else if (has_length && !coded) {
    left_ = length;
    state_ = length ? State::length : State::done;
  } else {
    keep_alive_ = false;
    state_ = State::until_close;
  }
  return {};
}

Result<bool> EventReader::take(std::string_view bytes, const Event& event) {
  while (!bytes.empty()) {
    if (after_cr_ && bytes[0] == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    if (bytes.empty()) break;
    const size_t end = bytes.find_first_of("\r\n");
    if (partial_.size() + data_.size() + std::min(end, bytes.size()) > kEventBytes)
      return fail(Code::invalid, "an event is longer than {} bytes", kEventBytes);
    if (end == std::string_view::npos) {
      partial_ += bytes;
      break;
    }
    after_cr_ = bytes[end] == '\r';
    bool more;
    if (partial_.empty()) {
      more = line(bytes.substr(0, end), event);
    } else {
      partial_ += bytes.substr(0, end);
      more = line(partial_, event);
      partial_.clear();
    }
    if (!more) return false;
    bytes.remove_prefix(end + 1);
  }
  return true;
}

bool EventReader::line(std::string_view text, const Event& event) {
  if (first_ && text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  first_ = false;
  if (text.empty()) {
    const bool more = !has_data_ || event(type_, data_);
    type_.clear(), data_.clear(), has_data_ = false;
    return more;
  }
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view name = text.substr(0, colon);
  std::string_view value = text.substr(std::min(colon + 1, text.size()));
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "data") {
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  } else if (name == "event") {
    type_ = value;
  }
  return true;
}

}  // namespace argent::server
