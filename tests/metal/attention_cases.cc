#include <fmt/format.h>

#include "metal/attention_bench.h"

namespace argent::metal {

namespace {

struct Named {
  const char* kernel;
  const char* name;
  AttentionShape shape;
};

const auto f16 = KvType::f16, bf16 = KvType::bf16, f32 = KvType::f32, q8_0 = KvType::q8_0;

// Members are n_head, n_head_kv, d_head, d_value, sequences {length before the step, rows}.
std::vector<Named> any_shapes() {
  return {
      {"any", "one_key", {1, 1, 20, 12, {{0, 1}}}},
      {"any", "odd", {3, 1, 7, 5, {{33, 2}, {0, 3}}, bf16, f16}},
      {"any", "long_row", {2, 2, 20, 12, {{130, 2}}, f32, bf16, 0, 1.5f, 4.0f}},
      {"any", "512", {2, 1, 512, 512, {{40, 1}}, f16, f32, 0, 0, 1, false, 1, 64}},
      {"any", "window", {2, 1, 12, 20, {{100, 3}, {10, 11}, {64, 1}}, f16, f16, 37}},
      {"any", "q8_0", {2, 1, 32, 64, {{31, 2}}, q8_0, q8_0}},
      {"any", "very_low", {1, 1, 24, 24, {{40, 1}}, f16, f16, 0, 0, 900.0f, true}},
      {"any", "peaked", {2, 1, 24, 24, {{70, 1}}, f16, f16, 0, 0, 400.0f}},
  };
}

std::vector<Named> decode_shapes() {
  return {
      {"decode", "one_key", {2, 2, 64, 64, {{0, 1}}, q8_0, q8_0}},
      {"decode", "mixed", {3, 1, 64, 64, {{50, 2}, {3, 9}, {95, 1}}, f16, bf16}},
      {"decode", "split", {2, 1, 64, 64, {{700, 1}, {31, 1}}}},
      {"decode", "splits_33", {1, 1, 64, 64, {{9600, 1}}, f16, f16, 0, 0, 1, false, 64}},
      {"decode", "splits_2_and_3", {2, 1, 64, 64, {{700, 1}, {600, 1}, {31, 1}, {900, 1}}}},
      {"decode", "gqa_5", {5, 1, 64, 64, {{33, 1}}, f16, f16, 20}},
      {"decode", "split", {1, 1, 80, 80, {{640, 1}}, f16, f16, 0, 0, 30}},
      {"decode", "gqa_11", {22, 2, 80, 80, {{40, 1}}, bf16, f32}},
      {"decode", "window", {8, 2, 80, 80, {{100, 3}, {10, 1}}, f16, f16, 37}},
      {"decode", "window_split", {2, 2, 96, 96, {{900, 2}}, f16, f32, 611, 1.5f, 4.0f}},
      {"decode", "q8_0", {4, 2, 96, 96, {{66, 1}}, q8_0, q8_0}},
      {"decode", "gqa_8", {8, 1, 96, 96, {{45, 1}}, f16, f16, 0, 0, 90}},
      {"decode", "gqa_3", {3, 1, 96, 96, {{32, 2}}, f32, f32}},
      {"decode", "split", {1, 1, 128, 128, {{590, 1}}, f16, f16}},
      {"decode", "mixed_types", {6, 1, 128, 128, {{131, 3}}, q8_0, bf16}},
      {"decode", "very_low", {2, 1, 128, 128, {{40, 1}}, f16, f16, 0, 0, 900.0f, true}},
      {"decode", "peaked", {2, 1, 128, 128, {{70, 1}}, f16, f16, 0, 0, 400.0f}},
      {"decode", "simdgroups", {2, 2, 128, 128, {{70, 1}}, f32, f16, 0, 0, 1, false, 1, 64}},
      {"decode", "gqa_6", {6, 1, 256, 256, {{65, 1}}, f16, f32, 50, 3.0f, 3.0f}},
      {"decode", "split", {2, 2, 256, 256, {{600, 1}}, bf16, q8_0, 0, 0, 1, false, 2}},
  };
}

std::vector<Named> prefill_shapes() {
  return {
      {"prefill", "ten", {2, 1, 64, 64, {{0, 10}}}},
      {"prefill", "q8_0", {1, 1, 64, 64, {{3, 9}}, q8_0, q8_0}},
      {"prefill", "two_tiles", {3, 3, 64, 64, {{0, 41}, {5, 2}, {60, 33}}, f16, bf16}},
      {"prefill", "window", {2, 1, 64, 64, {{100, 40}, {7, 20}}, f16, f16, 19}},
      {"prefill", "peaked", {2, 1, 64, 64, {{70, 12}}, f16, f16, 0, 0, 60}},
      {"prefill", "odd_80", {2, 1, 80, 80, {{90, 43}}, bf16, f32, 0, 1.5f, 4.0f}},
      {"prefill", "window_80", {1, 1, 80, 80, {{75, 50}}, f16, f16, 65, 0, 30}},
      {"prefill", "q8_0", {2, 2, 96, 96, {{20, 13}, {0, 9}}, q8_0, q8_0, 0, 0, 20}},
      {"prefill", "f32", {1, 1, 96, 96, {{33, 31}}, f32, f32, 33, 0, 60}},
      {"prefill", "gqa", {6, 2, 128, 128, {{30, 17}}, f16, q8_0}},
      {"prefill", "window_128", {1, 1, 128, 128, {{37, 24}}, bf16, f16, 23}},
      {"prefill", "very_low", {1, 1, 128, 128, {{20, 30}}, f16, f16, 0, 0, 900.0f, true}},
      {"prefill", "peaked", {1, 1, 128, 128, {{70, 12}}, f16, f16, 0, 0, 60.0f}},
      {"prefill", "256", {2, 1, 256, 256, {{60, 20}}, f16, q8_0, 0, 3.0f, 3.0f}},
      {"prefill", "window_256", {1, 1, 256, 256, {{60, 41}}, bf16, f32, 44, 0, 40}},
  };
}

std::vector<Case> attention_cases() {
  std::vector<Case> cases;
  for (const auto& shapes : {any_shapes(), decode_shapes(), prefill_shapes()}) {
    for (const Named& n : shapes) {
      // Cases called splits are those of the kernel that joins them.
      const std::string name = n.name, kernel = fmt::format("attention_{}", n.kernel);
      const std::string full = name.starts_with("splits")       ? "attention_combine"
                               : n.kernel == std::string("any") ? kernel
                                                                : fmt::format("{}_{}", kernel, n.shape.d_head);
      cases.push_back({full, fmt::format("{}_{}", full, name),
                       [=](Device& device) { return run_attention(device, n.kernel, n.shape); }});
    }
  }
  return cases;
}

const CaseSet known(attention_cases);

}  // namespace

}  // namespace argent::metal
