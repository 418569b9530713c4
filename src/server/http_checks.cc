#include "server/http_checks.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "tokenizer/unicode.h"

namespace argent::server {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = lower(c);
  return out;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool is_ip_address(const std::string& host) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> segments;
  for (size_t at = 1; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    segments.emplace_back(path.substr(at, end - at));
    at = end + 1;
  }
  if (segments.empty()) segments.emplace_back();
  return segments;
}

bool is_parameter(std::string_view segment) { return segment.starts_with('{') && segment.ends_with('}'); }
bool is_rest(std::string_view segment) { return is_parameter(segment) && segment.ends_with("...}"); }

// 0: a literal, and better than 1: a parameter, and better than 2: a rest.
int rank(std::string_view segment) { return is_rest(segment) ? 2 : is_parameter(segment) ? 1 : 0; }

bool better(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                      [](const auto& x, const auto& y) { return rank(x) < rank(y); });
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view Request::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (equal_ignoring_case(key, name)) return value;
  return {};
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (text.size() - i < 3) return {};
      const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return {};
      c = char(high * 16 + low);
      i += 2;
    }
    if (c == 0) return {};
    out += c;
  }
  if (!is_valid_utf8(out)) return {};
  return out;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

std::optional<Target> parse_target(std::string_view method, std::string_view target) {
  Target parsed;
  if (target == "*" && method == "OPTIONS") {
    parsed.path = target;
    return parsed;
  }
  for (const char c : target)
    if (uint8_t(c) <= 0x20 || uint8_t(c) >= 0x7f || c == '#') return {};
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.size() < scheme.size() || !equal_ignoring_case(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    parsed.authority = target.substr(0, end);
    target.remove_prefix(end);
    if (parsed.authority.empty()) return {};
    if (target.empty() || target[0] == '?') {
      parsed.path = "/";
      parsed.query = target.substr(std::min<size_t>(1, target.size()));
      return parsed;
    }
    break;
  }
  if (!target.starts_with('/')) return {};
  const size_t mark = std::min(target.find('?'), target.size());
  parsed.path = target.substr(0, mark);
  parsed.query = target.substr(std::min(mark + 1, target.size()));
  return parsed;
}

std::optional<Authority> parse_authority(std::string_view text) {
  Authority parsed;
  std::string_view host = text, port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return {};
    host = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (!port.empty() && port[0] != ':') return {};
    parsed.host = lower(host);
    if (host.find(':') == std::string_view::npos || !is_ip_address(parsed.host)) return {};
  } else {
    const size_t colon = std::min(text.find(':'), text.size());
    host = text.substr(0, colon);
    port = text.substr(colon);
    parsed.host = lower(host);
    if (parsed.host.ends_with('.')) parsed.host.pop_back();  // a name written as absolute
    const bool good = std::all_of(parsed.host.begin(), parsed.host.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
    });
    if (parsed.host.empty() || !good) return {};
  }
  if (port.size() > 1) {
    port.remove_prefix(1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), parsed.port);
    if (error != std::errc() || end != port.data() + port.size() || parsed.port < 0 || parsed.port > 65535) return {};
  }
  return parsed;
}

bool host_allowed(std::string_view host, std::span<const std::string> allowed) {
  const auto given = parse_authority(host);
  if (!given) return false;
  if (is_ip_address(given->host) || given->host == "localhost" || given->host.ends_with(".localhost")) return true;
  return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& name) {
    if (name == "*") return true;
    const auto wanted = parse_authority(name);
    return wanted && wanted->host == given->host && (wanted->port < 0 || wanted->port == given->port);
  });
}

bool origin_is_own(std::string_view origin, std::string_view host) {
  const size_t colon = origin.find("://");
  if (colon == std::string_view::npos) return false;
  const bool tls = equal_ignoring_case(origin.substr(0, colon), "https");
  if (!tls && !equal_ignoring_case(origin.substr(0, colon), "http")) return false;
  const auto theirs = parse_authority(origin.substr(colon + 3)), ours = parse_authority(host);
  if (!theirs || !ours || theirs->host != ours->host) return false;
  const int usual = tls ? 443 : 80;
  return (theirs->port < 0 ? usual : theirs->port) == (ours->port < 0 ? usual : ours->port);
}

bool origin_allowed(std::string_view origin, std::span<const std::string> allowed) {
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](const std::string& name) { return name == "*" || equal_ignoring_case(name, origin); });
}

bool same_secret(std::string_view given, std::string_view key) {
  if (key.empty()) return false;
  volatile uint32_t difference = given.size() == key.size() ? 0 : 1;
  size_t at = 0;
  for (const char c : given) {
    difference = difference | uint32_t(uint8_t(c) ^ uint8_t(key[at]));
    if (++at == key.size()) at = 0;
  }
  return difference == 0;
}

bool key_accepted(const Request& request, std::span<const std::string> keys) {
  std::string_view bearer = request.header("authorization");
  static constexpr std::string_view kScheme = "bearer ";
  if (bearer.size() > kScheme.size() && equal_ignoring_case(bearer.substr(0, kScheme.size()), kScheme)) {
    bearer.remove_prefix(kScheme.size());
    while (bearer.starts_with(' ')) bearer.remove_prefix(1);
  } else {
    bearer = {};
  }
  const std::string_view plain = request.header("x-api-key");
  bool accepted = false;
  for (const std::string& key : keys) {  // all of them, whichever matches
    accepted |= same_secret(bearer, key);
    accepted |= same_secret(plain, key);
  }
  return accepted;
}

void RouteTable::add(std::string_view method, std::string_view pattern, Handler handler) {
  auto route = std::find_if(routes_.begin(), routes_.end(), [&](const Route& r) { return r.pattern == pattern; });
  if (route == routes_.end()) {
    Route made{std::string(pattern), split_path(pattern), {}};
    // Sorted, so that the first that matches is the best; equal ones stay in the order they came.
    route =
        std::find_if(routes_.begin(), routes_.end(), [&](const Route& r) { return better(made.segments, r.segments); });
    route = routes_.insert(route, std::move(made));
  }
  for (auto& [name, old] : route->methods) {
    if (name != method) continue;
    old = std::move(handler);
    return;
  }
  route->methods.emplace_back(method, std::move(handler));
}

RouteTable::Match RouteTable::find(std::string_view method, std::string_view path) const {
  Match found;
  if (!path.starts_with('/')) return found;
  std::vector<std::string> raw = split_path(path), segments;
  for (const std::string& segment : raw) {
    auto decoded = percent_decode(segment);
    if (!decoded) return found;
    segments.push_back(std::move(*decoded));
  }
  const auto add_method = [&](std::string_view name) {
    if ((", " + found.methods + ",").find(fmt::format(", {},", name)) != std::string::npos) return;
    found.methods += (found.methods.empty() ? "" : ", ") + std::string(name);
  };
  for (const Route& route : routes_) {
    std::vector<std::string> parameters;
    size_t i = 0;
    bool match = true;
    for (; match && i < route.segments.size(); ++i) {
      const std::string& wanted = route.segments[i];
      if (is_rest(wanted)) {
        match = i < segments.size() && !(i + 1 == segments.size() && segments[i].empty());
        if (!match) break;
        std::string rest = segments[i];
        for (size_t j = i + 1; j < segments.size(); ++j) rest += "/" + segments[j];
        parameters.push_back(std::move(rest));
        i = segments.size();
        break;
      }
      if (i >= segments.size()) {
        match = false;
      } else if (is_parameter(wanted)) {
        match = !segments[i].empty();
        parameters.push_back(segments[i]);
      } else {
        match = wanted == segments[i];
      }
    }
    if (!match || i != segments.size()) continue;
    for (const auto& [name, handler] : route.methods) {
      add_method(name);
      if (name == "GET") add_method("HEAD");
      const bool exact = name == method, by_get = method == "HEAD" && name == "GET" && !found.handler;
      if (found.handler && !(exact && found.pattern == route.pattern)) continue;
      if (!exact && !by_get) continue;
      found.handler = &handler;
      found.pattern = route.pattern;
      found.parameters = parameters;
    }
  }
  if (!found.methods.empty()) add_method("OPTIONS");
  return found;
}

std::string_view reason_phrase(int status) {
  static constexpr std::pair<int, std::string_view> kPhrases[] = {
      {200, "OK"},
      {201, "Created"},
      {202, "Accepted"},
      {204, "No Content"},
      {301, "Moved Permanently"},
      {302, "Found"},
      {303, "See Other"},
      {304, "Not Modified"},
      {307, "Temporary Redirect"},
      {308, "Permanent Redirect"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {406, "Not Acceptable"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {411, "Length Required"},
      {413, "Content Too Large"},
      {414, "URI Too Long"},
      {415, "Unsupported Media Type"},
      {416, "Range Not Satisfiable"},
      {417, "Expectation Failed"},
      {421, "Misdirected Request"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {502, "Bad Gateway"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
      {529, "Overloaded"},
  };
  for (const auto& [code, phrase] : kPhrases)
    if (code == status) return phrase;
  return status < 300 ? "OK" : status < 400 ? "Redirect" : status < 500 ? "Client Error" : "Server Error";
}

void append_header(std::string& head, std::string_view name, std::string_view value) {
  if (!is_token(name)) return;
  head.append(name).append(": ");
  for (const char c : value) head += c == '\r' || c == '\n' || c == 0 ? ' ' : c;
  head += "\r\n";
}

}  // namespace argent::server
