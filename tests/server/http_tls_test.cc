#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <filesystem>

#include "fixture.h"
#include "server/http_client.h"

namespace argent::server {
namespace {

struct CertificateOptions {
  std::string names = "DNS:localhost,IP:127.0.0.1";
  std::string ca;  // CA.pem and CA.key sign it; "": it signs itself
  long seconds = 3600;
};

// A certificate and its key: PATH.pem, PATH.key.
void make_certificate(const std::string& path, const CertificateOptions& options = {}) {
  const auto open = [](const std::string& name, const char* mode) {
    FILE* file = std::fopen(name.c_str(), mode);
    return std::unique_ptr<FILE, int (*)(FILE*)>(file, std::fclose);
  };
  EVP_PKEY* key = EVP_EC_gen("P-256");
  EVP_PKEY* signer = key;
  X509* cert = X509_new();
  X509_set_version(cert, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), -7200);
  X509_gmtime_adj(X509_getm_notAfter(cert), options.seconds);
  X509_set_pubkey(cert, key);
  X509_NAME* name = X509_get_subject_name(cert);
  const auto* subject = reinterpret_cast<const unsigned char*>(path.c_str());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, subject, -1, -1, 0);
  X509_set_issuer_name(cert, name);
  if (!options.ca.empty()) {
    X509* ca = PEM_read_X509(open(options.ca + ".pem", "r").get(), nullptr, nullptr, nullptr);
    signer = PEM_read_PrivateKey(open(options.ca + ".key", "r").get(), nullptr, nullptr, nullptr);
    ASSERT_TRUE(ca && signer);
    X509_set_issuer_name(cert, X509_get_subject_name(ca));
    X509_free(ca);
  }
  for (const auto& [what, value] : {std::pair(NID_subject_alt_name, options.names.c_str()),
                                    {NID_basic_constraints, options.ca.empty() ? "CA:TRUE" : "CA:FALSE"}}) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, what, value);
    X509_add_ext(cert, extension, -1);
    X509_EXTENSION_free(extension);
  }
  ASSERT_NE(X509_sign(cert, signer, EVP_sha256()), 0);
  PEM_write_X509(open(path + ".pem", "w").get(), cert);
  PEM_write_PrivateKey(open(path + ".key", "w").get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  X509_free(cert);
  if (signer != key) EVP_PKEY_free(signer);
  EVP_PKEY_free(key);
}

class TlsClient {
 public:
  TlsClient(uint16_t port, int max_version = TLS1_3_VERSION) : tcp_(port), context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_set_security_level(context_, 0);  // so that old versions can be offered
    SSL_CTX_set_min_proto_version(context_, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context_, max_version);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, tcp_.fd());
    connected = SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  void send(std::string_view text) { ASSERT_EQ(SSL_write(ssl_, text.data(), int(text.size())), int(text.size())); }
  std::string until(std::string_view mark) {
    char bytes[16384];
    while (rest_.find(mark) == std::string::npos) {
      const int n = SSL_read(ssl_, bytes, sizeof bytes);
      if (n <= 0) break;
      rest_.append(bytes, size_t(n));
    }
    const size_t end = std::min(rest_.size(), rest_.find(mark) + mark.size());
    std::string text = rest_.substr(0, end);
    rest_.erase(0, end);
    return text;
  }
  bool ended_cleanly() {
    char byte;
    const int n = SSL_read(ssl_, &byte, 1);
    return SSL_get_error(ssl_, n) == SSL_ERROR_ZERO_RETURN;
  }
  std::string version() const { return SSL_get_version(ssl_); }
  void close() { tcp_.close(); }

  bool connected = false;

 private:
  Client tcp_;
  SSL_CTX* context_;
  SSL* ssl_;
  std::string rest_;
};

struct Https : Http {
  Https() {
    char name[] = "/tmp/argent-https-XXXXXX";
    folder = ::mkdtemp(name);
    options.tls_cert = folder + "/own.pem";
    options.tls_key = folder + "/own.key";
    make_certificate(folder + "/own");
    signal(SIGPIPE, SIG_IGN);  // of the client's own writes
  }
  ~Https() override { std::filesystem::remove_all(folder); }
  std::string folder;
};

constexpr std::string_view kHello = "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
constexpr std::string_view kKeepAlive = "GET /keep HTTP/1.1\r\nHost: localhost\r\n\r\n";

TEST_F(Https, AnswersAndVersions) {
  start();
  EXPECT_EQ(server->address(), fmt::format("https://127.0.0.1:{}", server->port()));
  for (const auto& [version, name] : {std::pair(TLS1_3_VERSION, "TLSv1.3"), std::pair(TLS1_2_VERSION, "TLSv1.2")}) {
    TlsClient c(server->port(), version);
    ASSERT_TRUE(c.connected);
    EXPECT_EQ(c.version(), name);
    for (int i = 0; i < 3; ++i) {
      c.send(kHello);
      EXPECT_TRUE(c.until("hello").starts_with("HTTP/1.1 200 OK\r\n"));
    }
    c.send("GET /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    c.until("hello");
    EXPECT_TRUE(c.ended_cleanly());
  }
  EXPECT_FALSE(TlsClient(server->port(), TLS1_1_VERSION).connected);
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST_F(Https, BodiesAndStreams) {
  start();
  TlsClient c(server->port());
  const std::string body(3u << 20, 'x');
  std::thread reader;
  c.send(fmt::format("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.size()));
  c.send(body);
  c.until("\r\n\r\n");
  EXPECT_TRUE(c.until(body) == body);
  c.send("GET /pieces/5000 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(c.until("\r\n0\r\n\r\n").find("data: 4999\n\n") != std::string::npos);
  c.send(kHello);
  EXPECT_TRUE(c.until("hello").ends_with("hello"));
}

TEST_F(Https, WhoHasGoneIsNoticed) {
  start();
  for (const bool streaming : {false, true}) {
    TlsClient c(server->port());
    c.send(kKeepAlive);
    const auto reply = next();
    ASSERT_TRUE(reply);
    std::atomic<int> gone{0};
    reply->on_gone([&] { ++gone; });
    if (streaming) {
      reply->begin(200, "text/event-stream");
      reply->write("data: x\n\n");
      c.until("data: x");
    }
    const auto before = std::chrono::steady_clock::now();
    c.close();
    EXPECT_TRUE(eventually([&] { return gone == 1; }));
    EXPECT_LT(std::chrono::steady_clock::now() - before, 100ms);
  }
}

TEST_F(Https, WhatIsNoTls) {
  options.limits.header_time = 1s;
  start();
  Client plain(server->port()), silent(server->port());
  plain.send(kHello);
  plain.everything();
  EXPECT_TRUE(silent.ended());
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
  TlsClient c(server->port());
  c.send(kHello);
  EXPECT_TRUE(c.until("hello").ends_with("hello"));
}

TEST_F(Https, TheFilesMustBelongTogether) {
  make_certificate(folder + "/other");
  options.tls_key = folder + "/other.key";
  const auto started = Server::start(options);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, Code::io);
  EXPECT_NE(started.error().message.find("other.key"), std::string::npos) << started.error().message;
  options.tls_key = options.tls_cert;
  EXPECT_FALSE(Server::start(options));
}

TEST_F(Https, DrainClosesIdleConnections) {
  start();
  TlsClient c(server->port());
  c.send(kHello);
  c.until("hello");
  const auto before = std::chrono::steady_clock::now();
  EXPECT_TRUE(server->drain(5s));
  EXPECT_LT(std::chrono::steady_clock::now() - before, 2s);
}

// The client of src/server/http_client.h, which measures servers.
struct HttpsClient : Https {
  // The server with a certificate as in `certificate`, which "ca" has signed.
  void start_signed(CertificateOptions certificate = {}) {
    make_certificate(folder + "/ca");
    certificate.ca = folder + "/ca";
    make_certificate(folder + "/own", certificate);
    start();
  }
  Trust ca() const { return {.anybody = false, .ca_file = folder + "/ca.pem"}; }

  Result<std::unique_ptr<HttpClient>> client_of(const Trust& trust, const std::string& host) {
    ARGENT_LET(const Url url, parse_url(fmt::format("https://{}:{}", host, server->port())));
    return HttpClient::open(url, trust);
  }
  // What /hello answers, or the error.
  std::string hello(const Trust& trust, const std::string& host = "localhost") {
    const auto client = client_of(trust, host);
    if (!client) return client.error().message;
    const auto fetched = fetch(**client, {.target = "/hello"});
    return fetched ? fetched->body : fetched.error().message;
  }
};

TEST_F(HttpsClient, TrustsWhomItIsTold) {
  start_signed();
  make_certificate(folder + "/other");
  EXPECT_EQ(hello(ca()), "hello");
  EXPECT_EQ(hello(ca(), "127.0.0.1"), "hello");
  EXPECT_EQ(hello({.ca_file = options.tls_cert}), "hello") << "the certificate itself";
  EXPECT_EQ(hello({.anybody = true}), "hello");
  const std::string unknown =
      "TLS: the certificate is not trusted for localhost: unable to get local issuer certificate";
  EXPECT_EQ(hello({.ca_file = folder + "/other.pem"}), unknown);
  EXPECT_EQ(hello({}), unknown) << "the system's authorities";
}

TEST_F(HttpsClient, AsksForTheNameItCalled) {
  start_signed({.names = "DNS:elsewhere.example,DNS:*.localhost,IP:127.0.0.2"});
  EXPECT_EQ(hello(ca()), "TLS: the certificate is not trusted for localhost: hostname mismatch");
  EXPECT_EQ(hello(ca(), "127.0.0.1"), "TLS: the certificate is not trusted for 127.0.0.1: IP address mismatch");
  EXPECT_EQ(hello({.anybody = true}), "hello");
}

TEST_F(HttpsClient, CertificatesRunOut) {
  start_signed({.seconds = -60});
  EXPECT_EQ(hello(ca()), "TLS: the certificate is not trusted for localhost: certificate has expired");
}

TEST_F(HttpsClient, FilesOfAuthorities) {
  start_signed();
  for (const std::string& file : {folder + "/none.pem", options.tls_key, folder}) {
    const auto client = client_of({.ca_file = file}, "localhost");
    ASSERT_FALSE(client) << file;
    EXPECT_EQ(client.error().code, Code::invalid);
    EXPECT_NE(client.error().message.find("'" + file + "'"), std::string::npos) << client.error().message;
    EXPECT_EQ(client.error().message.find('\n'), std::string::npos);
  }
}

TEST_F(HttpsClient, BodiesStreamsAndKeptConnections) {
  start_signed();
  const auto client = client_of(ca(), "localhost");
  ASSERT_TRUE(client);
  const std::string body(3u << 20, 'x');
  for (int i = 0; i < 3; ++i) {
    const auto echo = fetch(**client, {.method = "POST", .target = "/echo", .body = body});
    ASSERT_TRUE(echo) << echo.error().message;
    EXPECT_TRUE(echo->body == body);
    const auto stream = fetch(**client, {.target = "/pieces/5000"});
    ASSERT_TRUE(stream) << stream.error().message;
    EXPECT_TRUE(stream->body.ends_with("data: 4999\n\n"));
  }
  EXPECT_EQ(server->connections(), 1u);
  EXPECT_FALSE(fetch(**client, {.target = "/cut"})) << "half an answer";
}

TEST_F(HttpsClient, WhoSpeaksNoTls) {
  options.tls_cert = options.tls_key = "";
  start();
  EXPECT_TRUE(hello({.anybody = true}).starts_with("TLS: ")) << hello({.anybody = true});
}

}  // namespace
}  // namespace argent::server
