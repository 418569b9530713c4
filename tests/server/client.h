// A raw HTTP client for tests: what it sends is what is written, byte for byte.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>

namespace argent::server {

class Client {
 public:
  explicit Client(uint16_t port) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) close();
  }
  explicit Client(int fd) : fd_(fd) {}
  Client(Client&& other) : fd_(std::exchange(other.fd_, -1)), rest_(std::move(other.rest_)) {}
  ~Client() { close(); }

  bool connected() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void reset() {  // closes with a reset in place of a goodbye
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }

  bool send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      text.remove_prefix(size_t(n));
    }
    return true;
  }

  // More bytes; false: the end, or nothing within the time.
  bool more(int milliseconds = 5000) {
    if (fd_ < 0) return false;
    pollfd wait{fd_, POLLIN, 0};
    if (::poll(&wait, 1, milliseconds) <= 0) return false;
    char bytes[65536];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) {
      ended_ = true;
      return false;
    }
    rest_.append(bytes, size_t(n));
    return true;
  }
  bool ended(int milliseconds = 5000) {  // nothing but the end comes
    return rest_.empty() && !more(milliseconds) && ended_;
  }

  // Up to and with `mark`; all there is where it never comes.
  std::string until(std::string_view mark, int milliseconds = 5000) {
    size_t at;
    while ((at = rest_.find(mark)) == std::string::npos)
      if (!more(milliseconds)) return std::exchange(rest_, {});
    std::string text = rest_.substr(0, at + mark.size());
    rest_.erase(0, at + mark.size());
    return text;
  }
  std::string exactly(size_t bytes) {
    while (rest_.size() < bytes)
      if (!more()) break;
    std::string text = rest_.substr(0, bytes);
    rest_.erase(0, bytes);
    return text;
  }
  std::string everything() {
    while (more()) {
    }
    return std::exchange(rest_, {});
  }

  struct Answer {
    int status = 0;
    std::string head, body;
    bool complete = false;
    std::string header(std::string_view name) const {
      const size_t at = head.find("\r\n" + std::string(name) + ": ");
      if (at == std::string::npos) return "";
      const size_t from = at + name.size() + 4;
      return head.substr(from, head.find("\r\n", from) - from);
    }
  };

  std::string chunk() {  // "" for the last, and where it is cut off
    const std::string line = until("\r\n");
    if (!line.ends_with("\r\n")) return cut_ = true, "";
    const size_t size = std::strtoull(line.c_str(), nullptr, 16);
    std::string bytes = exactly(size + 2);
    if (bytes.size() != size + 2) return cut_ = true, bytes;
    bytes.resize(size);
    return bytes;
  }

  Answer head() {
    Answer answer;
    answer.head = until("\r\n\r\n");
    if (answer.head.starts_with("HTTP/1.1 ")) answer.status = std::atoi(answer.head.c_str() + 9);
    return answer;
  }
  Answer answer(bool bodiless = false) {
    Answer answer = head();
    if (bodiless || answer.status == 204 || answer.status == 304) {
      answer.complete = true;
    } else if (answer.header("Transfer-Encoding") == "chunked") {
      for (std::string piece = chunk(); !piece.empty(); piece = chunk()) answer.body += piece;
      answer.complete = !cut_;
    } else if (const std::string length = answer.header("Content-Length"); !length.empty()) {
      answer.body = exactly(std::stoull(length));
      answer.complete = answer.body.size() == std::stoull(length);
    } else {
      answer.body = everything();
    }
    return answer;
  }
  Answer get(std::string_view path, std::string_view headers = "", std::string_view method = "GET") {
    send(std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) +
         "\r\n");
    return answer(method == "HEAD");
  }

 private:
  int fd_ = -1;
  std::string rest_;
  bool ended_ = false, cut_ = false;
};

}  // namespace argent::server
