#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

#include "base/memory_reserve.h"
#include "server/http_connection.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

namespace argent::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Executor = asio::io_context::executor_type;

Workers::Workers(uint32_t threads) {
  for (uint32_t i = 0; i < std::max(1u, threads); ++i)
    threads_.emplace_back([this] {
      std::unique_lock lock(mutex_);
      while (true) {
        ready_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (stopping_) return;
        {
          const auto job = std::move(jobs_.front());
          jobs_.pop_front();
          lock.unlock();
          job();
        }
        refill_memory_reserve();
        lock.lock();
      }
    });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::push(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  ready_.notify_one();
}

namespace {

constexpr uint32_t kRefusedAtOnce = 64;  // connections beyond the limit that are told so; more are closed in silence
constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // when the process has no file descriptors left

Status load_tls(const ServerOptions& options, asio::ssl::context& tls) {
  error_code error;
  tls.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_compression, error);
  SSL_CTX_set_min_proto_version(tls.native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_options(tls.native_handle(), SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(tls.native_handle(), SSL_MODE_RELEASE_BUFFERS);
  tls.use_certificate_chain_file(options.tls_cert, error);
  if (error) return fail(Code::io, "the TLS certificate '{}' cannot be used: {}", options.tls_cert, error.message());
  // A key with a passphrase would be asked for on the terminal.
  tls.set_password_callback([](size_t, asio::ssl::context::password_purpose) { return std::string(); }, error);
  tls.use_private_key_file(options.tls_key, asio::ssl::context::pem, error);
  if (error) return fail(Code::io, "the TLS key '{}' cannot be used: {}", options.tls_key, error.message());
  if (SSL_CTX_check_private_key(tls.native_handle()) != 1)
    return fail(Code::io, "the TLS key '{}' is not that of the certificate '{}'", options.tls_key, options.tls_cert);
  return {};
}

// As many files as the connections may need, where the process may raise its own limit.
void allow_files(uint32_t connections) {
  constexpr rlim_t kOthers = 256;  // of the rest of the program
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= connections + kOthers) return;
  files.rlim_cur = std::min(files.rlim_max, connections + kOthers);
  (void)::setrlimit(RLIMIT_NOFILE, &files);
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string peer_name(const tcp::endpoint& peer) { return peer.address().to_string(); }
std::string peer_name(const asio::local::stream_protocol::endpoint&) { return "unix"; }

class HttpServer final : public Server {
 public:
  explicit HttpServer(ServerOptions options)
      : io_(1), work_(io_.get_executor()), tls_(asio::ssl::context::tls_server), core_(std::move(options)) {
    core_.hosts = core_.options.allowed_hosts;
    core_.closed = [this] {
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
    };
  }

  ~HttpServer() override {
    if (thread_.joinable()) {
      stop_accepting();
      abort_all();
      work_.reset();
      thread_.join();
    }
    if (!unix_path_.empty()) ::unlink(unix_path_.c_str());
  }

  Status listen() {
    const ServerOptions& options = core_.options;
    if (options.tls_cert.empty() != options.tls_key.empty())
      return fail(Code::invalid, "TLS needs a certificate and its key; only the {} is given",
                  options.tls_key.empty() ? "certificate" : "key");
    for (const std::string& key : options.api_keys)
      if (key.empty()) return fail(Code::invalid, "an API key is empty");
    if (encrypted()) ARGENT_TRY(load_tls(options, tls_));

    std::string host = options.host;
    if (host.starts_with("unix:")) {
      ARGENT_TRY(listen_unix(host.substr(5)));
    } else if (host == "localhost") {
      port_ = options.port;
      ARGENT_TRY(listen_tcp(asio::ip::address_v4::loopback()));
      (void)listen_tcp(asio::ip::address_v6::loopback());  // where there is IPv6; browsers may try it first
      address_ = fmt::format("{}://localhost:{}", scheme(), port_);
    } else {
      if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
      error_code error;
      const auto ip = asio::ip::make_address(host, error);
      if (error)
        return fail(Code::invalid, "'{}' is neither an IP address, nor localhost, nor unix:PATH", options.host);
      port_ = options.port;
      ARGENT_TRY(listen_tcp(ip));
      address_ = fmt::format("{}://{}:{}", scheme(), ip.is_v6() ? "[" + ip.to_string() + "]" : ip.to_string(), port_);
      if (const std::string name = host_name(); !ip.is_loopback() && !name.empty()) {
        core_.hosts.push_back(name);
        core_.hosts.push_back(name + ".local");
      }
    }
    allow_files(options.limits.connections);
    for (auto& acceptor : tcp_) accept(*acceptor);
    if (unix_) accept(*unix_);
    thread_ = std::thread([this] {
      while (true) {
        try {
          io_.run();
          return;
        } catch (...) {  // of one connection's call; the others go on
        }
      }
    });
    return {};
  }

  void route(std::string_view method, std::string_view pattern, Handler handler) override {
    core_.routes.add(method, pattern, std::move(handler));
  }

  void open() override {
    asio::post(io_, [this] {
      core_.opened = true;
      for (Connection* connection : core_.connections) connection->wake();
    });
  }

  uint16_t port() const override { return port_; }
  std::string address() const override { return address_; }
  uint32_t connections() const override { return core_.count; }

  bool drain(std::chrono::seconds patience) override {
    stop_accepting();
    bool finished;
    {
      std::unique_lock lock(mutex_);
      finished = changed_.wait_for(lock, patience, [&] { return core_.count == 0; });
    }
    abort_all();
    return finished;
  }

 private:
  using UnixAcceptor = asio::basic_socket_acceptor<asio::local::stream_protocol, Executor>;
  using TcpAcceptor = asio::basic_socket_acceptor<tcp, Executor>;

  bool encrypted() const { return !core_.options.tls_cert.empty(); }
  const char* scheme() const { return encrypted() ? "https" : "http"; }

  Status listen_tcp(const asio::ip::address& ip) {
    const tcp::endpoint endpoint(ip, port_);
    auto acceptor = std::make_unique<TcpAcceptor>(io_.get_executor());
    error_code error;
    acceptor->open(endpoint.protocol(), error);
    if (!error) acceptor->set_option(asio::socket_base::reuse_address(true), error);
    if (!error && ip.is_v6()) acceptor->set_option(asio::ip::v6_only(!ip.is_unspecified()), error);
    if (!error) acceptor->bind(endpoint, error);
    if (!error) acceptor->listen(asio::socket_base::max_listen_connections, error);
    if (error) return fail(Code::io, "cannot listen on {} port {}: {}", ip.to_string(), port_, error.message());
    port_ = acceptor->local_endpoint(error).port();
    tcp_.push_back(std::move(acceptor));
    return {};
  }

  Status listen_unix(const std::string& path) {
    if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path) || path.find('\0') != std::string::npos)
      return fail(Code::invalid, "a socket's path has 1 to {} bytes, not {}", sizeof(sockaddr_un::sun_path) - 1,
                  path.size());
    const asio::local::stream_protocol::endpoint endpoint(path);
    struct stat info;
    if (::lstat(path.c_str(), &info) == 0) {
      if (!S_ISSOCK(info.st_mode)) return fail(Code::io, "'{}' is there and is no socket", path);
      asio::local::stream_protocol::socket probe(io_);
      error_code error;
      probe.connect(endpoint, error);
      if (error != asio::error::connection_refused) return fail(Code::io, "'{}' is in use", path);
      ::unlink(path.c_str());  // of a server that is gone
    }
    unix_ = std::make_unique<UnixAcceptor>(io_.get_executor());
    error_code error;
    unix_->open(endpoint.protocol(), error);
    if (!error) unix_->bind(endpoint, error);
    if (!error) unix_path_ = path;
    if (!error) unix_->listen(asio::socket_base::max_listen_connections, error);
    if (error) return fail(Code::io, "cannot listen on '{}': {}", path, error.message());
    address_ = "unix:" + path;
    core_.any_host = true;
    return {};
  }

  template <class Acceptor>
  void accept(Acceptor& acceptor) {
    acceptor.async_accept([this, &acceptor](error_code error, auto socket) {
      if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
      if (error == asio::error::no_descriptors || error == asio::error::no_buffer_space ||
          error == asio::error::no_memory || error == boost::system::errc::too_many_files_open_in_system) {
        const auto pause = std::make_shared<asio::steady_timer>(io_, kAcceptPause);
        pause->async_wait([this, &acceptor, pause](error_code) {
          if (acceptor.is_open()) accept(acceptor);
        });
        return;
      }
      try {
        if (!error) connect(std::move(socket));
      } catch (...) {  // no memory for it: closed
      }
      accept(acceptor);
    });
  }

  template <class Accepted>
  void connect(Accepted accepted) {
    const uint32_t limit = core_.options.limits.connections;
    if (core_.count >= limit + kRefusedAtOnce) return;
    error_code error;
    std::string peer = peer_name(accepted.remote_endpoint(error));
    if constexpr (std::is_same_v<typename Accepted::protocol_type, tcp>)
      accepted.set_option(tcp::no_delay(true), error);
    const bool refused = core_.count >= limit;
    Socket socket(std::move(accepted));
    (encrypted() ? make_tls_connection(core_, std::move(socket), std::move(peer), refused, tls_)
                 : make_connection(core_, std::move(socket), std::move(peer), refused))
        ->start();
  }

  // Runs on the server's thread, and waits for it.
  template <class Call>
  void call(Call f) {
    std::unique_lock lock(mutex_);
    bool done = false;
    asio::post(io_, [&] {
      f();
      const std::lock_guard lock(mutex_);
      done = true;
      changed_.notify_all();
    });
    changed_.wait(lock, [&] { return done; });
  }

  void stop_accepting() {
    call([this] {
      error_code ignored;
      for (auto& acceptor : tcp_) acceptor->close(ignored);
      if (unix_) unix_->close(ignored);
      core_.draining = true;
      for (Connection* connection : core_.connections) connection->wake();
    });
  }

  void abort_all() {
    call([this] {
      for (Connection* connection : core_.connections) connection->abort();
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return core_.count == 0; });
  }

  asio::io_context io_;
  asio::executor_work_guard<Executor> work_;
  asio::ssl::context tls_;
  std::vector<std::unique_ptr<TcpAcceptor>> tcp_;
  std::unique_ptr<UnixAcceptor> unix_;
  std::string address_, unix_path_;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  Core core_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  auto server = std::make_unique<HttpServer>(std::move(options));
  ARGENT_TRY(server->listen());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace argent::server
