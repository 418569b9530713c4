// Switches from the environment (switches.def), and the few variables of the system that matter here.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace argent {

enum class Switch {
#define SWITCH(name, value, why) name,
#include "base/switches.def"
#undef SWITCH
};

struct SwitchInfo {
  std::string_view variable;  // "ARGENT_MODELS"
  std::string_view fallback;
  std::string_view why;
};
std::span<const SwitchInfo> switches();

// The variable's value, or the default when it is unset or empty.
std::string switch_text(Switch s);
// invalid: the value is not 0 or 1 / not a number from 0 to max.
Result<bool> switch_bool(Switch s);
Result<uint32_t> switch_u32(Switch s, uint32_t max);

// A variable of the system such as XDG_CACHE_HOME, HOME or NO_COLOR; "" when unset.
std::string environment(const char* name);

}  // namespace argent
