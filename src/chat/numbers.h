// Numbers as Python reads, writes and computes them, in 64 bits: what Python would give as a longer integer is an
// error.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/value.h"

namespace argent::jinja {

enum class BinaryOp : uint8_t { add, sub, mul, div, floordiv, mod, pow };
std::string_view symbol(BinaryOp op);

// Both operands are numbers.
Result<Value> arithmetic(BinaryOp op, const Value& a, const Value& b);
Result<Value> negated(const Value& v);

// int(text, base) and float(text); nullopt where Python raises ValueError. An integer outside 64 bits is an error.
Result<std::optional<int64_t>> parse_int(std::string_view text, int64_t base);
std::optional<double> parse_real(std::string_view text);
// int(d) of a finite number.
Result<int64_t> truncated(double d);

// round(v, digits): to even on ties, correctly rounded from the exact value.
double rounded(double d, int64_t digits);

}  // namespace argent::jinja
