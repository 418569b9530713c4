// What the server decides about a request by looking at text only: targets, routes, hosts, origins and keys.
#pragma once

#include <optional>
#include <span>

#include "server/http.h"

namespace argent::server {

bool equal_ignoring_case(std::string_view a, std::string_view b);

// %41 is A. Nothing where an escape is broken, or where a NUL or text that is not UTF-8 comes out.
std::optional<std::string> percent_decode(std::string_view text);

// RFC 9110 5.6.2: the characters of a method or a header's name.
bool is_token(std::string_view text);

// RFC 9112 3.2: "/path?query", or "http://host/path?query", or "*" for OPTIONS. CONNECT's form is refused.
struct Target {
  std::string_view path;       // as sent
  std::string_view query;      // as sent, without the "?"
  std::string_view authority;  // of the absolute form, which counts in place of the Host header; else ""
};
std::optional<Target> parse_target(std::string_view method, std::string_view target);

// "name:port" of a Host header: lower case, an IPv6 address without its brackets; port -1 where there is none.
struct Authority {
  std::string host;
  int port = -1;
};
std::optional<Authority> parse_authority(std::string_view text);

// A page of another site can make its own name point to this machine (DNS rebinding), but not use our address or
// "localhost" as its name. So every IP address is accepted, localhost, and the names of `allowed` ("*": any).
bool host_allowed(std::string_view host, std::span<const std::string> allowed);

// Of this server itself (the same host and port as `host`), or one of `allowed` ("*": any). Ports that are left out are
// those of the origin's scheme.
bool origin_is_own(std::string_view origin, std::string_view host);
bool origin_allowed(std::string_view origin, std::span<const std::string> allowed);

// The time depends on the length of what is given, not on how much of it is right.
bool same_secret(std::string_view given, std::string_view key);
bool key_accepted(const Request& request, std::span<const std::string> keys);

// Patterns are "/a/{name}/b" and "/a/{name...}", whose last parameter takes the rest with its slashes. Segments are
// decoded after the path is split, so %2F does not divide them.
class RouteTable {
 public:
  struct Match {
    const Handler* handler = nullptr;  // null: the path has routes, but not of this method
    std::string_view pattern;
    std::vector<std::string> parameters;
    std::string methods;  // "GET, HEAD, POST, OPTIONS" of the path; empty where no pattern matches
  };
  void add(std::string_view method, std::string_view pattern, Handler handler);
  // The path as sent. HEAD is GET where it has no route of its own.
  Match find(std::string_view method, std::string_view path) const;

 private:
  struct Route {
    std::string pattern;
    std::vector<std::string> segments;
    std::vector<std::pair<std::string, Handler>> methods;
  };
  std::vector<Route> routes_;
};

std::string_view reason_phrase(int status);

// "name: value\r\n"; line breaks and NULs in the value become spaces, and a name that is no token is left out.
void append_header(std::string& head, std::string_view name, std::string_view value);

}  // namespace argent::server
