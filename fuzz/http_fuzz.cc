// Any bytes: a request that is the same in any pieces, or an answer to what is wrong with it.
#include <cstdlib>

#include "server/http_checks.h"
#include "server/http_parser.h"

using namespace argent::server;

namespace {

struct Parsed {
  int refused = 0;
  bool done = false;
  std::string text;
};

Parsed parse(std::string_view bytes, size_t piece, const Limits& limits) {
  RequestParser parser(limits);
  std::string held;
  for (size_t at = 0; at < bytes.size() && !parser.done() && !parser.refusal(); at += piece) {
    held += bytes.substr(at, piece);
    for (size_t taken = 1; taken != 0 && !held.empty() && !parser.done() && !parser.refusal();) {
      const bool head = parser.head_done();
      taken = parser.take(held, held.size() < 2 * limits.header_bytes);
      if (taken > held.size()) std::abort();
      held.erase(0, taken);
      if (head != parser.head_done()) taken = 1;
    }
  }
  if (parser.request().body.size() > limits.body_bytes) std::abort();
  Parsed parsed{parser.refusal() ? parser.refusal()->status : 0, parser.done(), {}};
  if (parsed.done) {
    parsed.text = parser.request().method + " " + parser.target() + "\n" + parser.request().body;
    for (const auto& [name, value] : parser.request().headers) parsed.text += "\n" + name + ":" + value;
  }
  return parsed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Limits limits;
  limits.header_bytes = 512;
  limits.body_bytes = 64;
  const Parsed whole = parse(bytes, bytes.size() + 1, limits), pieces = parse(bytes, 1 + data[0] % 64, limits);
  if (whole.done && pieces.done && whole.text != pieces.text) std::abort();
  if (whole.done != pieces.done && whole.refused == 0 && pieces.refused == 0) std::abort();

  static const RouteTable table = [] {
    RouteTable t;
    for (const char* pattern : {"/", "/v1/{a}", "/v1/{a}/b", "/v1/{rest...}"}) t.add("GET", pattern, {});
    return t;
  }();
  if (const auto target = parse_target("GET", bytes)) {
    const auto path = percent_decode(target->path);
    const auto match = table.find("GET", target->path);
    if (!path && !match.methods.empty()) std::abort();
  }
  if (const auto authority = parse_authority(bytes); authority && authority->host.empty()) std::abort();
  std::string head;
  append_header(head, "A", bytes);
  if (head.find('\n') != head.size() - 1) std::abort();
  return 0;
}
