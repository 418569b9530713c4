// Where the time of a run went, by op: what --profile prints.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "engine/engine.h"

namespace argent::cli {

// A table, slowest op first, layers summed: calls, time, share, bytes, GB/s, GFLOP/s. Ends with a newline.
std::string profile_text(std::span<const OpTime> times);
inline std::string profile_text(const Engine& engine) { return profile_text(engine.profile()); }

// The same rows as an array of objects, and each op's layers: [{"op", "count", "seconds", "bytes", "flops",
// "bytes_per_second", "flops_per_second", "layers": [{"layer", "count", "seconds"}]}].
nlohmann::ordered_json profile_json(std::span<const OpTime> times);
inline nlohmann::ordered_json profile_json(const Engine& engine) { return profile_json(engine.profile()); }

}  // namespace argent::cli
