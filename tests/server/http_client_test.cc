// How a client reads responses and server-sent events, cut anywhere, and URLs.
#include "server/http_client.h"

#include <gtest/gtest.h>

#include "server/http_reader.h"

namespace argent::server {
namespace {

struct Read {
  bool wrong = false, whole = false, keep = false;
  int status = 0;
  std::string body, rest, message;
};

// Gives the text in pieces of n bytes, then the end of the connection.
Read read_response(const std::string& text, size_t n) {
  Read read;
  ResponseReader reader;
  for (size_t at = 0; at < text.size() && !reader.done();) {
    const std::string_view piece = std::string_view(text).substr(at, n);
    const auto taken = reader.take(piece, [&](std::string_view bytes) { return read.body += bytes, true; });
    if (!taken) return read.wrong = true, read.message = taken.error().message, read;
    at += *taken;
    read.rest = text.substr(at);
  }
  const Status end = reader.end();
  read.whole = bool(end);
  if (!end) read.message = end.error().message;
  read.status = reader.status();
  read.keep = reader.keep_alive();
  return read;
}

void expect_whole(const std::string& text, int status, const std::string& body, bool keep,
                  const std::string& rest = "") {
  for (const size_t n : {size_t(1), size_t(2), size_t(3), size_t(7), text.size()}) {
    const Read read = read_response(text, n);
    EXPECT_TRUE(read.whole) << text << "\nby " << n << ": " << read.message;
    EXPECT_EQ(read.status, status) << text;
    EXPECT_EQ(read.body, body) << text << "\nby " << n;
    EXPECT_EQ(read.keep, keep) << text;
    EXPECT_EQ(read.rest, rest) << text;
  }
}

TEST(ResponseReader, bodies_of_each_kind) {
  expect_whole("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", true);
  expect_whole("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", true);
  expect_whole("HTTP/1.1 200\r\ncontent-length:5\r\nConnection: Close\r\n\r\nhello", 200, "hello", false);
  expect_whole("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", false);
  expect_whole("HTTP/1.0 200 OK\nContent-Length: 2\nConnection: keep-alive\n\nhi", 200, "hi", true);
  expect_whole("HTTP/1.1 404 Not Found\r\n\r\nto the end", 404, "to the end", false);
  expect_whole("HTTP/1.1 204 No Content\r\n\r\n", 204, "", true);
  expect_whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=\"y\"\r\n world\r\n0\r\n\r\n",
               200, "hello world", true);
  expect_whole(
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\nContent-Length: 9\r\n\r\n00a \r\n0123456789\r\n000\r\nA: "
      "b\r\n\r\n",
      200, "0123456789", true);
  expect_whole(
      "HTTP/1.1 100 Continue\r\nA: b\r\n\r\nHTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
      200, "x", true);
  expect_whole("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 200, "x", true);
}

TEST(ResponseReader, what_follows_is_left) {
  const std::string text = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP";
  EXPECT_EQ(read_response(text, text.size()).rest, "HTTP");
}

TEST(ResponseReader, cut_off_is_not_whole) {
  for (const std::string text : {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
                                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"})
    for (size_t length = 0; length < text.size(); ++length) {
      const Read read = read_response(text.substr(0, length), 3);
      EXPECT_FALSE(read.whole) << text.substr(0, length);
      EXPECT_FALSE(read.keep);
      EXPECT_FALSE(read.wrong);
    }
}

TEST(ResponseReader, nonsense_is_refused) {
  const std::string chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& text : {std::string("SSH-2.0-OpenSSH\r\n"),
                                  std::string("HTTP/2 200\r\n"),
                                  std::string("HTTP/1.1 2x0 OK\r\n"),
                                  std::string("HTTP/1.1 099 Low\r\n"),
                                  std::string("HTTP/1.1 2000\r\n"),
                                  std::string("\r\n"),
                                  std::string("HTTP/1.1 200 OK\r\nno colon\r\n"),
                                  std::string("HTTP/1.1 200 OK\r\n: x\r\n"),
                                  std::string("HTTP/1.1 200 OK\r\nA : x\r\n"),
                                  std::string("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
                                  std::string("HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\n"),
                                  std::string("HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n"),
                                  std::string("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n"),
                                  std::string("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
                                  chunked + "\r\n",
                                  chunked + "x\r\n",
                                  chunked + "-1\r\n",
                                  chunked + "0x5\r\n",
                                  chunked + "fffffffffffffffff\r\n",
                                  chunked + "2\r\nabc\r\n",
                                  "HTTP/1.1 200 OK\r\nA: " + std::string(70000, 'a')}) {
    EXPECT_TRUE(read_response(text, text.size()).wrong) << text.substr(0, 99);
    EXPECT_TRUE(read_response(text, 5).wrong) << text.substr(0, 99);
  }
}

TEST(ResponseReader, stops_where_no_more_is_wanted) {
  ResponseReader reader;
  const std::string text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
  const auto taken = reader.take(text.substr(0, 40), [](std::string_view) { return false; });
  ASSERT_TRUE(taken);
  EXPECT_EQ(*taken, 40u);
  EXPECT_FALSE(reader.done());
}

std::string events_of(const std::string& text, size_t n) {
  EventReader reader;
  std::string all;
  for (size_t at = 0; at < text.size(); at += n) {
    const auto more =
        reader.take(std::string_view(text).substr(at, n), [&](std::string_view type, std::string_view data) {
          all += "[" + std::string(type) + "|" + std::string(data) + "]";
          return true;
        });
    EXPECT_TRUE(more && *more);
  }
  return all;
}

TEST(EventReader, events_cut_anywhere) {
  const std::pair<std::string, std::string> cases[] = {
      {"data: a\n\ndata:b\r\n\r\ndata:  c\r\r", "[|a][|b][| c]"},
      {"data: one\ndata: two\n\n", "[|one\ntwo]"},
      {"data: one\r\ndata: two\r\n\r\ndata: a\rdata: b\r\r", "[|one\ntwo][|a\nb]"},
      {": comment\nid: 7\nretry: 5\nevent: error\ndata: x\n\ndata: y\n\n", "[error|x][|y]"},
      {"event: lonely\n\ndata: x\n\n", "[|x]"},
      {"data\n\n", "[|]"},
      {"\xef\xbb\xbf"
       "data: bom\n\n",
       "[|bom]"},
      {"\n\n\ndata: x\n\n\n\n", "[|x]"},
      {"data: never ended\n", ""},
      {"data: x\n\ndata: cut", "[|x]"},
      {"datax: 1\nDATA: 2\n data: 3\n\n", ""},
  };
  for (const auto& [text, events] : cases)
    for (const size_t n : {size_t(1), size_t(2), size_t(5), text.size()}) EXPECT_EQ(events_of(text, n), events) << text;
}

TEST(EventReader, stops_and_bounds) {
  EventReader reader;
  int n = 0;
  const auto stop = [&](std::string_view, std::string_view) { return ++n, false; };
  const auto more = reader.take("data: a\n\ndata: b\n\n", stop);
  EXPECT_TRUE(more && !*more);
  EXPECT_EQ(n, 1);
  EventReader endless;
  const std::string piece(1 << 20, 'x');
  bool refused = false;
  for (int i = 0; i < 20 && !refused; ++i) refused = !endless.take(piece, stop);
  EXPECT_TRUE(refused);
}

TEST(Url, parts) {
  const auto url = [](std::string_view text) {
    const auto u = parse_url(text);
    return u ? fmt::format("{} {} {} {} {}", u->tls, u->host, u->port, u->path, u->authority()) : "wrong";
  };
  EXPECT_EQ(url("http://localhost:8080"), "false localhost 8080  localhost:8080");
  EXPECT_EQ(url("http://localhost/"), "false localhost 80  localhost");
  EXPECT_EQ(url("https://a.b/c/v1/"), "true a.b 443 /c/v1 a.b");
  EXPECT_EQ(url("http://[::1]:81/v1"), "false ::1 81 /v1 [::1]:81");
  for (const std::string_view text :
       {"", "localhost:8080", "ftp://x", "http://", "http://:80", "http://x:", "http://x:0", "http://x:65536",
        "http://x:80a", "http://[::1", "http://[::1]80", "http://a b", "http://u:p@h", "http://x/?q",
        "http://x\r\nA: b", "http://caf\xc3\xa9"})
    EXPECT_EQ(url(text), "wrong") << text;
}

}  // namespace
}  // namespace argent::server
