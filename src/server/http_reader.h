// Bytes that a server sends to what they mean, as a client reads them: an HTTP/1.1 response, and the server-sent events
// of its body. Pieces may be cut anywhere.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "server/http.h"

namespace argent::server {

// One response (RFC 9112): interim ones (1xx) are passed over; the body is chunked, of a Content-Length, or ends with
// the connection. Answers to HEAD and CONNECT are not read.
class ResponseReader {
 public:
  using Body = std::function<bool(std::string_view piece)>;  // false: no more is wanted

  // Takes bytes up to the end of the response and says how many; fewer than given when it is done or `body` returned
  // false. invalid: this is not HTTP.
  Result<size_t> take(std::string_view bytes, const Body& body);
  // The connection has ended. io: that cut the response off.
  Status end();

  bool head_done() const { return state_ > State::header; }
  bool done() const { return state_ == State::done; }
  bool keep_alive() const { return done() && keep_alive_; }
  // Of the head:
  int status() const { return status_; }
  std::string_view header(std::string_view name) const;  // the first of that name; "" where there is none

 private:
  enum class State { status, header, size, data, data_end, trailer, length, until_close, done };
  Status line(std::string_view text);
  Status status_line(std::string_view text);
  Status field(std::string_view text);
  Status head_ends();

  State state_ = State::status;
  std::string partial_;    // of a line
  size_t head_bytes_ = 0;  // of status line and fields, or of trailers
  uint64_t left_ = 0;      // of the chunk, or of the body
  int status_ = 0;
  bool keep_alive_ = true;
  Headers headers_;
};

// Server-sent events (WHATWG HTML 9.2.6): fields other than event and data are passed over; what no blank line ends is
// no event.
class EventReader {
 public:
  using Event = std::function<bool(std::string_view type, std::string_view data)>;  // false: no more is wanted

  // False: `event` wanted no more. invalid: an event is longer than 16 MiB.
  Result<bool> take(std::string_view bytes, const Event& event);

 private:
  bool line(std::string_view text, const Event& event);

  std::string partial_, type_, data_;
  bool has_data_ = false, first_ = true, after_cr_ = false;
};

}  // namespace argent::server
