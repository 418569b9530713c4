#include "base/switches.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <vector>

namespace argent {
namespace {

std::string upper(std::string_view name) {
  std::string out = "ARGENT_";
  for (char c : name) out += c >= 'a' && c <= 'z' ? char(c - 32) : c;
  return out;
}

}  // namespace

std::span<const SwitchInfo> switches() {
  static const std::vector<std::string> variables = {
#define SWITCH(name, value, why) upper(#name),
#include "base/switches.def"
#undef SWITCH
  };
  static const std::vector<SwitchInfo> rows = [] {
    std::vector<SwitchInfo> out;
    size_t i = 0;
#define SWITCH(name, value, why) out.push_back({variables[i++], value, why});
#include "base/switches.def"
#undef SWITCH
    return out;
  }();
  return rows;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string switch_text(Switch s) {
  const SwitchInfo& row = switches()[size_t(s)];
  const std::string value = environment(std::string(row.variable).c_str());
  return value.empty() ? std::string(row.fallback) : value;
}

Result<uint32_t> switch_u32(Switch s, uint32_t max) {
  const std::string text = switch_text(s);
  uint32_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n > max)
    return fail(Code::invalid, "{} is '{}', wanted a number from 0 to {}", switches()[size_t(s)].variable,
                text.substr(0, 64), max);
  return n;
}

Result<bool> switch_bool(Switch s) {
  ARGENT_LET(const uint32_t n, switch_u32(s, 1));
  return n == 1;
}

}  // namespace argent
