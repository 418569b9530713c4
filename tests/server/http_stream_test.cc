// Streams, clients that go, slow readers, TLS, Unix sockets, drain.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>

#include "fixture.h"

namespace argent::server {
namespace {

using Clock = std::chrono::steady_clock;

size_t resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) return std::stoul(line.substr(6));
  return 0;
}

constexpr std::string_view kKeep = "GET /keep HTTP/1.1\r\nHost: localhost\r\n\r\n";

TEST_F(Http, EventsArriveAsTheyAreWritten) {
  start();
  Client c = client();
  c.send(kKeep);
  const auto reply = next();
  ASSERT_TRUE(reply);
  reply->begin(200, "text/event-stream", {{"X-Model", "m"}});
  const auto head = c.head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Type"), "text/event-stream");
  EXPECT_EQ(head.header("Cache-Control"), "no-cache");
  EXPECT_EQ(head.header("X-Model"), "m");
  for (int i = 0; i < 20; ++i) {
    reply->write(fmt::format("data: {}\n\n", i));
    EXPECT_EQ(c.chunk(), fmt::format("data: {}\n\n", i));
  }
  reply->end();
  EXPECT_EQ(c.chunk(), "");
  EXPECT_EQ(c.get("/hello").body, "hello");
}

TEST_F(Http, ManySmallWritesArriveWholeAndInOrder) {
  start();
  Client c = client();
  std::string wanted;
  for (int i = 0; i < 100000; ++i) wanted += fmt::format("data: {}\n\n", i);
  const auto answer = c.get("/pieces/100000");
  EXPECT_TRUE(answer.complete);
  EXPECT_TRUE(answer.body == wanted);
}

TEST_F(Http, WritersOnSeveralThreads) {
  start();
  Client c = client();
  c.send(kKeep);
  const auto reply = next();
  ASSERT_TRUE(reply);
  reply->begin(200, "text/plain");
  std::thread writers([&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 5000; ++i) reply->write(std::string(1, char('a' + t)));
      });
    for (std::thread& thread : threads) thread.join();
    reply->end();
  });
  std::string body = c.answer().body;
  writers.join();
  EXPECT_EQ(body.size(), 20000u);
  EXPECT_EQ(std::count(body.begin(), body.end(), 'c'), 5000);
}

// The client goes in each state of its request; who answers knows within 100 ms.
TEST_F(Http, WhoHasGoneIsNoticed) {
  options.handler_threads = 1;
  start();
  for (const bool reset : {false, true})
    for (const int state : {0, 1, 2}) {
      Client c = client();
      c.send(kKeep);
      const auto reply = next();
      ASSERT_TRUE(reply);
      std::atomic<int> gone{0};
      reply->on_gone([&] { ++gone; });
      if (state >= 1) reply->begin(200, "text/event-stream");
      if (state == 2) reply->write("data: x\n\n");
      if (state >= 1) c.head();
      EXPECT_FALSE(reply->gone());
      const auto before = Clock::now();
      reset ? c.reset() : c.close();
      EXPECT_TRUE(eventually([&] { return gone == 1; }));
      EXPECT_LT(Clock::now() - before, 100ms) << state;
      EXPECT_TRUE(reply->gone());
      int late = 0;
      reply->on_gone([&] { ++late; });
      EXPECT_EQ(late, 1);
      reply->write("more");  // nothing happens
      reply->end();
      EXPECT_EQ(gone, 1);
    }
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST_F(Http, ARequestWhoseClientWentWhileItWasQueuedNeverStarts) {
  options.handler_threads = 1;
  open = false;
  start();
  std::atomic<bool> release{false}, entered{false};
  server->route("GET", "/block", [&](Request, std::shared_ptr<Reply> reply) {
    entered = true;
    eventually([&] { return release.load(); });
    reply->send(200, "");
  });
  server->open();
  Client first = client(), second = client(), third = client();
  first.send("GET /block HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return entered.load(); }));
  second.send(kKeep);
  third.send(kKeep);
  std::this_thread::sleep_for(50ms);
  second.close();
  EXPECT_TRUE(eventually([&] { return server->connections() == 2; }));
  release = true;
  ASSERT_TRUE(next());
  EXPECT_EQ(third.answer().status, 500);
  EXPECT_EQ(arrived, 1);
}

TEST_F(Http, WhoGoesAfterTheAnswerIsNotGone) {
  start();
  Client c = client();
  c.send(kKeep);
  const auto reply = next();
  std::atomic<int> gone{0};
  reply->on_gone([&] { ++gone; });
  reply->send(200, "x");
  EXPECT_EQ(c.answer().body, "x");
  c.close();
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
  EXPECT_EQ(gone, 0);
}

TEST_F(Http, ASlowReaderPausesAndResumes) {
  options.limits.stream_bytes = 64u << 10;
  start();
  Client c = client();
  c.send(kKeep);
  const auto reply = next();
  ASSERT_TRUE(reply);
  std::atomic<bool> full{false};
  std::atomic<int> changes{0};
  reply->on_pressure([&](bool now) {
    full = now;
    ++changes;
  });
  reply->begin(200, "text/plain");
  size_t written = 0;
  const std::string piece(1000, 'x');
  while (!full && written < (200u << 20)) {
    reply->write(piece);
    written += piece.size();
    if (written % 50000 == 0) std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(full);
  EXPECT_LT(written, 50u << 20);  // what sockets hold, and the bound
  std::thread reader([&] {
    EXPECT_TRUE(eventually([&] { return !full.load(); }));
    reply->end();
  });
  const auto answer = c.answer();
  reader.join();
  EXPECT_EQ(answer.body.size(), written);
  EXPECT_GE(changes, 2);  // more where sockets take what fills the bound before this thread has seen it
  EXPECT_EQ(changes % 2, 0);
}

TEST_F(Http, AReaderThatTakesNothingIsCutOff) {
  options.limits.write_time = 1s;
  start();
  Client c = client();
  c.send(kKeep);
  const auto reply = next();
  ASSERT_TRUE(reply);
  std::atomic<int> gone{0};
  reply->on_gone([&] { ++gone; });
  reply->begin(200, "text/plain");
  reply->write(std::string(50u << 20, 'x'));
  EXPECT_TRUE(eventually([&] { return gone == 1; }));
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST_F(Http, PipelinedBytesBehindAStreamDoNotHideThatTheClientGoes) {
  start();
  Client c = client();
  c.send(kKeep);
  c.send("GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto reply = next();
  std::atomic<int> gone{0};
  reply->on_gone([&] { ++gone; });
  reply->begin(200, "text/event-stream");
  c.head();
  c.close();
  EXPECT_TRUE(eventually([&] { return gone == 1; }, 100ms));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose memory is not the program's
TEST_F(Http, IdleStreamsAreSmall) {
  start();
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const int streams = files.rlim_cur < 2100 ? 400 : 1000;  // both ends of each are in this process
  std::vector<Client> clients;
  std::vector<std::shared_ptr<Reply>> replies;
  const auto add = [&] {
    clients.push_back(client());
    ASSERT_TRUE(clients.back().connected());
    clients.back().send(kKeep);
    replies.push_back(next());
    ASSERT_TRUE(replies.back());
    replies.back()->begin(200, "text/event-stream");
    replies.back()->write("data: x\n\n");
    clients.back().head();
  };
  add();
  const size_t before = resident_kib();
  while (int(clients.size()) < streams) add();
  const size_t after = resident_kib();
  RecordProperty("kib", int(after - before));
  EXPECT_LT(after - before, 20u * streams);
  for (auto& reply : replies) reply->write("data: y\n\n");
  for (Client& c : clients) EXPECT_TRUE(c.until("data: y\n\n").ends_with("data: y\n\n"));
}
#endif

TEST_F(Http, BrokenPipesDoNotKill) {
  start();
  ::signal(SIGPIPE, SIG_DFL);
  for (int i = 0; i < 20; ++i) {
    Client c = client();
    c.send("GET /pieces/100000 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    c.more();
    c.reset();
  }
  EXPECT_EQ(client().get("/hello").status, 200);
}

TEST_F(Http, DrainFinishesWhatRuns) {
  start();
  Client idle = client(), busy = client();
  EXPECT_EQ(idle.get("/hello").status, 200);
  busy.send(kKeep);
  const auto reply = next();
  std::atomic<int> result{-1};
  std::thread drainer([&] { result = server->drain(5s); });
  EXPECT_TRUE(idle.ended());
  EXPECT_FALSE(client().get("/hello").status == 200);
  EXPECT_EQ(result, -1);
  reply->send(200, "done");
  const auto answer = busy.answer();
  EXPECT_EQ(answer.body, "done");
  EXPECT_EQ(answer.header("Connection"), "close");
  EXPECT_TRUE(busy.ended());
  drainer.join();
  EXPECT_EQ(result, 1);
}

TEST_F(Http, DrainLosesPatience) {
  start();
  Client busy = client();
  busy.send(kKeep);
  const auto reply = next();
  std::atomic<int> gone{0};
  reply->on_gone([&] { ++gone; });
  EXPECT_FALSE(server->drain(0s));
  EXPECT_EQ(gone, 1);
  EXPECT_TRUE(busy.ended());
  EXPECT_EQ(server->connections(), 0u);
}

TEST_F(Http, RepliesOutliveTheServer) {
  start();
  Client c = client();
  c.send(kKeep);
  const auto reply = next();
  std::atomic<int> gone{0};
  reply->on_gone([&] { ++gone; });
  reply->begin(200, "text/event-stream");
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) reply->write("data: x\n\n"), std::this_thread::sleep_for(10us);
  });
  std::this_thread::sleep_for(20ms);
  server.reset();
  EXPECT_EQ(gone, 1);
  EXPECT_TRUE(reply->gone());
  std::this_thread::sleep_for(20ms);
  stop = true;
  writer.join();
  reply->end();
}

struct Folder {
  Folder() {
    char name[] = "/tmp/argent-http-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

TEST_F(Http, UnixSockets) {
  Folder folder;
  const std::string path = folder.path + "/s";
  options.host = "unix:" + path;
  start();
  EXPECT_EQ(server->address(), "unix:" + path);
  EXPECT_EQ(server->port(), 0);
  const auto connect = [&] {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::strcpy(to.sun_path, path.c_str());
    if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) ADD_FAILURE() << std::strerror(errno);
    return Client(fd);
  };
  EXPECT_EQ(connect().get("/hello").body, "hello");
  const auto second = Server::start(options);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message.find("in use"), std::string::npos);
  server.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  // Left behind by a server that was killed.
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::strcpy(at.sun_path, path.c_str());
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  ::close(fd);
  start();
  EXPECT_EQ(connect().get("/hello").body, "hello");
}

}  // namespace
}  // namespace argent::server
