// Sampling parameters where they enter: ranges, and setting one by its name.
#pragma once

#include <string_view>

#include "base/result.h"
#include "graph/step.h"

namespace argent::sample {

// Every field in its range: temperature 0 or 0.0001 to 100; 0 < top_p <= 1; 0 <= min_p <= 1; 0.01 <= repeat_penalty <=
// 100; presence and frequency penalty -100 to 100; top_k, repeat_last_n, seed, sample_index: anything. invalid: names
// the field, its value and its range.
Status check(const SampleParams& params);

// Sets "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty",
// "frequency_penalty" or "seed" from text, as flags give
// it: a decimal number and nothing else. not_found: no such parameter; invalid: no number, or out of range (nothing is
// set).
Status set(SampleParams& params, std::string_view name, std::string_view text);

}  // namespace argent::sample
