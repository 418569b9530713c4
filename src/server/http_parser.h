// Bytes to requests, over Beast's parser: one object reads one request.
#pragma once

#include <optional>

#include "server/http.h"

namespace argent::server {

// An answer of the server itself in place of the route's.
struct Refusal {
  int status = 0;
  std::string_view message;  // one fixed line
  Headers headers;
};

class RequestParser {
 public:
  explicit RequestParser(const Limits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;

  // Takes what it can of the bytes that follow those taken before, up to the end of the head or else of the body, and
  // says how many these are; the rest is to be given again with more behind it. Limits hold whatever the pieces:
  // `more_fits` false says that no more bytes can be held, so a line that is not complete never will be.
  size_t take(std::string_view bytes, bool more_fits);

  bool head_done() const;
  bool done() const;
  const std::optional<Refusal>& refusal() const;  // the rest of the connection cannot be read

  // Of the head:
  Request& request();  // method, headers and (when done) body
  const std::string& target() const;
  int version() const;  // 10 or 11
  bool keep_alive() const;
  uint32_t host_headers() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace argent::server
