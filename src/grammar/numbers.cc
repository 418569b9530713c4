#include "grammar/numbers.h"

#include <algorithm>

namespace argent::grammar {

namespace {

constexpr int kMaxDigits = 64;          // of a whole part that has no bound
constexpr int kMaxFraction = 32;        // a model at low temperature may repeat a digit for ever
constexpr int64_t kMaxMultiple = 2048;  // states of the automaton of remainders
constexpr int64_t kMaxListed = 4096;

// Digits a..b, inclusive.
Expr digit(Rules& rules, int a, int b) {
  if (a == b) return rules.literal(std::string(1, static_cast<char>('0' + a)));
  return rules.chars(CharSet({{static_cast<uint32_t>('0' + a), static_cast<uint32_t>('0' + b)}}));
}
Expr digits(Rules& rules, int64_t min, int64_t max) { return rules.repeat(digit(rules, 0, 9), min, max); }

std::string plus_one(std::string n) {
  for (size_t i = n.size(); i-- > 0;) {
    if (n[i] != '9') {
      n[i]++;
      return n;
    }
    n[i] = '0';
  }
  return "1" + n;
}

std::string minus_one(std::string n) {  // n > 0
  for (size_t i = n.size(); i-- > 0;) {
    if (n[i] != '0') {
      n[i]--;
      break;
    }
    n[i] = '9';
  }
  return n.size() > 1 && n[0] == '0' ? n.substr(1) : n;
}

int compare_whole(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : a.compare(b);
}

int compare_size(const Decimal& a, const Decimal& b) {
  const int sign = compare_whole(a.whole, b.whole);
  return sign != 0 ? sign : a.fraction.compare(b.fraction);  // no trailing zeros: the text's order is the number's
}

// Digit strings of the same length from a to b.
Expr same_length(Rules& rules, std::string_view a, std::string_view b) {
  if (a.empty()) return rules.literal("");
  const int n = static_cast<int>(a.size());
  if (a.find_first_not_of('0') == std::string_view::npos && b.find_first_not_of('9') == std::string_view::npos)
    return digits(rules, n, n);
  const int x = a[0] - '0', y = b[0] - '0';
  if (x == y) return rules.seq({digit(rules, x, x), same_length(rules, a.substr(1), b.substr(1))});
  const std::string nines(n - 1, '9'), zeros(n - 1, '0');
  std::vector<Expr> choices{rules.seq({digit(rules, x, x), same_length(rules, a.substr(1), nines)})};
  if (x + 1 <= y - 1) choices.push_back(rules.seq({digit(rules, x + 1, y - 1), digits(rules, n - 1, n - 1)}));
  choices.push_back(rules.seq({digit(rules, y, y), same_length(rules, zeros, b.substr(1))}));
  return rules.alt(std::move(choices));
}

// Whole numbers >= 0 from low to high, without leading zeros; high empty: no bound. Never, if low > high.
Expr whole_range(Rules& rules, const std::string& low, const std::string& high) {
  if (high.empty()) {
    const int n = static_cast<int>(low.size());
    std::vector<Expr> choices{same_length(rules, low, std::string(n, '9'))};
    if (low == "0") choices = {rules.literal("0"), same_length(rules, "1", "9")};
    choices.push_back(rules.seq({digit(rules, 1, 9), digits(rules, n, std::max(n, kMaxDigits - 1))}));
    return rules.alt(std::move(choices));
  }
  if (compare_whole(low, high) > 0) return rules.never();
  std::vector<Expr> choices;
  std::string from = low;
  for (size_t n = low.size(); n <= high.size(); n++) {
    const std::string to = n == high.size() ? high : std::string(n, '9');
    if (n == 1 && from == "0") {
      choices.push_back(rules.literal("0"));
      from = "1";
    }
    if (compare_whole(from, to) <= 0) choices.push_back(same_length(rules, from, to));
    from = "1" + std::string(n, '0');
  }
  return rules.alt(std::move(choices));
}

Expr any_digits(Rules& rules) { return digits(rules, 0, kMaxFraction); }

// Fraction digits f with 0.f >= 0.low, or > if strict; there may be none of them but where `some` is set: "1." is no
// number.
Expr fraction_from(Rules& rules, std::string_view low, bool strict, bool some = false) {
  if (low.empty()) {
    if (!strict) return digits(rules, some, kMaxFraction);
    return rules.seq({rules.repeat(rules.literal("0"), 0, kMaxFraction), digit(rules, 1, 9), any_digits(rules)});
  }
  const int d = low[0] - '0';
  std::vector<Expr> choices{rules.seq({digit(rules, d, d), fraction_from(rules, low.substr(1), strict)})};
  if (d < 9) choices.push_back(rules.seq({digit(rules, d + 1, 9), any_digits(rules)}));
  return rules.alt(std::move(choices));
}

// 0.f <= 0.high, or < if strict.
Expr fraction_to(Rules& rules, std::string_view high, bool strict, bool some = false) {
  if (high.empty()) return strict ? rules.never() : rules.repeat(rules.literal("0"), some, kMaxFraction);
  const int d = high[0] - '0';
  std::vector<Expr> choices{rules.seq({digit(rules, d, d), fraction_to(rules, high.substr(1), strict)})};
  if (!some) choices.push_back(rules.literal(""));
  if (d > 0) choices.push_back(rules.seq({digit(rules, 0, d - 1), any_digits(rules)}));
  return rules.alt(std::move(choices));
}

Expr fraction_between(Rules& rules, std::string_view low, bool low_strict, std::string_view high, bool high_strict,
                      bool some = false) {
  if (low.empty()) {
    if (!low_strict) return fraction_to(rules, high, high_strict, some);
    if (high.empty()) return rules.never();
    // 0 < f <= high: a leading zero of both goes, else anything up to high but zero.
    const int d = high[0] - '0';
    std::vector<Expr> choices{
        rules.seq({digit(rules, 0, 0), d == 0 ? fraction_between(rules, "", true, high.substr(1), high_strict)
                                              : fraction_from(rules, "", true)})};
    if (d > 0) choices.push_back(rules.seq({digit(rules, d, d), fraction_to(rules, high.substr(1), high_strict)}));
    if (d > 1) choices.push_back(rules.seq({digit(rules, 1, d - 1), any_digits(rules)}));
    return rules.alt(std::move(choices));
  }
  if (high.empty()) return rules.never();
  const int a = low[0] - '0', b = high[0] - '0';
  if (a > b) return rules.never();
  if (a == b)
    return rules.seq(
        {digit(rules, a, a), fraction_between(rules, low.substr(1), low_strict, high.substr(1), high_strict)});
  std::vector<Expr> choices{rules.seq({digit(rules, a, a), fraction_from(rules, low.substr(1), low_strict)}),
                            rules.seq({digit(rules, b, b), fraction_to(rules, high.substr(1), high_strict)})};
  if (a + 1 <= b - 1) choices.push_back(rules.seq({digit(rules, a + 1, b - 1), any_digits(rules)}));
  return rules.alt(std::move(choices));
}

// A whole part and then a fraction of the given digits; the point is there only with a digit after it.
Expr with_fraction(Rules& rules, Expr whole, Expr fraction, bool may_be_whole) {
  std::vector<Expr> choices;
  if (may_be_whole) choices.push_back(whole);
  choices.push_back(rules.seq({whole, rules.literal("."), fraction}));
  return rules.alt(std::move(choices));
}

struct Magnitude {
  const Decimal* value;
  bool exclusive;
};

// Numbers >= 0 (their absolute values) from low to high; either may be missing. `low` is 0 when missing.
Expr magnitude(Rules& rules, std::optional<Magnitude> low, std::optional<Magnitude> high) {
  static const Decimal zero;
  if (!low) low = Magnitude{&zero, false};
  const std::string& lw = low->value->whole;
  const std::string& lf = low->value->fraction;
  if (high && compare_size(*low->value, *high->value) > 0) return rules.never();
  std::vector<Expr> choices;
  const bool low_whole = lf.empty() && !low->exclusive;  // the whole number itself is in
  if (high && high->value->whole == lw) {
    const std::string& hf = high->value->fraction;
    const bool whole_in = low_whole && (!hf.empty() || !high->exclusive);
    return with_fraction(rules, rules.literal(lw),
                         fraction_between(rules, lf, low->exclusive, hf, high->exclusive, true), whole_in);
  }
  if (low_whole) {
    choices.push_back(with_fraction(rules, rules.literal(lw), digits(rules, 1, kMaxFraction), true));
  } else {
    choices.push_back(with_fraction(rules, rules.literal(lw), fraction_from(rules, lf, low->exclusive, true), false));
  }
  const std::string next = plus_one(lw);
  if (!high) {
    choices.push_back(with_fraction(rules, whole_range(rules, next, ""), digits(rules, 1, kMaxFraction), true));
    return rules.alt(std::move(choices));
  }
  const std::string& hw = high->value->whole;
  const std::string& hf = high->value->fraction;
  const std::string last = minus_one(hw);  // hw > lw >= 0
  if (compare_whole(next, last) <= 0)
    choices.push_back(with_fraction(rules, whole_range(rules, next, last), digits(rules, 1, kMaxFraction), true));
  const bool top_in = !hf.empty() || !high->exclusive;
  choices.push_back(with_fraction(rules, rules.literal(hw), fraction_to(rules, hf, high->exclusive, true), top_in));
  return rules.alt(std::move(choices));
}

// The whole numbers that bound an integer from below or above, after fractions and exclusion.
std::pair<bool, std::string> integer_bound(const Bound& b, bool is_low) {
  const Decimal& d = b.value;
  if (d.fraction.empty() && !b.exclusive) return {d.negative, d.whole};
  // Towards the inside: up for a low bound, down for a high one.
  const bool away_from_zero = d.negative != is_low;
  if (!d.fraction.empty()) return {d.negative, away_from_zero ? plus_one(d.whole) : d.whole};
  if (d.whole == "0") return {!is_low, "1"};
  return {d.negative, away_from_zero ? plus_one(d.whole) : minus_one(d.whole)};
}

Expr signed_choice(Rules& rules, std::vector<Expr> positive, std::vector<Expr> negative) {
  std::vector<Expr> choices = std::move(positive);
  for (Expr e : negative) choices.push_back(rules.seq({rules.literal("-"), e}));
  return rules.alt(std::move(choices));
}

}  // namespace

Result<Decimal> Decimal::parse(std::string_view text) {
  Decimal d;
  const std::string_view seen = text;
  if (!text.empty() && text[0] == '-') {
    d.negative = true;
    text.remove_prefix(1);
  }
  int64_t exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view digits = text.substr(e + 1);
    const bool minus = !digits.empty() && digits[0] == '-';
    if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.remove_prefix(1);
    for (char c : digits) exponent = std::min<int64_t>(exponent * 10 + (c - '0'), 100000);
    if (minus) exponent = -exponent;
    text = text.substr(0, e);
  }
  const size_t point = text.find('.');
  std::string all(text.substr(0, point));
  int64_t at = static_cast<int64_t>(all.size()) + exponent;  // where the point is in `all`
  if (point != std::string_view::npos) all += text.substr(point + 1);
  if (all.find_first_not_of("0123456789") != std::string::npos) return fail(Code::invalid, "'{}' is no number", seen);
  if (all.find_first_not_of('0') == std::string::npos) return Decimal{};
  if (at < -kMaxDigits || at > kMaxDigits || all.size() > 2 * kMaxDigits)
    return fail(Code::unsupported, "{} has more than {} digits before or after the point", seen, kMaxDigits);
  if (at <= 0) all.insert(0, static_cast<size_t>(1 - at), '0'), at = 1;
  if (at > static_cast<int64_t>(all.size())) all.append(at - all.size(), '0');
  d.whole = all.substr(0, at);
  d.fraction = all.substr(at);
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size() - 1));
  while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
  if (d.fraction.size() > kMaxDigits || d.whole.size() > kMaxDigits)
    return fail(Code::unsupported, "{} has more than {} digits before or after the point", seen, kMaxDigits);
  return d;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? compare_size(b, a) : compare_size(a, b);
}

Result<Expr> integer_rule(Rules& rules, const std::optional<Bound>& low, const std::optional<Bound>& high) {
  std::vector<Expr> positive, negative;
  std::optional<std::pair<bool, std::string>> lo, hi;
  if (low) lo = integer_bound(*low, true);
  if (high) hi = integer_bound(*high, false);
  const auto zero_is_positive = [](auto& b) {
    if (b && b->second == "0") b->first = false;
  };
  zero_is_positive(lo), zero_is_positive(hi);
  const auto order = [](const std::pair<bool, std::string>& a, const std::pair<bool, std::string>& b) {
    if (a.first != b.first) return a.first ? -1 : 1;
    return a.first ? compare_whole(b.second, a.second) : compare_whole(a.second, b.second);
  };
  if (lo && hi && order(*lo, *hi) > 0) return fail(Code::invalid, "no integer lies between the bounds");
  if (!hi || !hi->first)
    positive.push_back(whole_range(rules, lo && !lo->first ? lo->second : "0", hi ? hi->second : ""));
  if (!lo || lo->first)
    negative.push_back(whole_range(rules, hi && hi->first ? hi->second : "1", lo ? lo->second : ""));
  return signed_choice(rules, std::move(positive), std::move(negative));
}

Result<Expr> number_rule(Rules& rules, const std::optional<Bound>& low, const std::optional<Bound>& high) {
  if (!low && !high) {
    const Expr whole = whole_range(rules, "0", "");
    const Expr fraction = rules.optional(rules.seq({rules.literal("."), digits(rules, 1, kMaxFraction)}));
    // Two digits: what a double holds, or nearly. "1e9999" is JSON, but no number that a reader can have.
    const Expr exponent = rules.optional(
        rules.seq({rules.chars(CharSet({{'e', 'e'}, {'E', 'E'}})),
                   rules.optional(rules.chars(CharSet({{'+', '+'}, {'-', '-'}}))), digits(rules, 1, 2)}));
    return rules.seq({rules.optional(rules.literal("-")), whole, fraction, exponent});
  }
  if (low && high) {
    const int order = compare(low->value, high->value);
    if (order > 0 || (order == 0 && (low->exclusive || high->exclusive)))
      return fail(Code::invalid, "no number lies between the bounds");
  }
  std::vector<Expr> positive, negative;
  const auto size_of = [](const Bound& b) { return Magnitude{&b.value, b.exclusive}; };
  std::optional<Magnitude> lo, hi;
  if (!high || !(high->value.negative || (high->value.is_zero() && high->exclusive))) {
    if (low && !low->value.negative) lo = size_of(*low);
    if (high) hi = size_of(*high);
    positive.push_back(magnitude(rules, lo, hi));
  }
  if (!low || low->value.negative) {
    // -0 is 0, which is in unless the upper bound is below it, or is it and exclusive.
    static const Decimal zero;
    lo = hi = std::nullopt;
    if (high && high->value.negative) lo = size_of(*high);
    if (high && high->value.is_zero()) lo = Magnitude{&zero, true};
    if (low) hi = size_of(*low);
    negative.push_back(magnitude(rules, lo, hi));
  }
  return signed_choice(rules, std::move(positive), std::move(negative));
}

Result<Expr> multiple_rule(Rules& rules, const Decimal& of, bool integer, const std::optional<Bound>& low,
                           const std::optional<Bound>& high) {
  if (of.negative || of.is_zero()) return fail(Code::invalid, "a multiple of a number that is not positive");
  const std::string scaled_text = (of.whole == "0" ? "" : of.whole) + of.fraction;
  const size_t first = scaled_text.find_first_not_of('0');
  const std::string significant = scaled_text.substr(first);
  const int scale = static_cast<int>(of.fraction.size());
  const int64_t step = significant.size() > 4 ? kMaxMultiple + 1 : std::stoll(significant);
  if (step > kMaxMultiple || scale > 9)
    return fail(Code::unsupported, "multiples of more than {} steps can not be enforced", kMaxMultiple);
  const auto is_zero = [](const std::optional<Bound>& b) { return b && b->value.is_zero(); };
  const bool open = (!low || is_zero(low)) && (!high || is_zero(high));
  if (!open) {
    if (!integer || scale != 0 || !low || !high || low->value.whole.size() > 17 || high->value.whole.size() > 17)
      return fail(Code::unsupported, "this multiple and these bounds can not be enforced together");
    ARGENT_TRY(integer_rule(rules, low, high));
    const auto value = [](const std::pair<bool, std::string>& b) { return (b.first ? -1 : 1) * std::stoll(b.second); };
    const int64_t lo = value(integer_bound(*low, true)), hi = value(integer_bound(*high, false));
    if ((hi - lo) / step > kMaxListed)
      return fail(Code::unsupported, "more than {} multiples lie between the bounds", kMaxListed);
    std::vector<Expr> choices;
    for (int64_t n = lo; n <= hi; n++) {
      if (n % step != 0) continue;
      choices.push_back(rules.literal(std::to_string(n)));
      n += step - 1;
    }
    if (choices.empty()) return fail(Code::invalid, "no multiple lies between the bounds");
    return rules.alt(std::move(choices));
  }
  // One rule for each remainder and number of fraction digits read (none: before the point).
  const bool whole_only = integer || scale == 0;
  std::vector<int64_t> powers{1};
  for (int i = 0; i < scale; i++) powers.push_back(powers.back() * 10);
  const int points = whole_only ? 1 : scale + 1;  // states: before the point, then after 1 .. scale digits
  if (step * points > 4 * kMaxMultiple)
    return fail(Code::unsupported, "multiples of so many steps can not be enforced");
  std::vector<RuleId> states;
  for (int64_t i = 0; i < step * points; i++) states.push_back(rules.add("multiple"));
  for (int64_t rest = 0; rest < step; rest++) {
    std::vector<Expr> choices;
    if (rest * powers[scale] % step == 0) choices.push_back(rules.literal(""));
    const auto next_of = [&](int place) {
      std::vector<Expr> out;
      for (int d = 0; d < 10; d++)
        out.push_back(rules.seq({digit(rules, d, d), rules.ref(states[place * step + (rest * 10 + d) % step])}));
      return out;
    };
    for (Expr e : next_of(0)) choices.push_back(e);
    if (!whole_only) choices.push_back(rules.seq({rules.literal("."), rules.alt(next_of(1))}));
    rules.define(states[rest], rules.alt(std::move(choices)));
    for (int place = 1; place < points; place++) {
      choices.clear();
      if (rest * powers[scale - place] % step == 0) choices.push_back(rules.literal(""));
      if (place + 1 < points)
        for (Expr e : next_of(place + 1)) choices.push_back(e);
      rules.define(states[place * step + rest], rules.alt(std::move(choices)));
    }
  }
  std::vector<Expr> from_one;
  for (int d = 1; d < 10; d++) from_one.push_back(rules.seq({digit(rules, d, d), rules.ref(states[d % step])}));
  std::vector<Expr> zero{rules.literal("0")};
  if (!whole_only) {
    std::vector<Expr> after;
    for (int d = 0; d < 10; d++) after.push_back(rules.seq({digit(rules, d, d), rules.ref(states[step + d % step])}));
    zero.push_back(rules.seq({rules.literal("0."), rules.alt(std::move(after))}));
  }
  const bool below = !is_zero(low), above = !is_zero(high);
  if ((is_zero(low) && low->exclusive) || (is_zero(high) && high->exclusive)) {
    if (!whole_only) return fail(Code::unsupported, "this multiple and these bounds can not be enforced together");
    zero.clear();
  }
  std::vector<Expr> positive = zero, negative;
  if (above) positive.insert(positive.end(), from_one.begin(), from_one.end());
  if (below) negative = from_one;
  if (below && !whole_only) negative.push_back(zero[1]);
  if (positive.empty() && negative.empty()) return fail(Code::invalid, "no multiple lies between the bounds");
  return signed_choice(rules, std::move(positive), std::move(negative));
}

}  // namespace argent::grammar
