// Errors are values: everything that a file, a request or a flag can cause comes back as a Result with one line that
// says what was seen and what was wanted. Exceptions are for programmer errors of third-party code only and never cross
// a room's boundary.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <variant>

namespace argent {

// What kind of failure it is decides the exit code of a command and the HTTP status of a request.
enum class Code {
  invalid,        // the input is malformed or out of range: exit 2, HTTP 400
  unsupported,    // well-formed, but asks for what this build does not do: exit 3, HTTP 400/501
  not_found,      // a file, model or name that is not there: exit 4, HTTP 404
  io,             // reading or writing failed: exit 5, HTTP 500
  out_of_memory,  // does not fit: exit 6, HTTP 503
  cancelled,      // the caller asked to stop: exit 130
  internal,       // a broken promise of our own: exit 70, HTTP 500
};

struct Error {
  Code code = Code::internal;
  std::string message;  // one line, no trailing newline
};

template <class... Args>
[[nodiscard]] Error fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format(format, std::forward<Args>(args)...)};
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : v_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const { return v_.index() == 0; }
  T& operator*() & { return std::get<0>(v_); }
  const T& operator*() const& { return std::get<0>(v_); }
  T&& operator*() && { return std::get<0>(std::move(v_)); }
  T* operator->() { return &std::get<0>(v_); }
  const T* operator->() const { return &std::get<0>(v_); }
  const Error& error() const { return std::get<1>(v_); }

 private:
  std::variant<T, Error> v_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}
  explicit operator bool() const { return ok_; }
  const Error& error() const { return error_; }

 private:
  Error error_;
  bool ok_ = true;
};

using Status = Result<void>;

// The exit code of a command that ends with this error (documented in `argent --help`).
int exit_code(Code code);

}  // namespace argent

#define ARGENT_CONCAT_(a, b) a##b
#define ARGENT_CONCAT(a, b) ARGENT_CONCAT_(a, b)

// ARGENT_TRY(status_expression);  returns the error of a Status to the caller
#define ARGENT_TRY(expr)                                                              \
  do {                                                                                \
    if (auto argent_status_ = (expr); !argent_status_) return argent_status_.error(); \
  } while (0)

// ARGENT_LET(auto x, result_expression);  binds the value or returns the error
#define ARGENT_LET(decl, expr)                                                                          \
  auto ARGENT_CONCAT(argent_result_, __LINE__) = (expr);                                                \
  if (!ARGENT_CONCAT(argent_result_, __LINE__)) return ARGENT_CONCAT(argent_result_, __LINE__).error(); \
  decl = *std::move(ARGENT_CONCAT(argent_result_, __LINE__))
