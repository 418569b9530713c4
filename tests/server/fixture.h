// A server with a few routes, for tests through real sockets.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "client.h"
#include "server/http.h"

namespace argent::server {

using namespace std::chrono_literals;

// Waits for something that another thread does.
template <class Condition>
bool eventually(Condition condition, std::chrono::milliseconds patience = 5000ms) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(200us);
  }
  return true;
}

struct Http : ::testing::Test {
  // Before start(): 127.0.0.1 and any port, routes that answer, keep and throw.
  Http() { options.port = 0; }

  void start() {
    auto started = Server::start(options);
    ASSERT_TRUE(started) << started.error().message;
    server = std::move(*started);
    server->route("GET", "/hello",
                  [](Request, std::shared_ptr<Reply> reply) { reply->send(200, "hello", "text/plain"); });
    server->route("GET", "/health", [](Request, std::shared_ptr<Reply> reply) { reply->send(200, "{}"); });
    server->route("GET", "/none", [](Request, std::shared_ptr<Reply> reply) { reply->send(204, ""); });
    server->route("GET", "/throws", [](Request, std::shared_ptr<Reply>) { throw std::runtime_error("x"); });
    server->route("GET", "/drops", [](Request, std::shared_ptr<Reply>) {});
    server->route("GET", "/odd", [](Request, std::shared_ptr<Reply> reply) { reply->send(42, ""); });
    server->route("GET", "/split", [](Request, std::shared_ptr<Reply> reply) {
      reply->send(200, "x", "text/plain\r\nX-Evil: 1", {{"X-A", "b\r\nX-Evil: 2"}});
    });
    server->route("POST", "/echo", [](Request request, std::shared_ptr<Reply> reply) {
      reply->send(200, std::move(request.body), "text/plain", {{"X-Query", request.query}});
    });
    server->route("GET", "/pieces/{n}", [](Request request, std::shared_ptr<Reply> reply) {
      reply->begin(200, "text/event-stream");
      for (int i = 0; i < std::stoi(request.parameters[0]); ++i) reply->write(fmt::format("data: {}\n\n", i));
      reply->end();
    });
    server->route("GET", "/cut", [](Request, std::shared_ptr<Reply> reply) {
      reply->begin(200, "text/plain");
      reply->write("half");
    });
    // The test answers it: kept.
    server->route("GET", "/keep", [this](Request, std::shared_ptr<Reply> reply) { keep(std::move(reply)); });
    server->route("POST", "/keep", [this](Request, std::shared_ptr<Reply> reply) { keep(std::move(reply)); });
    if (open) server->open();
  }
  void TearDown() override {
    kept.clear();
    server.reset();
  }

  Client client() { return Client(server->port()); }
  void keep(std::shared_ptr<Reply> reply) {
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(reply));
    ++arrived;
  }
  std::shared_ptr<Reply> next() {  // the oldest kept
    std::shared_ptr<Reply> reply;
    eventually([&] {
      const std::lock_guard lock(mutex);
      if (kept.empty()) return false;
      reply = std::move(kept.front());
      kept.pop_front();
      return true;
    });
    return reply;
  }

  ServerOptions options;
  bool open = true;
  std::mutex mutex;
  std::deque<std::shared_ptr<Reply>> kept;
  std::atomic<int> arrived{0};
  std::unique_ptr<Server> server;
};

}  // namespace argent::server
