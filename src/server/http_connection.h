// One client's connection, plain or TLS, on the thread of the server.
#pragma once

#include <utility>  // before Asio: Boost 1.74 needs it

#include <atomic>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "server/http_checks.h"
#include "server/http_exchange.h"

namespace argent::server {

// TCP and Unix sockets are one type, so a connection is compiled twice only: plain and TLS.
using Socket =
    boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, boost::asio::io_context::executor_type>;

// The threads that run routes, in the order of arrival.
class Workers {
 public:
  explicit Workers(uint32_t threads);
  ~Workers();  // jobs that wait are dropped, those that run are waited for
  void push(std::function<void()> job);

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// One request's share of the bytes that all requests' bodies take.
class BodyShare {
 public:
  explicit BodyShare(std::atomic<size_t>& sum) : sum_(sum) {}
  BodyShare(BodyShare&& other) : sum_(other.sum_), bytes_(std::exchange(other.bytes_, 0)) {}
  ~BodyShare() { sum_ -= bytes_; }
  size_t set(size_t bytes) {  // returns the new sum
    const size_t change = bytes - std::exchange(bytes_, bytes);
    return (sum_ += change);
  }

 private:
  std::atomic<size_t>& sum_;
  size_t bytes_ = 0;
};

class Connection {
 public:
  virtual ~Connection() = default;
  virtual void start() = 0;
  virtual void wake() = 0;   // the server's state has changed
  virtual void abort() = 0;  // closes at once
};

// What the connections of a server share. All but `count` belongs to the thread of the server.
struct Core {
  explicit Core(ServerOptions o) : options(std::move(o)), workers(options.handler_threads) {}

  const ServerOptions options;
  std::vector<std::string> hosts;  // names this server goes by; options.allowed_hosts among them
  bool any_host = false;           // a Unix socket: no browser comes here
  RouteTable routes;
  bool opened = false, draining = false;
  uint64_t last_id = 0;
  std::unordered_set<Connection*> connections;
  std::atomic<uint32_t> count{0};     // of connections
  std::atomic<size_t> body_bytes{0};  // of BodyShares
  std::function<void()> closed;       // a connection has ended
  Workers workers;
};

// refused: it gets a 503.
std::shared_ptr<Connection> make_connection(Core& core, Socket socket, std::string peer, bool refused);
std::shared_ptr<Connection> make_tls_connection(Core& core, Socket socket, std::string peer, bool refused,
                                                boost::asio::ssl::context& tls);

}  // namespace argent::server
