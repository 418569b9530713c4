// An HTTP/1.1 client of one server: many requests at once on the thread that runs it, http:// and https://, connections
// kept for the next request. What measures servers uses it, so it costs them little.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/http.h"

namespace argent::server {

struct Url {
  bool tls = false;
  std::string host;  // without the brackets of an IPv6 address
  uint16_t port = 0;
  std::string path;  // "" or "/..." without a slash at the end

  std::string authority() const;  // as the Host header has it
};

// invalid: not http://HOST[:PORT][/PATH] or https://.
Result<Url> parse_url(std::string_view text);

// How a request ended.
enum class Ending {
  whole,    // the response was read to its end, or as far as it was wanted
  refused,  // there is no connection: nobody listens, no route, no TLS
  lost,     // the connection ended before the response did
  garbage,  // what came is not HTTP
  timeout,  // it took longer than its limit
  stopped,  // stop() was called
};

struct ClientRequest {
  std::string method = "GET", target = {};
  Headers headers = {};  // besides Host and Content-Length
  std::string body = {};
  std::chrono::milliseconds timeout{600000};
  // Called on the thread in run(); any may be empty.
  std::function<void(int status, std::string_view content_type)> on_head = {};
  std::function<bool(std::string_view piece)> on_body = {};  // false: no more is wanted, and the connection is closed
  std::function<void(Ending ending, const std::string& what)> on_end = {};  // what: one line, "" when whole
};

// Whose word a client of https:// takes for the server's name.
struct Trust {
  bool anybody = false;  // the certificate is not looked at
  std::string ca_file;   // PEM: these authorities, or these certificates, and no others; "": the system's
};

class HttpClient {
 public:
  using Clock = std::chrono::steady_clock;

  // not_found: the host has no address. invalid: the certificates to trust cannot be read.
  static Result<std::unique_ptr<HttpClient>> open(const Url& url, const Trust& trust = {});
  virtual ~HttpClient() = default;

  virtual void send(ClientRequest request) = 0;
  virtual void at(Clock::time_point when, std::function<void()> call) = 0;
  // Runs until nothing is left to do. May be called again.
  virtual void run() = 0;
  // From the thread in run(): ends all requests, and drops what at() was given.
  virtual void stop() = 0;
};

struct Fetched {
  int status = 0;
  std::string body;
};

// Sends one request and runs until it, and all else the client has to do, is done. io: it did not end whole, or is
// longer than 64 MiB.
Result<Fetched> fetch(HttpClient& client, ClientRequest request);

}  // namespace argent::server
