#include "server/http_checks.h"

#include <gtest/gtest.h>

#include "server/http_parser.h"

namespace argent::server {
namespace {

TEST(PercentDecode, EscapesAndWhatIsRefused) {
  EXPECT_EQ(percent_decode(""), "");
  EXPECT_EQ(percent_decode("/a%20b+c%2f%2F"), "/a b+c//");
  EXPECT_EQ(percent_decode("%E2%82%ac"), "\u20ac");
  for (const char* bad : {"%", "%4", "a%", "a%4", "%g1", "%1g", "%%41", "%-1", "% 1", "%00", "a%00b", "%ff", "%E2%82",
                          "%C0%AF", "%ED%A0%80"})
    EXPECT_EQ(percent_decode(bad), std::nullopt) << bad;
  EXPECT_EQ(percent_decode(std::string_view("a\0b", 3)), std::nullopt);
}

TEST(Target, Forms) {
  const auto expect = [](std::string_view target, std::string_view path, std::string_view query,
                         std::string_view authority) {
    const auto parsed = parse_target("GET", target);
    ASSERT_TRUE(parsed) << target;
    EXPECT_EQ(parsed->path, path) << target;
    EXPECT_EQ(parsed->query, query) << target;
    EXPECT_EQ(parsed->authority, authority) << target;
  };
  expect("/", "/", "", "");
  expect("/a/b?c=d?e", "/a/b", "c=d?e", "");
  expect("/?", "/", "", "");
  expect("//x/y", "//x/y", "", "");
  expect("http://h:80/a?b", "/a", "b", "h:80");
  expect("HTTPS://h", "/", "", "h");
  expect("http://h?q", "/", "q", "h");
  expect("/http://h/", "/http://h/", "", "");
  for (const char* bad :
       {"", "*", "a", "h:80", "http:///a", "http://?", "ftp://h/", "/a#b", "/a b", "/\x7f", "/\xc3\xa9"})
    EXPECT_FALSE(parse_target("GET", bad)) << bad;
  EXPECT_TRUE(parse_target("OPTIONS", "*"));
}

TEST(Authority, HostsAndPorts) {
  const auto expect = [](std::string_view text, std::string_view host, int port) {
    const auto parsed = parse_authority(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(parsed->host, host) << text;
    EXPECT_EQ(parsed->port, port) << text;
  };
  expect("LocalHost:8080", "localhost", 8080);
  expect("a.b.", "a.b", -1);
  expect("[::1]:65535", "::1", 65535);
  expect("[::1]", "::1", -1);
  expect("1.2.3.4:", "1.2.3.4", -1);
  for (const char* bad : {"", ":80", ".", "a:65536", "a:-1", "a:1x", "a: 1", "a b", "::1", "[::1", "[::1]x",
                          "[1.2.3.4]", "[a]", "u@h", "h/x", "h\\x", "a,b", "[::1%lo]", "\xc3\xa9"})
    EXPECT_FALSE(parse_authority(bad)) << bad;
}

TEST(Host, NamesOfOthersAreRefused) {
  const std::vector<std::string> none, names = {"Box.lan", "p.example:8443"}, any = {"*"};
  for (const char* good : {"localhost", "localhost:1", "a.localhost", "127.0.0.1:8080", "10.1.2.3", "[::1]:8080"})
    EXPECT_TRUE(host_allowed(good, none)) << good;
  for (const char* bad : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "xlocalhost", "127.1", "",
                          "localhost@evil.example", "0x7f000001"})
    EXPECT_FALSE(host_allowed(bad, none)) << bad;
  EXPECT_TRUE(host_allowed("box.LAN:99", names));
  EXPECT_TRUE(host_allowed("p.example:8443", names));
  EXPECT_FALSE(host_allowed("p.example:8444", names));
  EXPECT_FALSE(host_allowed("x.box.lan", names));
  EXPECT_TRUE(host_allowed("evil.example", any));
  EXPECT_FALSE(host_allowed("not a host", any));
}

TEST(Origin, OwnAndAllowed) {
  EXPECT_TRUE(origin_is_own("http://localhost:8080", "localhost:8080"));
  EXPECT_TRUE(origin_is_own("http://LOCALHOST", "localhost:80"));
  EXPECT_TRUE(origin_is_own("https://x.example", "x.example:443"));
  EXPECT_TRUE(origin_is_own("https://x.example", "x.example"));
  EXPECT_TRUE(origin_is_own("http://[::1]:8080", "[::1]:8080"));
  for (const char* bad : {"http://localhost:8081", "http://localhost", "null", "", "localhost:8080",
                          "http://localhost:8080.evil.example", "file://localhost:8080", "http://evil@localhost:8080"})
    EXPECT_FALSE(origin_is_own(bad, "localhost:8080")) << bad;
  const std::vector<std::string> allowed = {"https://app.example"}, any = {"*"};
  EXPECT_TRUE(origin_allowed("https://APP.example", allowed));
  EXPECT_FALSE(origin_allowed("https://app.example.evil", allowed));
  EXPECT_FALSE(origin_allowed("http://app.example", allowed));
  EXPECT_FALSE(origin_allowed("null", allowed));
  EXPECT_TRUE(origin_allowed("null", any));
}

TEST(Keys, AnyOfThemInEitherHeader) {
  const std::vector<std::string> keys = {"first", "second-key"};
  const auto accepted = [&](Headers headers) {
    Request request;
    request.headers = std::move(headers);
    return key_accepted(request, keys);
  };
  EXPECT_TRUE(accepted({{"Authorization", "Bearer first"}}));
  EXPECT_TRUE(accepted({{"AUTHORIZATION", "bearer  second-key"}}));
  EXPECT_TRUE(accepted({{"X-Api-Key", "second-key"}}));
  EXPECT_TRUE(accepted({{"Authorization", "Basic zzz"}, {"x-api-key", "first"}}));
  EXPECT_FALSE(accepted({}));
  for (const char* bad : {"", "Bearer", "Bearer ", "first", "Bearer firs", "Bearer firstt", "Bearer firstfirst",
                          "Bearer first ", "Bearer FIRST", "Basic first"})
    EXPECT_FALSE(accepted({{"Authorization", bad}})) << bad;
  EXPECT_FALSE(same_secret("", ""));
  EXPECT_FALSE(same_secret("aa", "a"));
  EXPECT_FALSE(same_secret("a", "aa"));
}

struct Routes : ::testing::Test {
  Routes() {
    for (const char* pattern :
         {"/", "/v1/{name...}", "/v1/models", "/v1/models/{name}", "/v1/models/{name}/stop", "/v1/models/all"})
      table.add("GET", pattern, [](Request, std::shared_ptr<Reply>) {});
    table.add("POST", "/v1/models", [](Request, std::shared_ptr<Reply>) {});
  }
  std::string pattern(std::string_view path, std::string_view method = "GET") {
    const auto match = table.find(method, path);
    std::string text = match.handler ? std::string(match.pattern) : "-" + match.methods;
    for (const std::string& parameter : match.parameters) text += " " + parameter;
    return text;
  }
  RouteTable table;
};

TEST_F(Routes, TheMostLiteralMatches) {
  EXPECT_EQ(pattern("/"), "/");
  EXPECT_EQ(pattern("/v1/models"), "/v1/models");
  EXPECT_EQ(pattern("/v1/models/all"), "/v1/models/all");
  EXPECT_EQ(pattern("/v1/models/x"), "/v1/models/{name} x");
  EXPECT_EQ(pattern("/v1/models/org%2Fx%20y"), "/v1/models/{name} org/x y");
  EXPECT_EQ(pattern("/v1/models/x/stop"), "/v1/models/{name}/stop x");
  EXPECT_EQ(pattern("/v1/models/x/y"), "/v1/{name...} models/x/y");
  EXPECT_EQ(pattern("/v1/a%2Fb/c/"), "/v1/{name...} a/b/c/");
  EXPECT_EQ(pattern("/v1/models/"), "/v1/{name...} models/");
  for (const char* none : {"", "v1", "/v1", "/v1/", "/v2", "//", "/V1/models", "/v1/%", "/v1/%00", "/v1/%ff"})
    EXPECT_EQ(pattern(none), "-") << none;
}

TEST_F(Routes, MethodsOfAPath) {
  EXPECT_EQ(pattern("/", "DELETE"), "-GET, HEAD, OPTIONS");
  EXPECT_EQ(pattern("/v1/models", "DELETE"), "-GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(pattern("/v1/models", "HEAD"), "/v1/models");
  EXPECT_EQ(pattern("/v1/models", "POST"), "/v1/models");
  EXPECT_EQ(pattern("/v1/models", "get"), "-GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(pattern("/v1/models/x", "POST"), "-GET, HEAD, OPTIONS");
}

TEST(AppendHeader, NothingSplitsIt) {
  std::string head;
  append_header(head, "X-A", "b\r\nX-C: d\0e");
  append_header(head, "bad name", "x");
  append_header(head, "bad\r\nname", "x");
  append_header(head, "", "x");
  EXPECT_EQ(head, "X-A: b  X-C: d\r\n");
}

struct Parsed {
  int refused = 0;
  bool done = false;
  Request request;
  std::string target, rest;
};

// The bytes in pieces of a size, as a connection gives them.
Parsed parse(std::string_view bytes, size_t piece, const Limits& limits = {}) {
  RequestParser parser(limits);
  std::string held;
  for (size_t at = 0; at < bytes.size() && !parser.done() && !parser.refusal(); at += piece) {
    held += bytes.substr(at, piece);
    while (!parser.done() && !parser.refusal()) {
      const bool head = parser.head_done();
      const size_t taken = parser.take(held, held.size() < limits.header_bytes + 64);
      held.erase(0, taken);
      if (taken == 0 && head == parser.head_done()) break;
      if (held.empty()) break;
    }
  }
  return {parser.refusal() ? parser.refusal()->status : 0, parser.done(), std::move(parser.request()), parser.target(),
          held};
}

TEST(RequestParser, TheSameInAnyPieces) {
  const std::string chunked =
      "\r\nPOST /a?b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;x=\"y\"\r\nhello\r\n1\r\n!\r\n0\r\nT: "
      "1\r\n\r\n";
  const std::string sized = "POST /a?b HTTP/1.1\r\nhost:h\r\ncontent-length: 6\r\n\r\nhello!";
  for (const std::string& text : {chunked, sized})
    for (size_t piece = 1; piece <= text.size() + 4; ++piece) {
      const Parsed parsed = parse(text + "NEXT", piece);
      ASSERT_EQ(parsed.refused, 0) << piece;
      ASSERT_TRUE(parsed.done) << piece;
      ASSERT_EQ(parsed.request.body, "hello!");
      ASSERT_EQ(parsed.request.method, "POST");
      ASSERT_EQ(parsed.request.header("HOST"), "h");
      ASSERT_EQ(parsed.request.header("T"), "");
      ASSERT_EQ(parsed.target, "/a?b");
      ASSERT_TRUE(std::string("NEXT").starts_with(parsed.rest)) << parsed.rest;
    }
}

TEST(RequestParser, WhatIsRefused) {
  const std::string line = "POST / HTTP/1.1\r\n", host = line + "Host: h\r\n";
  const std::pair<std::string, int> cases[] = {
      {"\x16\x03\x01\x02\x01\r\n\r\n", 400},
      {"GET\r\n\r\n", 400},
      {"GET / HTTP/1.1 x\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\n\r\n", 400},
      {"GET / a HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\n\r\n", 505},
      {"GET / HTTP/0.9\r\n\r\n", 505},
      {"GET / FTP/1.1\r\n\r\n", 400},
      {"G(T / HTTP/1.1\r\n\r\n", 400},
      {line + " x: y\r\n\r\n", 400},
      {line + "a b: c\r\n\r\n", 400},
      {line + "a : c\r\n\r\n", 400},
      {line + "a: \x01\r\n\r\n", 400},
      {line + "a\r\n\r\n", 400},
      {host + "Content-Length: x\r\n\r\n", 400},
      {host + "Content-Length: -1\r\n\r\n", 400},
      {host + "Content-Length: +1\r\n\r\n", 400},
      {host + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
      {host + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {host + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
      {host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {host + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {host + "Transfer-Encoding: identity\r\n\r\n", 501},
      {host + "Transfer-Encoding: xchunked\r\n\r\n", 501},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {host + "Content-Length: 101\r\n\r\n", 413},
      {host + "Transfer-Encoding: chunked\r\n\r\nx\r\nab", 400},
      {host + "Transfer-Encoding: chunked\r\n\r\n-1\r\nab", 400},
      {host + "Transfer-Encoding: chunked\r\n\r\n1\r\nabcdefg\r\n", 400},
      {host + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400},
      {host + "Transfer-Encoding: chunked\r\n\r\n32\r\n" + std::string(50, 'a') + "\r\n33\r\n" + std::string(51, 'a'),
       413},
      {host + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + std::string(200, 'a'), 413},
      {host + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(2000, 'a'), 400},
      {host + "Transfer-Encoding: chunked\r\n\r\n0\r\nA: " + std::string(2000, 'a'), 400},
      {"GET /" + std::string(2000, 'a'), 414},
      {"GET /" + std::string(2000, 'a') + " HTTP/1.1\r\n\r\n", 414},
      {host + "A: " + std::string(2000, 'a'), 431},
      {host + "A: " + std::string(2000, 'a') + "\r\n\r\n", 431},
  };
  Limits limits;
  limits.body_bytes = 100;
  limits.header_bytes = 1000;
  for (const auto& [text, status] : cases)
    for (const size_t piece : {size_t(1), size_t(7), size_t(4096)})
      EXPECT_EQ(parse(text, piece, limits).refused, status) << text.substr(0, 200) << " in " << piece;
}

}  // namespace
}  // namespace argent::server
