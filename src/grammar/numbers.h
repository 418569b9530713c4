// Rules of JSON numbers within bounds.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "grammar/rules.h"

namespace argent::grammar {

// A decimal number without an exponent: sign, digits before the point (no leading zeros, "0" at least) and after it (no
// trailing zeros).
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction;

  static Result<Decimal> parse(std::string_view json_number);  // at most 64 digits on either side of the point
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  bool operator==(const Decimal&) const = default;
};

int compare(const Decimal& a, const Decimal& b);  // < 0, 0, > 0

struct Bound {
  Decimal value;
  bool exclusive = false;
};

// "-"? digits, without a point: JSON schema's integers as models write them. Fails when no integer is in the bounds.
Result<Expr> integer_rule(Rules& rules, const std::optional<Bound>& low, const std::optional<Bound>& high);
// With a fraction of at most 32 digits; with an exponent only where there is no bound.
Result<Expr> number_rule(Rules& rules, const std::optional<Bound>& low, const std::optional<Bound>& high);
// Multiples of a positive number of at most 4 significant digits. With bounds on both sides of an integer at most 4096
// multiples are listed; else the bounds must be none, or 0 on one side.
Result<Expr> multiple_rule(Rules& rules, const Decimal& of, bool integer, const std::optional<Bound>& low,
                           const std::optional<Bound>& high);

}  // namespace argent::grammar
