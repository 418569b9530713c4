#include "server/http_parser.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <utility>  // before Asio: 1.74 needs it

#include "server/http_checks.h"

namespace argent::server {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::error_code;

// "GET / HTTP/2.0": the version is what is wrong with the line.
static bool names_version(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line.size() > 9 && line.substr(line.size() - 9).starts_with(" HTTP/") && line[line.size() - 2] == '.' &&
         std::count(line.begin(), line.end(), ' ') == 2;
}

struct RequestParser::Impl final : http::basic_parser<true> {
  explicit Impl(const Limits& limits) : limits(limits) {
    header_limit(uint32_t(std::min<size_t>(limits.header_bytes, UINT32_MAX)));
    body_limit(boost::none);  // is held here: bytes of chunks add up
  }

  void refuse(int status, std::string_view message, error_code& error) {
    refusal = Refusal{status, message, {}};
    error = make_error_code(boost::system::errc::protocol_error);
  }

  void on_request_impl(http::verb, beast::string_view method, beast::string_view path, int number,
                       error_code&) override {
    version = number;
    request.method.assign(method.data(), method.size());
    target.assign(path.data(), path.size());
  }
  void on_response_impl(int, beast::string_view, int, error_code&) override {}
  void on_field_impl(http::field field, beast::string_view name, beast::string_view value, error_code& error) override {
    if (head_done) return;  // trailers say nothing here
    if (field == http::field::host) ++host_headers;
    if (field == http::field::transfer_encoding) {
      if (!equal_ignoring_case({value.data(), value.size()}, "chunked"))
        return refuse(501, "the only transfer encoding is chunked", error);
      encoded = true;
    }
    request.headers.emplace_back(std::string(name.data(), name.size()), std::string(value.data(), value.size()));
  }
  void on_header_impl(error_code& error) override {
    head_done = true;
    if (encoded && version == 10) return refuse(400, "HTTP/1.0 has no transfer encodings", error);
    if (content_length().value_or(0) > limits.body_bytes) refuse(413, "the body is too large", error);
  }
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t add(beast::string_view bytes, error_code& error) {
    if (bytes.size() > limits.body_bytes - request.body.size()) {
      refuse(413, "the body is too large", error);
      return 0;
    }
    request.body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  size_t on_body_impl(beast::string_view bytes, error_code& error) override { return add(bytes, error); }
  void on_chunk_header_impl(uint64_t, beast::string_view, error_code&) override {}
  size_t on_chunk_body_impl(uint64_t left, beast::string_view bytes, error_code& error) override {
    const size_t taken = add(bytes, error);
    in_chunk = taken < left;
    return taken;
  }
  void on_finish_impl(error_code&) override {}

  // Which answer an error of the parser's own is.
  void translate(const error_code& error, std::string_view bytes) {
    if (refusal) return;
    if (error == http::error::header_limit) {
      const bool in_line = bytes.substr(0, limits.header_bytes).find('\n') == std::string_view::npos;
      refusal = in_line && request.method.empty() ? Refusal{414, "the request line is too long", {}}
                                                  : Refusal{431, "the headers are too long", {}};
    } else if (error == http::error::bad_version && names_version(bytes.substr(0, bytes.find('\n')))) {
      refusal = Refusal{505, "the versions of HTTP are 1.0 and 1.1", {}};
    } else if (request.method.empty()) {
      refusal = Refusal{400, "not a request of HTTP/1.1", {}};
    } else if (head_done) {
      refusal = Refusal{400, "the body's chunks are malformed", {}};
    } else {
      refusal = Refusal{400, "the headers are malformed", {}};
    }
  }

  const Limits& limits;
  Request request;
  std::string target;
  bool head_done = false, encoded = false;
  bool in_chunk = false;  // not between chunks
  int version = 11;
  uint32_t host_headers = 0;
  std::optional<Refusal> refusal;
};

RequestParser::RequestParser(const Limits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;

size_t RequestParser::take(std::string_view bytes, bool more_fits) {
  Impl& parser = *impl_;
  size_t taken = 0;
  if (!parser.head_done && parser.request.method.empty())  // empty lines before a request are allowed
    while (taken < bytes.size() && (bytes[taken] == '\r' || bytes[taken] == '\n')) ++taken;
  parser.eager(parser.head_done);
  while (taken < bytes.size() && !parser.refusal && !parser.is_done()) {
    const bool in_body = parser.head_done;
    const std::string_view rest = bytes.substr(taken);
    // Nothing shorter than "0\r\n\r\n" can follow there, and Beast asserts so.
    if (in_body && parser.encoded && !parser.in_chunk && rest.size() < 5) break;
    error_code error;
    taken += parser.put(boost::asio::const_buffer(rest.data(), rest.size()), error);
    if (error == http::error::need_more) {
      if (!more_fits && taken == 0)
        parser.refusal =
            in_body ? Refusal{400, "a chunk's line is too long", {}} : Refusal{431, "the headers are too long", {}};
      break;
    }
    if (error) parser.translate(error, rest);
    if (!in_body) break;  // the head is one step
  }
  return taken;
}

bool RequestParser::head_done() const { return impl_->head_done; }
bool RequestParser::done() const { return impl_->is_done(); }
const std::optional<Refusal>& RequestParser::refusal() const { return impl_->refusal; }
Request& RequestParser::request() { return impl_->request; }
const std::string& RequestParser::target() const { return impl_->target; }
int RequestParser::version() const { return impl_->version; }
bool RequestParser::keep_alive() const { return impl_->is_done() && impl_->keep_alive(); }
uint32_t RequestParser::host_headers() const { return impl_->host_headers; }

}  // namespace argent::server
