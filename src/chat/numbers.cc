#include "chat/numbers.h"

#include <charconv>
#include <cmath>
#include <sstream>

#include "chat/unicode.h"

namespace argent::jinja {
namespace {

constexpr int64_t kExact = int64_t(1) << 53;  // up to here a double holds every integer

Error overflow() { return fail(Code::unsupported, "integers beyond 64 bits are not supported"); }

Error zero_division(BinaryOp op) {
  return fail(Code::invalid, "{} by zero", op == BinaryOp::mod ? "modulo" : "division");
}

int64_t floor_div(int64_t a, int64_t b) {
  int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

Result<Value> int_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return fail(Code::invalid, "0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow();
  }
  return Value::integer(result);
}

Result<Value> int_arithmetic(BinaryOp op, int64_t a, int64_t b) {
  int64_t r = 0;
  switch (op) {
    case BinaryOp::add:
      return __builtin_add_overflow(a, b, &r) ? Result<Value>(overflow()) : Value::integer(r);
    case BinaryOp::sub:
      return __builtin_sub_overflow(a, b, &r) ? Result<Value>(overflow()) : Value::integer(r);
    case BinaryOp::mul:
      return __builtin_mul_overflow(a, b, &r) ? Result<Value>(overflow()) : Value::integer(r);
    case BinaryOp::div:
      if (b == 0) return zero_division(op);
      if (std::abs(a) <= kExact && std::abs(b) <= kExact) {
        return Value::real(static_cast<double>(a) / static_cast<double>(b));
      }
      // The last bit may differ from Python's: two roundings, or one of each operand where long double is double.
      return Value::real(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case BinaryOp::floordiv:
    case BinaryOp::mod:
      if (b == 0) return zero_division(op);
      if (b == -1) {
        if (op == BinaryOp::mod) return Value::integer(0);
        return a == INT64_MIN ? Result<Value>(overflow()) : Value::integer(-a);
      }
      if (op == BinaryOp::floordiv) return Value::integer(floor_div(a, b));
      return Value::integer(a - floor_div(a, b) * b);
    case BinaryOp::pow:
      return int_power(a, b);
  }
  return overflow();
}

Result<Value> real_arithmetic(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::add:
      return Value::real(a + b);
    case BinaryOp::sub:
      return Value::real(a - b);
    case BinaryOp::mul:
      return Value::real(a * b);
    case BinaryOp::div:
      if (b == 0) return zero_division(op);
      return Value::real(a / b);
    case BinaryOp::floordiv:
    case BinaryOp::mod: {
      if (b == 0) return zero_division(op);
      double mod = std::fmod(a, b);
      double quotient = (a - mod) / b;
      if (mod != 0) {
        if ((b < 0) != (mod < 0)) mod += b, quotient -= 1;
      } else {
        mod = std::copysign(0.0, b);
      }
      if (op == BinaryOp::mod) return Value::real(mod);
      if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
      double whole = std::floor(quotient);
      return Value::real(quotient - whole > 0.5 ? whole + 1 : whole);
    }
    case BinaryOp::pow: {
      if (a == 0 && b < 0) return fail(Code::invalid, "0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
        return fail(Code::unsupported, "complex numbers are not supported");
      }
      double r = std::pow(a, b);
      if (std::isinf(r) && std::isfinite(a) && std::isfinite(b)) return fail(Code::invalid, "result too large");
      return Value::real(r);
    }
  }
  return overflow();
}

// The digits of a number with single underscores between them, as Python allows; nullopt otherwise.
std::optional<std::string> without_underscores(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '_') {
      out += s[i];
      continue;
    }
    if (i == 0 || i + 1 == s.size() || !std::isalnum(static_cast<uint8_t>(s[i - 1])) ||
        !std::isalnum(static_cast<uint8_t>(s[i + 1]))) {
      return std::nullopt;
    }
  }
  return out;
}

std::string_view trimmed(std::string_view s) {
  ByteRange r = stripped(s, nullptr, true, true);
  return s.substr(r.begin, r.end - r.begin);
}

}  // namespace

std::string_view symbol(BinaryOp op) {
  constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kSymbols[static_cast<int>(op)];
}

Result<Value> arithmetic(BinaryOp op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return int_arithmetic(op, a.as_int(), b.as_int());
  return real_arithmetic(op, a.as_real(), b.as_real());
}

Result<Value> negated(const Value& v) {
  if (v.is(Kind::real)) return Value::real(-v.as_real());
  if (v.as_int() == INT64_MIN) return overflow();
  return Value::integer(-v.as_int());
}

Result<std::optional<int64_t>> parse_int(std::string_view text, int64_t base) {
  std::optional<int64_t> nothing;
  if (base != 0 && (base < 2 || base > 36)) return nothing;
  std::string_view s = trimmed(text);
  bool negative = false;
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) {
    negative = s[0] == '-';
    s.remove_prefix(1);
  }
  auto prefix = [&](char letter) { return s.size() > 1 && s[0] == '0' && (s[1] | 0x20) == letter; };
  int64_t implied = prefix('x') ? 16 : prefix('o') ? 8 : prefix('b') ? 2 : 0;
  if (implied && (base == 0 || base == implied)) {
    base = implied;
    s.remove_prefix(2);
    if (!s.empty() && s[0] == '_') s.remove_prefix(1);
  } else if (base == 0) {
    base = 10;
    if (s.size() > 1 && s[0] == '0' && s.find_first_not_of("0_") != std::string_view::npos) return nothing;
  }
  auto digits = without_underscores(s);
  if (!digits || digits->empty() || !std::isalnum(static_cast<uint8_t>((*digits)[0]))) return nothing;
  std::string number = (negative ? "-" : "") + *digits;
  int64_t value = 0;
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value, static_cast<int>(base));
  if (end != number.data() + number.size()) return nothing;
  if (error == std::errc::result_out_of_range) return overflow();
  if (error != std::errc()) return nothing;
  return std::optional<int64_t>(value);
}

std::optional<double> parse_real(std::string_view text) {
  auto digits = without_underscores(trimmed(text));
  if (!digits || digits->empty()) return std::nullopt;
  std::string s = *digits;
  bool negative = s[0] == '-';
  if (s[0] == '-' || s[0] == '+') s.erase(0, 1);
  std::string lower;
  for (char c : s) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  double value = 0;
  if (lower == "inf" || lower == "infinity") {
    value = INFINITY;
  } else if (lower == "nan") {
    value = NAN;
  } else {
    // digits [. digits] [e [sign] digits], with at least one digit in front of the exponent
    size_t i = 0, count = 0;
    auto run = [&] {
      for (; i < lower.size() && lower[i] >= '0' && lower[i] <= '9'; ++i) ++count;
    };
    run();
    if (i < lower.size() && lower[i] == '.') ++i, run();
    if (count == 0) return std::nullopt;
    if (i < lower.size() && lower[i] == 'e') {
      ++i;
      if (i < lower.size() && (lower[i] == '+' || lower[i] == '-')) ++i;
      count = 0;
      run();
      if (count == 0) return std::nullopt;
    }
    if (i != lower.size()) return std::nullopt;
    std::istringstream in(lower);
    in.imbue(std::locale::classic());
    in >> value;
    if (in.fail() && value != 0) value = INFINITY;  // out of range: the stream leaves the largest number
  }
  return negative ? -value : value;
}

Result<int64_t> truncated(double d) {
  if (!(d >= -9223372036854775808.0 && d < 9223372036854775808.0)) return overflow();
  return static_cast<int64_t>(d);
}

double rounded(double d, int64_t digits) {
  if (!std::isfinite(d) || digits > 323) return d;
  if (digits < -308) return std::copysign(0.0, d);
  if (digits >= 0) return *parse_real(fmt::format("{:.{}f}", d, digits));
  double scale = std::pow(10.0, static_cast<double>(-digits));
  double scaled = d / scale;
  double nearest = std::nearbyint(scaled);
  if (std::fabs(d - nearest * scale) * 2 == scale && std::fmod(nearest, 2) != 0) nearest += nearest > scaled ? -1 : 1;
  return nearest * scale;
}

}  // namespace argent::jinja
