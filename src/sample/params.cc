#include "sample/params.h"

#include <charconv>

namespace argent::sample {
namespace {

Status in_range(std::string_view name, float value, float least, float most, bool zero = false) {
  if ((value >= least && value <= most) || (zero && value == 0)) return {};  // a NaN is nowhere
  return fail(Code::invalid, "{} is {}, wants {}{} to {}", name, value, zero ? "0 or " : "", least, most);
}

template <class T>
Status parse(std::string_view name, std::string_view text, T& out) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty())
    return fail(Code::invalid, "{} is '{}', wants {}", name, text.substr(0, 40),
                std::is_integral_v<T> ? fmt::format("a whole number from 0 to {}", T(-1)) : "a number");
  out = value;
  return {};
}

}  // namespace

Status check(const SampleParams& p) {
  ARGENT_TRY(in_range("temperature", p.temperature, 1e-4f, 100, true));
  if (!(p.top_p > 0 && p.top_p <= 1)) return fail(Code::invalid, "top_p is {}, wants more than 0, at most 1", p.top_p);
  ARGENT_TRY(in_range("min_p", p.min_p, 0, 1));
  ARGENT_TRY(in_range("presence_penalty", p.presence_penalty, -100, 100));
  ARGENT_TRY(in_range("frequency_penalty", p.frequency_penalty, -100, 100));
  return in_range("repeat_penalty", p.repeat_penalty, 0.01f, 100);
}

Status set(SampleParams& params, std::string_view name, std::string_view text) {
  SampleParams p = params;
  if (name == "temperature")
    ARGENT_TRY(parse(name, text, p.temperature));
  else if (name == "top_k")
    ARGENT_TRY(parse(name, text, p.top_k));
  else if (name == "top_p")
    ARGENT_TRY(parse(name, text, p.top_p));
  else if (name == "min_p")
    ARGENT_TRY(parse(name, text, p.min_p));
  else if (name == "repeat_penalty")
    ARGENT_TRY(parse(name, text, p.repeat_penalty));
  else if (name == "repeat_last_n")
    ARGENT_TRY(parse(name, text, p.repeat_last_n));
  else if (name == "presence_penalty")
    ARGENT_TRY(parse(name, text, p.presence_penalty));
  else if (name == "frequency_penalty")
    ARGENT_TRY(parse(name, text, p.frequency_penalty));
  else if (name == "seed")
    ARGENT_TRY(parse(name, text, p.seed));
  else
    return fail(Code::not_found, "no sampling parameter is called '{}'", name.substr(0, 40));
  ARGENT_TRY(check(p));
  params = p;
  return {};
}

}  // namespace argent::sample
