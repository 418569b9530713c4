#include "server/http_client.h"

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <optional>
#include <unordered_set>

#include "server/http_reader.h"

namespace argent::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

std::string Url::authority() const {
  const std::string name = host.find(':') != std::string::npos ? "[" + host + "]" : host;
  return port == (tls ? 443 : 80) ? name : fmt::format("{}:{}", name, port);
}

Result<Url> parse_url(std::string_view text) {
  const auto wrong = [&] { return fail(Code::invalid, "'{}': wanted http://HOST:PORT or https://HOST:PORT", text); };
  std::string_view rest = text;
  Url url;
  url.tls = rest.starts_with("https://");
  if (!url.tls && !rest.starts_with("http://")) return wrong();
  rest.remove_prefix(url.tls ? 8 : 7);
  for (const uint8_t c : rest)
    if (c <= 0x20 || c >= 0x7f || c == '?' || c == '#' || c == '@') return wrong();
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash);
  url.path = rest.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  size_t host_end;
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return wrong();
    url.host = authority.substr(1, close - 1);
    host_end = close + 1;
  } else {
    host_end = std::min(authority.find(':'), authority.size());
    url.host = authority.substr(0, host_end);
  }
  url.port = url.tls ? 443 : 80;
  const std::string_view port = authority.substr(host_end);
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data() + 1, port.data() + port.size(), url.port);
    if (port[0] != ':' || error != std::errc() || end != port.data() + port.size() || url.port == 0) return wrong();
  }
  if (url.host.empty()) return wrong();
  return url;
}

namespace {

using Executor = asio::io_context::executor_type;
using Clock = HttpClient::Clock;
using Timer = asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, Executor>;
using TcpSocket = asio::basic_stream_socket<tcp, Executor>;
template <class T>
using Task = asio::awaitable<T, Executor>;

constexpr size_t kClientReadBytes = 16u << 10;
constexpr size_t kFetchBytes = 64u << 20;

auto into(error_code& error) { return asio::redirect_error(asio::use_awaitable_t<Executor>(), error); }

class TcpClient final : public HttpClient {
 public:
  TcpClient(const Url& url, const Trust& trust) : url_(url), trust_(trust), tls_(asio::ssl::context::tls_client) {}

  Status prepare() {
    error_code error;
    tcp::resolver resolver(io_);
    for (const auto& entry : resolver.resolve(url_.host, std::to_string(url_.port), error))
      endpoints_.push_back(entry.endpoint());
    if (error || endpoints_.empty())
      return fail(Code::not_found, "the host '{}' has no address: {}", url_.host, error.message());
    asio::ip::make_address(url_.host, error);
    host_is_address_ = !error;
    if (!url_.tls || trust_.anybody) return {};
    error.clear();
    if (trust_.ca_file.empty())
      tls_.set_default_verify_paths(error);
    else
      tls_.load_verify_file(trust_.ca_file, error);
    // A certificate that is trusted need not be an authority's.
    X509_STORE_set_flags(SSL_CTX_get_cert_store(tls_.native_handle()), X509_V_FLAG_PARTIAL_CHAIN);
    if (error)
      return fail(Code::invalid, "the certificates to trust cannot be read from {}: {}",
                  trust_.ca_file.empty() ? "the system" : "'" + trust_.ca_file + "'", error.message());
    return {};
  }

  void send(ClientRequest request) override {
    const auto call = std::make_shared<Call>(io_, std::move(request));
    calls_.insert(call.get());
    call->timer.expires_after(call->request.timeout);
    call->timer.async_wait([at = std::weak_ptr(call)](error_code error) {
      if (const auto c = at.lock(); c && !error) c->abort(Ending::timeout);
    });
    // An exception is one of a callback, or memory is out: run() throws it.
    asio::co_spawn(io_, perform(call), [](std::exception_ptr e) {
      if (e) std::rethrow_exception(e);
    });
  }

  void at(Clock::time_point when, std::function<void()> call) override {
    const auto timer = std::make_shared<Timer>(io_, when);
    timers_.insert(timer.get());
    timer->async_wait([this, timer, call = std::move(call)](error_code error) {
      timers_.erase(timer.get());
      if (!error) call();
    });
  }

  void run() override {
    io_.restart();
    io_.run();
  }

  void stop() override {
    for (Timer* timer : timers_) timer->cancel();
    for (Call* call : calls_) call->abort(Ending::stopped);
    idle_.clear();
  }

 private:
  struct Link {
    explicit Link(asio::io_context& io) : socket(io) {}
    TcpSocket socket;
    std::optional<asio::ssl::stream<TcpSocket&>> tls;
    std::array<char, kClientReadBytes> buffer;
  };

  struct Call {
    Call(asio::io_context& io, ClientRequest r) : request(std::move(r)), timer(io) {}
    void abort(Ending why) {
      ending = why;
      error_code ignored;
      if (link) link->socket.close(ignored);
    }
    bool aborted() const { return ending != Ending::whole; }
    void fails(Ending why, std::string text) {
      if (!aborted()) ending = why, what = std::move(text);
    }

    ClientRequest request;
    Timer timer;
    std::unique_ptr<Link> link;
    Ending ending = Ending::whole;
    std::string what;
  };

  std::string head_of(const ClientRequest& request) const {
    std::string head = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", request.method, request.target, url_.authority());
    for (const auto& [name, value] : request.headers) head += fmt::format("{}: {}\r\n", name, value);
    if (!request.body.empty()) head += fmt::format("Content-Length: {}\r\n", request.body.size());
    return head + "\r\n";
  }

  Task<void> perform(std::shared_ptr<Call> call) {
    Call& c = *call;
    bool again = true;
    while (again && !c.aborted()) {
      const bool kept = !idle_.empty();
      if (kept) {
        c.link = std::move(idle_.back());
        idle_.pop_back();
      } else {
        co_await connect(c);
        if (c.aborted()) break;
      }
      // A connection that was kept may have been closed by the server meanwhile: another one, then.
      again = co_await exchange(c, kept);
    }
    c.timer.cancel();
    calls_.erase(&c);
    static constexpr const char* kSaid[] = {"", "", "", "", "no whole answer within the time", "stopped"};
    if (c.request.on_end) c.request.on_end(c.ending, c.what.empty() ? kSaid[int(c.ending)] : c.what);
  }

  Task<void> connect(Call& c) {
    c.link = std::make_unique<Link>(io_);
    error_code error;
    for (const tcp::endpoint& endpoint : endpoints_) {
      error.clear();
      co_await c.link->socket.async_connect(endpoint, into(error));
      if (!error || c.aborted()) break;
      error_code ignored;
      c.link->socket.close(ignored);
    }
    if (error) co_return c.fails(Ending::refused, error.message());
    error_code ignored;
    c.link->socket.set_option(tcp::no_delay(true), ignored);
    if (!url_.tls) co_return;
    auto& tls = c.link->tls.emplace(c.link->socket, tls_);
    SSL* const ssl = tls.native_handle();
    if (!host_is_address_) SSL_set_tlsext_host_name(ssl, url_.host.c_str());
    if (!trust_.anybody) {
      if (host_is_address_)
        X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), url_.host.c_str());
      else
        SSL_set1_host(ssl, url_.host.c_str());
      tls.set_verify_mode(asio::ssl::verify_peer);
    }
    co_await tls.async_handshake(asio::ssl::stream_base::client, into(error));
    if (!error) co_return;
    const long verdict = trust_.anybody ? X509_V_OK : SSL_get_verify_result(ssl);
    c.fails(Ending::refused, verdict == X509_V_OK ? "TLS: " + error.message()
                                                  : fmt::format("TLS: the certificate is not trusted for {}: {}",
                                                                url_.host, X509_verify_cert_error_string(verdict)));
  }

  // One request on c.link, which is idle again afterwards or gone. True: the connection was found closed.
  Task<bool> exchange(Call& c, bool kept) {
    Link& link = *c.link;
    error_code error;
    const std::string head = head_of(c.request);
    const std::array<asio::const_buffer, 2> out{asio::buffer(head), asio::buffer(c.request.body)};
    if (link.tls)
      co_await asio::async_write(*link.tls, out, into(error));
    else
      co_await asio::async_write(link.socket, out, into(error));
    ResponseReader reader;
    bool told = false, wanted = true, any = false;
    const ResponseReader::Body body = [&](std::string_view piece) {
      if (!told) told = true, tell_head(c, reader);
      return wanted = !c.request.on_body || c.request.on_body(piece);
    };
    // A server may refuse with an answer while it still reads: what it says is read after an error of the write too.
    while (!reader.done() && wanted && !c.aborted()) {
      error.clear();
      const size_t n = link.tls ? co_await link.tls->async_read_some(asio::buffer(link.buffer), into(error))
                                : co_await link.socket.async_read_some(asio::buffer(link.buffer), into(error));
      if (error) {
        if (kept && !any && !c.aborted()) co_return c.link.reset(), true;
        const Status end = error == asio::error::eof ? reader.end() : Status(Error{Code::io, error.message()});
        if (!end) c.fails(Ending::lost, end.error().message);
        break;
      }
      any = true;
      const auto taken = reader.take({link.buffer.data(), n}, body);
      if (!taken) {
        c.fails(Ending::garbage, taken.error().message);
        break;
      }
      if (reader.done() && *taken < n) wanted = false;  // more than the answer: not to be used again
    }
    if (reader.head_done() && !told) tell_head(c, reader);
    if (reader.keep_alive() && wanted && !c.aborted()) idle_.push_back(std::move(c.link));
    c.link.reset();
    co_return false;
  }

  static void tell_head(Call& c, const ResponseReader& reader) {
    if (c.request.on_head) c.request.on_head(reader.status(), reader.header("content-type"));
  }

  const Url url_;
  const Trust trust_;
  bool host_is_address_ = false;
  asio::io_context io_{1};  // run by one thread
  asio::ssl::context tls_;
  std::vector<tcp::endpoint> endpoints_;
  std::vector<std::unique_ptr<Link>> idle_;
  std::unordered_set<Call*> calls_;
  std::unordered_set<Timer*> timers_;
};

}  // namespace

Result<std::unique_ptr<HttpClient>> HttpClient::open(const Url& url, const Trust& trust) {
  auto client = std::make_unique<TcpClient>(url, trust);
  ARGENT_TRY(client->prepare());
  return std::unique_ptr<HttpClient>(std::move(client));
}

Result<Fetched> fetch(HttpClient& client, ClientRequest request) {
  Fetched fetched;
  Status status;
  request.on_head = [&](int code, std::string_view) { fetched.status = code; };
  request.on_body = [&](std::string_view piece) {
    fetched.body += piece;
    if (fetched.body.size() <= kFetchBytes) return true;
    status = fail(Code::io, "the answer is longer than {} bytes", kFetchBytes);
    return false;
  };
  request.on_end = [&](Ending ending, const std::string& what) {
    if (ending != Ending::whole) status = Error{Code::io, what};
  };
  client.send(std::move(request));
  client.run();
  if (!status) return status.error();
  return fetched;
}

}  // namespace argent::server
