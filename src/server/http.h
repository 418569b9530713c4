// An HTTP/1.1 server: connections, limits, TLS and streams, and nothing about models. Routes are plain functions; a
// Reply may be kept and answered later, from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace argent::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method;  // "GET", as sent
  std::string path;    // decoded, without the query: "/v1/models"
  std::string query;   // as sent, behind the "?"
  std::string route;   // the pattern that matched: "/v1/models/{name}"
  // What stands for the {...} of the route, decoded; a last {name...} takes slashes.
  std::vector<std::string> parameters;
  Headers headers;
  std::string body;
  std::string peer;  // address of the client
  uint64_t id = 0;   // of this server; in the log and in the x-request-id header of the answer

  // The first header of that name, whatever its case; "" where there is none.
  std::string_view header(std::string_view name) const;
};

// The answer to one request: either send(), or begin(), any number of write()s, and end(). All calls are thread-safe,
// return at once, and do nothing once the client is gone. A Reply that is dropped unanswered is a 500 (or, once begun,
// a closed connection).
class Reply {
 public:
  virtual ~Reply() = default;
  virtual void send(int status, std::string body, std::string_view content_type = "application/json",
                    Headers headers = {}) = 0;
  // Headers of a body that comes in pieces (chunked; server-sent events when the type says so).
  virtual void begin(int status, std::string_view content_type, Headers headers = {}) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void end() = 0;

  // Called once, on the thread that serves all connections (so it must return at once), when the client has gone before
  // send() or end(): while the request waits, works or streams. A client that closes only its sending side is gone, and
  // so is one that asked with HEAD once begin() has answered it. Called before returning when that has happened
  // already.
  virtual void on_gone(std::function<void()> call) = 0;
  // Called with true when more than a stream's bound of bytes waits for a slow reader, with false when it has shrunk to
  // half of that; on the same thread, or before returning when it is so already. Bytes are never thrown away or
  // refused.
  virtual void on_pressure(std::function<void(bool full)> call) = 0;
  virtual bool gone() const = 0;
};

using Handler = std::function<void(Request, std::shared_ptr<Reply>)>;

struct Limits {
  size_t body_bytes = 32u << 20;         // a longer body is a 413
  size_t all_body_bytes = 256u << 20;    // of all requests' bodies at once, until routes are through with them; 503
  size_t header_bytes = 32u << 10;       // 431
  uint32_t connections = 4096;           // beyond, a connection is answered 503 and closed
  std::chrono::seconds header_time{15};  // to send the head of a request
  std::chrono::seconds body_time{60};    // to send its body; both 408
  std::chrono::seconds idle_time{120};   // between requests of a connection
  std::chrono::seconds write_time{60};   // for a reader that takes nothing at all
  size_t stream_bytes = 256u << 10;      // that may wait for a slow reader before on_pressure
};

struct ServerOptions {
  std::string host = "127.0.0.1";     // an address, or "localhost"; "unix:PATH" for a socket in the file system
  uint16_t port = 8080;               // 0: a free one
  std::string tls_cert, tls_key;      // PEM files; empty: no TLS
  std::vector<std::string> api_keys;  // accepted in "Authorization: Bearer" and "x-api-key"; empty: everybody
  std::vector<std::string> open_paths = {"/health"};  // need no key
  std::vector<std::string> allowed_hosts;             // of the Host header beside IP addresses and localhost; "*": any
  std::vector<std::string> allowed_origins;           // CORS; empty: requests of other origins are a 403. "*": any
  uint32_t handler_threads = 2;                       // that run routes
  Limits limits;
  // One call a finished request, on the thread that serves all connections; the request has no body any more. Status
  // 499: the client went before there was one.
  std::function<void(const Request&, int status, uint64_t bytes, std::chrono::nanoseconds time)> log;
  // The body of an error that the server answers itself (400, 401, 403, 404, 405, 408, 413, 414, 417, 421, 431, 500,
  // 501, 503, 505) and its type; `path` tells whose form it should have. Empty: plain text.
  std::function<std::pair<std::string, std::string>(int status, std::string_view message, std::string_view path)> error;
};

class Server {
 public:
  // Binds, and accepts from now on. io: the address is taken or not ours, or a file of TLS cannot be read, with which.
  static Result<std::unique_ptr<Server>> start(ServerOptions options);
  // Closes what is open (on_gone is called) and waits for handlers that run. A Reply may outlive its server.
  virtual ~Server() = default;

  // Routes are added before the first request is answered (open()). A path that has routes, but not of that method, is
  // a 405 that names those it has; HEAD is answered by GET's route, OPTIONS by the server. Where several patterns
  // match, the one with a literal where the others have a parameter is taken. Never after open().
  virtual void route(std::string_view method, std::string_view pattern, Handler handler) = 0;
  virtual void open() = 0;  // until then every request waits

  virtual uint16_t port() const = 0;
  virtual std::string address() const = 0;  // "http://127.0.0.1:8080"
  virtual uint32_t connections() const = 0;

  // Accepts no more, closes idle connections, lets running requests finish for at most `patience`, then closes. True:
  // all had finished.
  virtual bool drain(std::chrono::seconds patience) = 0;
};

}  // namespace argent::server
