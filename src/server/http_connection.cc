#include "server/http_connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <ctime>

#include "server/http_parser.h"
#include "server/http_reserved.h"

namespace argent::server {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Executor = asio::io_context::executor_type;
using Timer = asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, Executor>;
template <class T>
using Task = asio::awaitable<T, Executor>;

namespace {

using TlsStream = asio::ssl::stream<Socket>;
constexpr auto kNever = Clock::time_point::max();
constexpr size_t kReadBytes = 4096;                // of one read
constexpr size_t kAheadBytes = 64u << 10;          // held of requests that follow
constexpr size_t kKeptBytes = 4096;                // buffers above it are given back when they are empty
constexpr auto kLinger = std::chrono::seconds(2);  // an answer to what was not read is not lost to a reset
constexpr auto kShortLinger = std::chrono::milliseconds(200);

asio::use_awaitable_t<Executor> awaiting() { return {}; }

// RFC 9110 5.6.7, made once a second.
const std::string& http_date() {
  static thread_local std::time_t made = 0;
  static thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now != made) {
    std::tm utc{};
    gmtime_r(&now, &utc);
    static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                              "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    text = fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday, kMonths[utc.tm_mon],
                       utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
    made = now;
  }
  return text;
}

template <class Stream>
class StreamConnection final : public Connection,
                               public Exchange::Sink,
                               public std::enable_shared_from_this<StreamConnection<Stream>> {
  static constexpr bool kTls = std::is_same_v<Stream, TlsStream>;

 public:
  template <class... Args>
  StreamConnection(Core& core, std::string peer, bool refused, Socket socket, Args&... tls)
      : core_(core),
        peer_(std::move(peer)),
        refused_(refused),
        stream_(std::move(socket), tls...),
        wake_(lowest().get_executor()),
        write_timer_(lowest().get_executor()),
        ahead_bytes_(std::max(kAheadBytes, core.options.limits.header_bytes + kReadBytes)) {}

  void start() override {
    core_.connections.insert(this);
    ++core_.count;
    asio::co_spawn(lowest().get_executor(), run(this->shared_from_this()), asio::detached);
  }

  void wake() override {
    awake_ = true;
    wake_.cancel();
  }

  void abort() override {
    close();
    wake();
  }

  void poke() noexcept override {
    try {
      asio::post(lowest().get_executor(), Poke{this->shared_from_this()});
    } catch (const std::bad_alloc&) {  // an older poke has the reserved memory: it will look at what is new, too
    }
  }

 private:
  struct Poke {
    using allocator_type = ReservedAllocator<std::byte>;
    allocator_type get_allocator() const { return allocator_type(self->reserved_); }
    void operator()() const {
      if (self->exchange_) self->exchange_->tell_pressure();
      self->wake();
    }
    std::shared_ptr<StreamConnection> self;
  };

  Socket& lowest() {
    if constexpr (kTls)
      return stream_.next_layer();
    else
      return stream_;
  }

  // The client cannot be reached any more, or nobody wants to.
  void close() {
    error_code ignored;
    lowest().close(ignored);
    lost();
  }

  void lost() {
    lost_ = true;
    if (exchange_) {
      const auto exchange = exchange_;
      exchange->leave(true);
    }
  }

  // Holds the whole life of a connection; nothing that goes wrong in it leaves it.
  Task<void> run([[maybe_unused]] std::shared_ptr<StreamConnection> self) {
    try {
      if (co_await shake_hands()) {
        read();
        if (refused_) {
          id_ = ++core_.last_id;
          begun_ = Clock::now();
          Refusal refusal{503, "too many connections", {{"Retry-After", "1"}}};
          co_await refuse(std::move(refusal), "");
          log({});
        } else {
          while (co_await serve()) {
          }
        }
        if (!lost_) co_await part();
      }
    } catch (...) {
    }
    close();
    write_timer_.cancel();
    core_.connections.erase(this);
    --core_.count;
    if (core_.closed) core_.closed();
  }

  // Sleeps until wake() or a time; false: time is up.
  Task<bool> wait(Clock::time_point until) {
    if (!awake_) {
      wake_.expires_at(until);
      error_code error;
      co_await wake_.async_wait(asio::redirect_error(awaiting(), error));
    }
    co_return std::exchange(awake_, false);
  }

  // Closes the connection when an operation on the stream takes longer.
  void arm(Clock::duration time) {
    write_timer_.expires_after(time);
    write_timer_.async_wait([self = this->shared_from_this()](error_code error) {
      if (!error) self->abort();
    });
  }

  Task<bool> shake_hands() {
    if constexpr (kTls) {
      arm(core_.options.limits.header_time);
      error_code error;
      co_await stream_.async_handshake(asio::ssl::stream_base::server, asio::redirect_error(awaiting(), error));
      write_timer_.cancel();
      co_return !error && !lost_;
    }
    co_return true;
  }

  // A read is always pending while there is room, whatever else goes on: it notices at once that the client is gone.
  void read() {
    if (reading_ || lost_ || held() >= ahead_bytes_) return;
    reading_ = true;
    stream_.async_read_some(asio::buffer(chunk_), [self = this->shared_from_this()](error_code error, size_t bytes) {
      self->reading_ = false;
      try {
        self->input_.append(self->chunk_.data(), bytes);
        if (!error) self->read();
      } catch (...) {
        error = asio::error::no_memory;
      }
      if (error) self->lost();
      self->wake();
    });
  }

  size_t held() const { return input_.size() - used_; }
  std::string_view input() const { return std::string_view(input_).substr(used_); }
  void use(size_t bytes) {
    used_ += bytes;
    if (used_ == input_.size()) {
      input_.clear();
      used_ = 0;
      if (input_.capacity() > kKeptBytes) input_.shrink_to_fit();
    } else if (used_ > ahead_bytes_) {
      input_.erase(0, used_);
      used_ = 0;
    }
    read();
  }

  // False: the client is gone, or takes nothing.
  Task<bool> write(std::string_view bytes, Exchange* exchange = nullptr) {
    const auto written = [&](size_t n) {
      bytes.remove_prefix(n);
      if (exchange) exchange->written(n);
    };
    if constexpr (!kTls) {  // what the socket takes at once needs no timer
      error_code error;
      while (!bytes.empty() && !lost_) {
        const size_t n = stream_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
        if (error) break;
        written(n);
      }
      if (error && error != asio::error::would_block && error != asio::error::try_again) {
        close();
        co_return false;
      }
    }
    while (!bytes.empty() && !lost_) {
      arm(core_.options.limits.write_time);
      error_code error;
      const size_t n = co_await stream_.async_write_some(asio::buffer(bytes.data(), bytes.size()),
                                                         asio::redirect_error(awaiting(), error));
      write_timer_.cancel();
      if (error) close();
      written(n);
    }
    co_return !lost_;
  }

  // Says goodbye, and takes what is still coming for a while: closing with unread bytes would reset the connection, and
  // the client could lose the answer.
  Task<void> part() {
    const auto until = Clock::now() + linger_;
    error_code ignored;
    if constexpr (kTls) {
      arm(linger_);
      co_await stream_.async_shutdown(asio::redirect_error(awaiting(), ignored));
      write_timer_.cancel();
    }
    lowest().shutdown(asio::socket_base::shutdown_send, ignored);
    while (!lost_) {
      use(held());
      if (!co_await wait(until)) break;
    }
  }

  void append_head(std::string& out, int status, std::string_view content_type, const Headers& headers, bool stream,
                   size_t body_bytes) {
    out += fmt::format("HTTP/1.1 {} {}\r\n", status, reason_phrase(status));
    append_header(out, "Date", http_date());
    const bool bodiless = status == 204 || status == 304;
    if (!content_type.empty() && !bodiless) append_header(out, "Content-Type", content_type);
    for (const auto& [name, value] : headers) append_header(out, name, value);
    for (const auto& [name, value] : cors_) append_header(out, name, value);
    if (id_ != 0) append_header(out, "x-request-id", std::to_string(id_));
    if (stream && content_type.starts_with("text/event-stream")) {
      append_header(out, "Cache-Control", "no-cache");
      append_header(out, "X-Accel-Buffering", "no");  // proxies would hold events back
    }
    if (stream && version_ == 11 && !bodiless) append_header(out, "Transfer-Encoding", "chunked");
    if (!stream && !bodiless) append_header(out, "Content-Length", std::to_string(body_bytes));
    if (core_.draining) keep_ = false;
    if (!keep_)
      append_header(out, "Connection", "close");
    else if (version_ == 10)
      append_header(out, "Connection", "keep-alive");
    out += "\r\n";
  }

  static Refusal no_memory() {
    return {503, "out of memory: the request needs more than is free", {{"Retry-After", "1"}}};
  }

  // Answers in place of a route.
  Task<void> refuse(Refusal refusal, std::string_view path) {
    std::pair<std::string, std::string> body(fmt::format("{}\n", refusal.message), "text/plain; charset=utf-8");
    if (refusal.status < 300) body = {};
    if (refusal.status >= 300 && core_.options.error) {
      try {
        body = core_.options.error(refusal.status, refusal.message, path);
      } catch (...) {
      }
    }
    std::string out;
    append_head(out, refusal.status, body.second, refusal.headers, false, body.first.size());
    if (!head_) out += body.first;
    status_ = refusal.status;
    body_bytes_ = head_ ? 0 : body.first.size();
    co_await write(out);
  }

  void log(Request request) {
    if (!core_.options.log) return;
    request.peer = peer_;
    request.id = id_;
    try {
      core_.options.log(request, status_ != 0 ? status_ : 499, body_bytes_, Clock::now() - begun_);
    } catch (...) {
    }
  }

  // One request and its answer. False: the connection has served.
  Task<bool> serve() {
    const Limits& limits = core_.options.limits;
    const auto idle_until = Clock::now() + limits.idle_time;
    linger_ = kShortLinger;
    while (held() == 0 || !core_.opened) {
      if (lost_ || (core_.draining && held() == 0)) co_return false;
      if (!co_await wait(held() == 0 ? idle_until : kNever)) co_return false;
    }

    RequestParser parser(limits);
    version_ = 11;
    id_ = ++core_.last_id;
    keep_ = head_ = false;
    cors_.clear();
    status_ = 0;
    body_bytes_ = 0;
    Request request;
    begun_ = Clock::now();
    bool out_of_memory = false;
    try {
      co_await answer(parser, request);
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
    if (out_of_memory) {
      keep_ = false;
      linger_ = kLinger;
      parser.request().body = {};
      if (status_ == 0)
        co_await refuse(no_memory(), request.path);
      else
        close();  // the client must not take what there is of the answer for all of it
    }
    if (status_ != 0 || parser.head_done()) log(std::move(request));
    co_return keep_ && !lost_;
  }

  // Reads, checks and answers one request; sets status_ and keep_.
  Task<void> answer(RequestParser& parser, Request& request) {
    const Limits& limits = core_.options.limits;
    const auto head_until = Clock::now() + limits.header_time;
    std::optional<Refusal> refusal;
    while (!parser.head_done()) {
      use(parser.take(input(), held() < ahead_bytes_));
      refusal = parser.refusal();
      if (refusal || parser.head_done()) break;
      if (lost_) co_return;
      if (!co_await wait(head_until)) {
        refusal = Refusal{408, "the head of the request took too long", {}};
        break;
      }
    }
    begun_ = Clock::now();
    version_ = parser.version();
    RouteTable::Match match;
    if (!refusal) refusal = parser.refusal();
    request = std::exchange(parser.request(), {});  // the body comes later
    request.peer = peer_;
    request.id = id_;
    if (!request.method.empty()) {
      head_ = request.method == "HEAD";
      const auto target = parse_target(request.method, parser.target());
      auto path = target ? percent_decode(target->path) : std::nullopt;
      if (path) request.path = std::move(*path);
      if (!refusal && !path) refusal = Refusal{400, "the target of the request is malformed", {}};
      if (!refusal) {
        request.query = target->query;
        refusal = check(request, *target, parser, match);
      }
    }
    if (refusal) {
      keep_ = parser.done() && parser.keep_alive() && !parser.refusal() && !core_.draining;
      if (!keep_) linger_ = kLinger;
      co_return co_await refuse(std::move(*refusal), request.path);
    }

    const auto body_until = Clock::now() + limits.body_time;
    const bool expects = version_ == 11 && !request.header("expect").empty();
    if (!parser.done() && expects && held() == 0) {
      if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return;
    }
    BodyShare share(core_.body_bytes);
    while (!parser.done()) {
      use(parser.take(input(), held() < ahead_bytes_));
      refusal = parser.refusal();
      const size_t body_bytes = parser.request().body.size();
      if (!refusal && share.set(body_bytes) > limits.all_body_bytes && body_bytes != 0)
        refusal = Refusal{503, "the bodies of all requests take too much memory", {{"Retry-After", "1"}}};
      if (!refusal && parser.done()) break;
      if (!refusal && lost_) co_return;
      if (!refusal && !co_await wait(body_until)) refusal = Refusal{408, "the body took too long", {}};
      if (refusal) {
        parser.request().body = {};  // the client may take its time to read
        share.set(0);
        linger_ = kLinger;
        co_return co_await refuse(std::move(*refusal), request.path);
      }
    }
    keep_ = parser.keep_alive() && !core_.draining;
    request.route = match.pattern;
    request.parameters = std::move(match.parameters);
    Request handed;
    if (core_.options.log) {
      handed = request;
    } else {
      handed = std::move(request);
      request.path = handed.path;  // for errors
    }
    handed.body = std::move(parser.request().body);
    co_await hand_over(std::move(handed), std::move(share), *match.handler, request.path);
  }

  std::optional<Refusal> check(Request& request, const Target& target, const RequestParser& parser,
                               RouteTable::Match& match) {
    const ServerOptions& options = core_.options;
    if (parser.host_headers() > 1 || (parser.host_headers() == 0 && version_ == 11))
      return Refusal{400, "a request has one Host header", {}};
    const std::string_view host = target.authority.empty() ? request.header("host") : target.authority;
    const bool no_host = host.empty() && version_ == 10;
    if (!core_.any_host && !no_host && !host_allowed(host, core_.hosts))
      return Refusal{421, "this server does not go by the name in the Host header", {}};
    const std::string_view origin = request.header("origin");
    const bool cross = !origin.empty() && !origin_is_own(origin, host);
    if (cross && !origin_allowed(origin, options.allowed_origins))
      return Refusal{403, "pages of this origin may not use this server", {}};
    if (cross) {
      cors_ = {{"Access-Control-Allow-Origin", std::string(origin)},
               {"Access-Control-Expose-Headers", "x-request-id"},
               {"Vary", "Origin"}};
    }
    if (target.path == "*") return Refusal{204, {}, {}};
    match = core_.routes.find(request.method, target.path);
    if (request.method == "OPTIONS" && !match.handler) {
      if (match.methods.empty()) return Refusal{404, "no such path", {}};
      if (cross && !request.header("access-control-request-method").empty()) {
        cors_.emplace_back("Access-Control-Allow-Methods", match.methods);
        if (const auto wanted = request.header("access-control-request-headers"); !wanted.empty())
          cors_.emplace_back("Access-Control-Allow-Headers", std::string(wanted));
        if (request.header("access-control-request-private-network") == "true")
          cors_.emplace_back("Access-Control-Allow-Private-Network", "true");
        cors_.emplace_back("Access-Control-Max-Age", "600");
      }
      return Refusal{204, {}, {{"Allow", match.methods}}};
    }
    const auto& open = options.open_paths;
    if (!options.api_keys.empty() && std::find(open.begin(), open.end(), request.path) == open.end() &&
        !key_accepted(request, options.api_keys))
      return Refusal{401, "a valid API key is needed", {{"WWW-Authenticate", "Bearer"}}};
    if (match.methods.empty()) return Refusal{404, "no such path", {}};
    if (!match.handler) return Refusal{405, "the path has no such method", {{"Allow", match.methods}}};
    if (const auto expect = request.header("expect"); !expect.empty() && !equal_ignoring_case(expect, "100-continue"))
      return Refusal{417, "the only expectation is 100-continue", {}};
    return {};
  }

  // Lets a worker run the route, and carries what it writes.
  Task<void> hand_over(Request request, BodyShare share, const Handler& handler, std::string_view path) {
    const auto exchange = std::make_shared<Exchange>(this, core_.options.limits.stream_bytes);
    exchange_ = exchange;
    struct Leave {
      StreamConnection& self;
      ~Leave() {
        const auto exchange = std::exchange(self.exchange_, nullptr);
        exchange->leave(self.lost_ || self.cut_);
      }
    } leave{*this};
    cut_ = false;
    if (lost_) co_return;
    struct Job {
      BodyShare share;  // given back behind the request
      Request request;
    };
    core_.workers.push([exchange, job = std::make_shared<Job>(std::move(share), std::move(request)), &handler] {
      if (exchange->gone()) return;
      std::shared_ptr<Reply> reply;  // outlives the handler, or its end would be an answer too
      try {
        reply = make_reply(exchange);
        handler(std::move(job->request), reply);
      } catch (const std::bad_alloc&) {
        exchange->dropped(true);
      } catch (...) {
        exchange->dropped();
      }
    });

    Exchange::Piece piece;
    while (!lost_) {
      if (!exchange->take(piece)) {
        co_await wait(kNever);
        continue;
      }
      std::string out;
      if (piece.head && co_await write_first(piece, path, out)) co_return;
      if (co_await write_body(std::move(out), piece, *exchange)) co_return;
    }
  }

  // The head, and what has nothing behind it; false: `out` is the head, and a body in pieces follows.
  Task<bool> write_first(Exchange::Piece& piece, std::string_view path, std::string& out) {
    if (piece.status == 0) {
      Refusal refusal{500, "the request was not answered", {}};
      if (piece.out_of_memory) refusal = no_memory();
      co_await refuse(std::move(refusal), path);
      co_return true;
    }
    status_ = piece.status;
    const bool bodiless = head_ || piece.status == 204 || piece.status == 304;
    if (!piece.whole && version_ == 10 && !bodiless) keep_ = false;
    append_head(out, piece.status, piece.content_type, piece.headers, !piece.whole, piece.bytes.size());
    if (!bodiless && !piece.whole) co_return false;
    if (!bodiless) {
      body_bytes_ = piece.bytes.size();
      out += piece.bytes;
    }
    piece.bytes = {};
    co_await write(out);
    cut_ = !piece.last;  // a stream that nobody wants
    co_return true;
  }

  // True when nothing follows.
  Task<bool> write_body(std::string out, Exchange::Piece& piece, Exchange& exchange) {
    const bool chunked = version_ == 11;
    if (!piece.bytes.empty()) {
      if (chunked) out += fmt::format("{:x}\r\n", piece.bytes.size());
      out += piece.bytes;
      if (chunked) out += "\r\n";
      body_bytes_ += piece.bytes.size();
    }
    if (piece.last && !piece.failed && chunked) out += "0\r\n\r\n";
    piece.bytes = {};
    co_await write(out, &exchange);
    if (piece.failed) {  // the client must not take it for complete
      keep_ = false;
      error_code ignored;
      if (!chunked) lowest().set_option(asio::socket_base::linger(true, 0), ignored);
      close();
    }
    co_return piece.last;
  }

  Core& core_;
  const std::string peer_;
  const bool refused_;
  Stream stream_;
  Timer wake_, write_timer_;
  Reserved reserved_;  // for pokes
  const size_t ahead_bytes_;
  std::array<char, kReadBytes> chunk_;
  std::string input_;  // from used_ on
  size_t used_ = 0;
  bool reading_ = false, awake_ = false, lost_ = false;
  Clock::duration linger_ = kShortLinger;

  // Of the request:
  std::shared_ptr<Exchange> exchange_;
  Headers cors_;
  uint64_t id_ = 0, body_bytes_ = 0;
  int version_ = 11, status_ = 0;
  bool keep_ = false, head_ = false;
  bool cut_ = false;  // the rest of the answer is not wanted
  Clock::time_point begun_;
};

}  // namespace

std::shared_ptr<Connection> make_connection(Core& core, Socket socket, std::string peer, bool refused) {
  error_code ignored;
  socket.non_blocking(true, ignored);
  return std::make_shared<StreamConnection<Socket>>(core, std::move(peer), refused, std::move(socket));
}

std::shared_ptr<Connection> make_tls_connection(Core& core, Socket socket, std::string peer, bool refused,
                                                asio::ssl::context& tls) {
  return std::make_shared<StreamConnection<TlsStream>>(core, std::move(peer), refused, std::move(socket), tls);
}

}  // namespace argent::server
