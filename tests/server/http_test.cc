// The server through real sockets: requests, answers, limits, checks.
#include "server/http.h"

#include <future>

#include "fixture.h"

namespace argent::server {
namespace {

TEST_F(Http, AnswersAndKeepsTheConnection) {
  start();
  Client c = client();
  std::string last;
  for (int i = 0; i < 3; ++i) {
    const auto answer = c.get("/hello?x=1");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "hello");
    EXPECT_EQ(answer.header("Content-Type"), "text/plain");
    EXPECT_EQ(answer.header("Connection"), "");
    EXPECT_TRUE(answer.header("Date").ends_with(" GMT"));
    EXPECT_NE(answer.header("x-request-id"), last);
    last = answer.header("x-request-id");
  }
  EXPECT_EQ(server->connections(), 1u);
  c.close();
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST_F(Http, PipelinedRequestsAreAnsweredInOrder) {
  start();
  Client c = client();
  std::string all;
  for (int i = 0; i < 200; ++i)
    all += fmt::format("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n{}", 100 + i);
  std::thread sender([&] { c.send(all); });
  for (int i = 0; i < 200; ++i) EXPECT_EQ(c.answer().body, std::to_string(100 + i));
  sender.join();
}

TEST_F(Http, ARequestInPieces) {
  start();
  Client c = client();
  for (const char byte : std::string(
           "POST /echo?q HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")) {
    c.send(std::string(1, byte));
    std::this_thread::sleep_for(200us);
  }
  const auto answer = c.answer();
  EXPECT_EQ(answer.body, "abc");
  EXPECT_EQ(answer.header("X-Query"), "q");
}

TEST_F(Http, LargeBodiesBothWays) {
  start();
  Client c = client();
  std::string body(20u << 20, 'x');
  for (size_t i = 0; i < body.size(); i += 4099) body[i] = char('a' + i % 26);
  std::thread sender([&] {
    c.send(fmt::format("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.size()));
    c.send(body);
  });
  const auto answer = c.answer();
  sender.join();
  EXPECT_TRUE(answer.body == body);
  EXPECT_EQ(c.get("/hello").body, "hello");
}

TEST_F(Http, Expect100) {
  start();
  Client c = client();
  c.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(c.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  c.send("ab");
  EXPECT_EQ(c.answer().body, "ab");
  c.send("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(c.answer().status, 404);  // in place of the 100
  Client other = client();
  other.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: coffee\r\n\r\n");
  EXPECT_EQ(other.answer().status, 417);
}

TEST_F(Http, HeadOptionsAndMethods) {
  start();
  Client c = client();
  const auto head = c.get("/hello", "", "HEAD");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Length"), "5");
  const auto stream = c.get("/pieces/3", "", "HEAD");
  EXPECT_EQ(stream.header("Transfer-Encoding"), "chunked");
  EXPECT_EQ(c.get("/nowhere", "", "HEAD").status, 404);
  const auto options_answer = c.get("/keep", "", "OPTIONS");
  EXPECT_EQ(options_answer.status, 204);
  EXPECT_EQ(options_answer.header("Allow"), "GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(options_answer.header("Content-Length"), "");
  EXPECT_EQ(c.get("*", "", "OPTIONS").status, 204);
  EXPECT_EQ(c.get("/nowhere", "", "OPTIONS").status, 404);
  const auto wrong = c.get("/hello", "", "PATCH");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("Allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(c.get("/none").status, 204);
  EXPECT_EQ(c.get("/hello").body, "hello");  // still in step
}

TEST_F(Http, AStreamThatHeadAskedForIsNotWanted) {
  start();
  Client c = client();
  c.send("HEAD /keep HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto reply = next();
  ASSERT_TRUE(reply);
  std::atomic<int> gone{0};
  reply->on_gone([&] { ++gone; });
  reply->begin(200, "text/event-stream");
  EXPECT_EQ(c.answer(true).status, 200);
  EXPECT_TRUE(eventually([&] { return gone == 1; }));
  reply->write("x");
  reply->end();
  EXPECT_EQ(c.get("/hello").body, "hello");
}

TEST_F(Http, OldClients) {
  start();
  {
    Client c = client();
    c.send("GET /hello HTTP/1.0\r\n\r\n");
    const auto answer = c.answer();
    EXPECT_EQ(answer.body, "hello");
    EXPECT_EQ(answer.header("Connection"), "close");
    EXPECT_TRUE(c.ended());
  }
  Client c = client();
  c.send("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(c.answer().header("Connection"), "keep-alive");
  c.send("GET /pieces/2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto stream = c.answer();
  EXPECT_EQ(stream.header("Transfer-Encoding"), "");
  EXPECT_EQ(stream.header("Connection"), "close");
  EXPECT_EQ(stream.body, "data: 0\n\ndata: 1\n\n");
}

TEST_F(Http, ConnectionClose) {
  start();
  Client c = client();
  const auto answer = c.get("/hello", "Connection: close\r\n");
  EXPECT_EQ(answer.header("Connection"), "close");
  EXPECT_TRUE(c.ended());
}

TEST_F(Http, RoutesThatFail) {
  start();
  Client c = client();
  for (const char* path : {"/throws", "/drops", "/odd"}) EXPECT_EQ(c.get(path).status, 500) << path;
  const auto split = c.get("/split");
  EXPECT_EQ(split.header("X-Evil"), "");
  EXPECT_EQ(split.body, "x");
  const auto cut = c.get("/cut");
  EXPECT_EQ(cut.status, 200);
  EXPECT_EQ(cut.body, "half");
  EXPECT_FALSE(cut.complete);
  EXPECT_TRUE(c.ended());
}

TEST_F(Http, LimitsAreAnswered) {
  options.limits.body_bytes = 1000;
  options.limits.header_bytes = 2000;
  start();
  const std::string line = "POST /echo HTTP/1.1\r\nHost: localhost\r\n";
  const std::pair<std::string, int> cases[] = {
      {"\x16\x03\x01garbage\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET hello HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET /" + std::string(3000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414},
      {line + "A: " + std::string(3000, 'a') + "\r\n\r\n", 431},
      {line + "Content-Length: 1001\r\n\r\n" + std::string(1001, 'a'), 413},
      {line + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, 'a') + "\r\n0\r\n\r\n", 413},
      {line + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {line + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"GET / HTTP/3.0\r\n\r\n", 505},
      {line + "Content-Length: 1000\r\n\r\n" + std::string(1000, 'a'), 200},
  };
  for (const auto& [text, status] : cases) {
    Client c = client();
    c.send(text);
    const auto answer = c.answer();
    EXPECT_EQ(answer.status, status) << text.substr(0, 100);
    EXPECT_TRUE(answer.complete);
  }
  // A body far beyond the limit: the answer is not lost to a reset while the client still sends.
  Client c = client();
  std::thread sender([&] {
    c.send(line + "Content-Length: 8000000\r\n\r\n");
    EXPECT_TRUE(c.send(std::string(8000000, 'a')));
  });
  EXPECT_EQ(c.answer().status, 413);
  sender.join();
  EXPECT_TRUE(c.ended());
}

TEST_F(Http, BodiesOfAllRequestsHaveABound) {
  options.limits.all_body_bytes = 10000;
  options.error = [](int status, std::string_view message, std::string_view path) {
    return std::pair(fmt::format("{} {} {}", status, message, path), std::string("text/plain"));
  };
  std::promise<void> release;
  open = false;
  start();
  server->route("POST", "/hold", [&, released = release.get_future().share()](Request, std::shared_ptr<Reply> reply) {
    released.wait();
    reply->send(200, "held", "text/plain");
  });
  server->open();
  const auto post = [](std::string_view path, size_t announced, size_t sent) {
    return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", path, announced,
                       std::string(sent, 'a'));
  };
  const auto refused = [&](const std::string& text) {
    Client c = client();
    c.send(text);
    const auto answer = c.answer();
    EXPECT_EQ(answer.body, "503 the bodies of all requests take too much memory /echo");
    EXPECT_EQ(answer.header("Retry-After"), "1");
    EXPECT_TRUE(c.ended());
    return answer.status == 503;
  };
  const auto echoes = [&](size_t bytes) {
    Client c = client();
    c.send(post("/echo", bytes, bytes));
    const auto answer = c.answer();
    return answer.status == 200 && answer.body.size() == bytes;
  };
  EXPECT_TRUE(echoes(10000));
  EXPECT_TRUE(refused(post("/echo", 10001, 10001)));
  EXPECT_TRUE(refused("POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2711\r\n" +
                      std::string(10001, 'a') + "\r\n0\r\n\r\n"));
  for (int round = 0; round < 20; ++round) EXPECT_TRUE(eventually([&] { return echoes(10000); }));  // nothing is left

  // A body that is not yet whole, and one that its route still holds: what is announced takes nothing.
  Client part = client(), held = client(), announced = client();
  part.send(post("/echo", 6000, 5000));
  held.send(post("/hold", 3000, 3000));
  announced.send(post("/echo", 9000, 0));
  EXPECT_TRUE(eventually([&] { return !echoes(2001); }));
  EXPECT_TRUE(refused(post("/echo", 2001, 2001)));
  EXPECT_TRUE(eventually([&] { return echoes(2000); }));
  EXPECT_EQ(client().get("/hello").status, 200);
  part.close();
  EXPECT_TRUE(eventually([&] { return echoes(7000); }));
  release.set_value();
  EXPECT_EQ(held.answer().body, "held");
  EXPECT_TRUE(eventually([&] { return echoes(10000); }));
}

TEST_F(Http, TimesAreAnswered) {
  options.limits.header_time = options.limits.body_time = options.limits.idle_time = 1s;
  start();
  Client idle = client(), head = client(), body = client(), used = client();
  EXPECT_EQ(used.get("/hello").status, 200);
  head.send("GET /hello HTTP/1.1\r\nHo");
  body.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_EQ(head.answer().status, 408);
  EXPECT_EQ(body.answer().status, 408);
  EXPECT_TRUE(idle.ended());
  EXPECT_TRUE(used.ended());
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST_F(Http, TooManyConnections) {
  options.limits.connections = 3;
  start();
  std::vector<Client> good;
  for (int i = 0; i < 3; ++i) {
    good.push_back(client());
    EXPECT_EQ(good.back().get("/hello").status, 200);
  }
  Client bad = client();
  const auto answer = bad.get("/hello");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.header("Retry-After"), "1");
  EXPECT_NE(answer.header("x-request-id"), "");
  EXPECT_TRUE(bad.ended());
  good.pop_back();
  EXPECT_TRUE(eventually([&] { return client().get("/hello").status == 200; }));
  EXPECT_EQ(good[0].get("/hello").status, 200);
}

TEST_F(Http, Keys) {
  options.api_keys = {"k1", "k2"};
  start();
  Client c = client();
  const auto refused = c.get("/hello");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(c.get("/nowhere").status, 401);
  EXPECT_EQ(c.get("/hello", "Authorization: Bearer k3\r\n").status, 401);
  EXPECT_EQ(c.get("/hello", "Authorization: Bearer k2\r\n").status, 200);
  EXPECT_EQ(c.get("/hello", "X-API-Key: k1\r\n").status, 200);
  EXPECT_EQ(c.get("/health").status, 200);
}

TEST_F(Http, HostsAndAbsoluteTargets) {
  options.allowed_hosts = {"box.lan"};
  start();
  Client c = client();
  const auto with_host = [&](std::string_view target, std::string_view host) {
    c.send(fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", target, host));
    return c.answer().status;
  };
  EXPECT_EQ(with_host("/hello", "127.0.0.1:1"), 200);
  EXPECT_EQ(with_host("/hello", "box.lan:8080"), 200);
  EXPECT_EQ(with_host("/hello", "evil.example"), 421);
  EXPECT_EQ(with_host("/hello", ""), 421);
  EXPECT_EQ(with_host("http://localhost:9/hello?a", "evil.example"), 200);
  EXPECT_EQ(with_host("http://evil.example/hello", "localhost"), 421);
}

TEST_F(Http, Origins) {
  options.allowed_origins = {"https://app.example"};
  options.api_keys = {"k"};
  start();
  Client c = client();
  EXPECT_EQ(c.get("/health", "Origin: http://localhost:80\r\n").status, 200);
  EXPECT_EQ(c.get("/health", "Origin: https://evil.example\r\n").status, 403);
  EXPECT_EQ(c.get("/health", "Origin: null\r\n").status, 403);
  const auto allowed = c.get("/health", "Origin: https://app.example\r\n");
  EXPECT_EQ(allowed.header("Access-Control-Allow-Origin"), "https://app.example");
  EXPECT_EQ(allowed.header("Vary"), "Origin");
  const auto refused = c.get("/hello", "Origin: https://app.example\r\n");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header("Access-Control-Allow-Origin"), "https://app.example");  // so the page can read why
  const auto preflight = c.get("/keep",
                               "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n"
                               "Access-Control-Request-Headers: authorization,content-type\r\n",
                               "OPTIONS");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.header("Access-Control-Allow-Methods"), "GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(preflight.header("Access-Control-Allow-Headers"), "authorization,content-type");
  EXPECT_EQ(c.get("/keep", "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n", "OPTIONS").status,
            403);
  EXPECT_EQ(c.get("/health").header("Access-Control-Allow-Origin"), "");
}

TEST_F(Http, ErrorsHaveTheFormOfTheApplication) {
  options.error = [](int status, std::string_view message, std::string_view path) {
    if (path == "/throw-here") throw std::runtime_error("x");
    return std::pair<std::string, std::string>(fmt::format("[{} {} {}]", status, message, path), "application/json");
  };
  start();
  Client c = client();
  const auto answer = c.get("/no%20where");
  EXPECT_EQ(answer.body, "[404 no such path /no where]");
  EXPECT_EQ(answer.header("Content-Type"), "application/json");
  EXPECT_EQ(c.get("/drops").body, "[500 the request was not answered /drops]");
  EXPECT_EQ(c.get("/throw-here").status, 404);
}

TEST_F(Http, TheLog) {
  std::mutex lock;
  std::vector<std::string> lines;
  options.log = [&](const Request& request, int status, uint64_t bytes, std::chrono::nanoseconds time) {
    const std::lock_guard guard(lock);
    lines.push_back(fmt::format("{} {} {} {} {}{}", request.method, request.path, request.route, status, bytes,
                                time.count() > 0 && request.peer == "127.0.0.1" && request.id > 0 ? "" : "?"));
  };
  start();
  Client c = client();
  c.get("/hello");
  c.get("/pieces/2");
  c.get("/nowhere");
  c.send("garbage\r\n\r\n");
  c.answer();
  Client gone = client();
  gone.send("GET /keep HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(next());
  EXPECT_TRUE(eventually([&] {
    gone.close();
    const std::lock_guard guard(lock);
    return lines.size() >= 5;
  }));
  const std::lock_guard guard(lock);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0], "GET /hello /hello 200 5");
  EXPECT_EQ(lines[1], "GET /pieces/2 /pieces/{n} 200 18");
  EXPECT_EQ(lines[2], "GET /nowhere  404 13");
  EXPECT_EQ(lines[3], "   400 26");
}

TEST_F(Http, WaitsUntilItIsOpen) {
  open = false;
  start();
  Client c = client();
  c.send("GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_FALSE(c.more(100));
  server->open();
  EXPECT_EQ(c.answer().body, "hello");
}

TEST(HttpStart, WhatCannotBe) {
  const auto fails = [](ServerOptions options, Code code, std::string_view part) {
    options.port = options.port == 8080 ? 0 : options.port;
    const auto server = Server::start(std::move(options));
    ASSERT_FALSE(server) << part;
    EXPECT_EQ(server.error().code, code) << part;
    EXPECT_NE(server.error().message.find(part), std::string::npos) << server.error().message;
    EXPECT_EQ(server.error().message.find('\n'), std::string::npos);
  };
  ServerOptions options;
  options.host = "no.such.host";
  fails(options, Code::invalid, "no.such.host");
  options.host = "unix:";
  fails(options, Code::invalid, "1 to");
  options.host = "unix:" + std::string(200, 'x');
  fails(options, Code::invalid, "not 200");
  options.host = "unix:/no/such/folder/s";
  fails(options, Code::io, "/no/such/folder/s");
  options.host = "unix:/";
  fails(options, Code::io, "no socket");
  options.host = "192.0.2.1";
  fails(options, Code::io, "192.0.2.1");
  options.host = "127.0.0.1";
  options.api_keys = {""};
  fails(options, Code::invalid, "empty");
  options.api_keys.clear();
  options.tls_cert = "/no/such.pem";
  fails(options, Code::invalid, "only the certificate");
  options.tls_key = "/no/such.key";
  fails(options, Code::io, "/no/such.pem");
  options.tls_cert.clear();
  fails(options, Code::invalid, "only the key");
  options.tls_key.clear();
  options.port = 0;
  const auto first = Server::start(options);
  ASSERT_TRUE(first);
  options.port = (*first)->port();
  fails(options, Code::io, std::to_string(options.port));
}

TEST(HttpStart, Addresses) {
  const auto hello = [](ServerOptions options) {
    auto server = *Server::start(std::move(options));
    server->route("GET", "/", [](Request request, std::shared_ptr<Reply> reply) { reply->send(200, request.peer); });
    server->open();
    return server;
  };
  ServerOptions options;
  options.port = 0;
  options.host = "localhost";
  {
    const auto server = hello(options);
    EXPECT_EQ(server->address(), fmt::format("http://localhost:{}", server->port()));
    EXPECT_EQ(Client(server->port()).get("/").body, "127.0.0.1");
  }
  options.host = "0.0.0.0";
  EXPECT_EQ(Client(hello(options)->port()).get("/").body, "127.0.0.1");
  for (const char* host : {"::1", "[::1]", "::"}) {
    options.host = host;
    auto started = Server::start(options);
    if (!started) {
      GTEST_LOG_(INFO) << "no IPv6 here: " << started.error().message;
      break;
    }
    started = Result<std::unique_ptr<Server>>(Error{});
    const auto server = hello(options);
    if (options.host != "::") {
      EXPECT_EQ(server->address(), fmt::format("http://[::1]:{}", server->port()));
      const int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
      sockaddr_in6 to{};
      to.sin6_family = AF_INET6;
      to.sin6_port = htons(server->port());
      to.sin6_addr = in6addr_loopback;
      ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
      EXPECT_EQ(Client(fd).get("/").body, "::1");
    } else {
      EXPECT_EQ(Client(server->port()).get("/").status, 200);  // both families
    }
  }
}

}  // namespace
}  // namespace argent::server
