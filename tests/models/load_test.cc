// Models that load: what the graph of each architecture looks like.
#include <gtest/gtest.h>

#include <map>

#include "support/tiny_model.h"

namespace argent {
namespace {

using test::TinyModel;
using test::TinyShape;

std::map<Op, size_t> count_ops(const Graph& graph) {
  std::map<Op, size_t> counts;
  for (const Node& node : graph.nodes) ++counts[node.op];
  return counts;
}

std::unique_ptr<test::LoadedModel> loaded(const TinyModel& tiny) {
  auto model = test::load(tiny);
  EXPECT_TRUE(model) << tiny.arch << ": " << (model ? "" : model.error().message);
  return model ? *std::move(model) : nullptr;
}

TEST(Load, EveryArchitecture) {
  EXPECT_EQ(architectures(), std::vector<std::string_view>(test::kArchitectures.begin(), test::kArchitectures.end()));
  for (const std::string& arch : test::kArchitectures)
    for (const bool tied : {false, true}) {
      if (tied && arch == "muse-glimmer") continue;  // its head is a tensor of its own
      for (const bool fused : {false, true}) {
        const TinyModel tiny(arch, {.tied = tied, .fused_qkv = fused});
        const auto m = loaded(tiny);
        ASSERT_TRUE(m);
        EXPECT_EQ(m->model.arch, arch);
        EXPECT_EQ(m->model.name, "tiny " + arch);
        EXPECT_EQ(m->model.n_layer, tiny.s.n_layer);
        EXPECT_EQ(m->model.n_embd, 64u);
        EXPECT_EQ(m->model.n_vocab, 100u);
        EXPECT_EQ(m->model.n_ctx_train, 4096u);
        EXPECT_EQ(m->model.kv.layers.size(), tiny.s.n_layer);
        uint64_t n_params = 0;
        for (const auto& t : tiny.tensors) n_params += t.dims[0] * (t.dims.size() > 1 ? t.dims[1] : 1);
        EXPECT_EQ(m->model.n_params, n_params);
        ASSERT_TRUE(verify(m->model.graph));
        EXPECT_EQ(describe(m->model.graph.value(m->model.graph.logits)), "f32 [tokens][100]");
        // A tied head is the embedding's value, not a second one.
        size_t tables = 0;
        for (const Value& v : m->model.graph.values)
          tables += v.kind == ValueKind::weight && v.n_rows == 100 && v.width == 64;
        EXPECT_EQ(tables, tied ? 1u : 2u) << arch;
      }
    }
}

TEST(Load, LayersShareRopeTables) {
  for (const std::string& arch : test::kArchitectures) {
    const auto m = loaded(TinyModel(arch));
    // gemma3 has one base for its sliding layers and one for the full ones
    EXPECT_EQ(count_ops(m->model.graph)[Op::rope_table], arch == "gemma3" ? 2u : 1u) << arch;
  }
  TinyModel gemma("gemma3");
  gemma.set("rope.freq_base_swa", 1e6f);  // the global base as well
  EXPECT_EQ(count_ops(loaded(gemma)->model.graph)[Op::rope_table], 1u);
}

TEST(Load, GemmaRotatesSlidingLayersByTheirOwnTable) {
  TinyModel tiny("gemma3");
  tiny.set("rope.scaling.factor", 8.0f);  // of the full layers only
  const auto m = loaded(tiny);
  const Graph& graph = m->model.graph;
  size_t n_ropes = 0;
  for (const Node& rope : graph.nodes) {
    if (rope.op != Op::rope) continue;
    ++n_ropes;
    for (const Node& table : graph.nodes) {
      if (table.op != Op::rope_table || table.outputs[0] != rope.inputs[1]) continue;
      EXPECT_EQ(table.attrs.freq_base, rope.layer == 5 ? 1e6f : 1e4f) << rope.layer;
      EXPECT_EQ(table.attrs.freq_scale, rope.layer == 5 ? 0.125f : 1.0f) << rope.layer;
    }
  }
  EXPECT_EQ(n_ropes, 14u);
}

TEST(Load, OpsOfTheArchitectures) {
  const auto ops = [](const char* arch, const TinyShape& shape = {}) {
    return count_ops(loaded(TinyModel(arch, shape))->model.graph);
  };
  auto llama = ops("llama");
  EXPECT_EQ(llama[Op::matmul], 2 * 7 + 1u);
  EXPECT_EQ(llama[Op::rope], 2 * 2u);
  EXPECT_EQ(llama[Op::add_bias], 0u);
  EXPECT_EQ(ops("qwen2")[Op::add_bias], 2 * 3u);
  EXPECT_EQ(ops("qwen2", {.fused_qkv = true})[Op::add_bias], 2 * 3u);
  EXPECT_EQ(ops("qwen3")[Op::rms_norm], 2 * 4 + 1u);
  auto gemma = ops("gemma3");
  EXPECT_EQ(gemma[Op::rms_norm], 7 * 6 + 1u);
  EXPECT_EQ(gemma[Op::gelu], 7u);
  EXPECT_EQ(gemma[Op::scale], 1u);
  auto glimmer = ops("muse-glimmer");
  EXPECT_EQ(glimmer[Op::rope], 2 * 4u);  // layer 3 is full and has none
  EXPECT_EQ(glimmer[Op::sigmoid], 5u);
}

TEST(Load, SlidingLayersMakeGroups) {
  const auto gemma = loaded(TinyModel("gemma3"));
  EXPECT_EQ(gemma->model.kv.windows, (std::vector<uint32_t>{16, 0}));
  EXPECT_EQ(gemma->model.kv.group_of_layer, (std::vector<uint32_t>{0, 0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(loaded(TinyModel("muse-glimmer"))->model.kv.group_of_layer, (std::vector<uint32_t>{0, 0, 0, 1, 0}));
  EXPECT_EQ(loaded(TinyModel("llama"))->model.kv.windows, (std::vector<uint32_t>{0}));

  TinyModel by_array("gemma3");
  const uint8_t pattern[] = {0, 1, 0, 1, 1, 1, 1};
  by_array.keys.set_array<uint8_t>("gemma3.attention.sliding_window_pattern", pattern);
  EXPECT_EQ(loaded(by_array)->model.kv.group_of_layer, (std::vector<uint32_t>{0, 1, 0, 1, 1, 1, 1}));
  TinyModel by_number("gemma3");
  by_number.set("attention.sliding_window_pattern", 2u);
  EXPECT_EQ(loaded(by_number)->model.kv.group_of_layer, (std::vector<uint32_t>{0, 1, 0, 1, 0, 1, 0}));
  TinyModel no_window("gemma3");
  no_window.unset("attention.sliding_window");
  EXPECT_EQ(loaded(no_window)->model.kv.windows, (std::vector<uint32_t>{0}));
}

Attrs table_of(const TinyModel& tiny) {
  const auto m = loaded(tiny);
  if (m)
    for (const Node& node : m->model.graph.nodes)
      if (node.op == Op::rope_table) return node.attrs;
  return {};
}

TEST(Load, RopeScaling) {
  TinyModel tiny("llama");
  EXPECT_EQ(table_of(tiny).freq_scale, 1.0f);
  EXPECT_EQ(table_of(tiny).freq_base, 10000.0f);
  tiny.set("rope.scaling.factor", 4.0f);  // linear where no type is given
  EXPECT_EQ(table_of(tiny).freq_scale, 0.25f);
  tiny.set("rope.scaling.type", "none");
  EXPECT_EQ(table_of(tiny).freq_scale, 1.0f);
  tiny.set("rope.scaling.type", "linear");
  EXPECT_EQ(table_of(tiny).freq_scale, 0.25f);
  EXPECT_EQ(table_of(tiny).ext_factor, 0.0f);
  tiny.set("rope.scaling.type", "yarn");
  tiny.set("rope.scaling.original_context_length", 1024u);
  EXPECT_EQ(table_of(tiny).ext_factor, 1.0f);
  EXPECT_EQ(table_of(tiny).n_ctx_orig, 1024u);
  EXPECT_EQ(table_of(tiny).freq_scale, 0.25f);
  tiny.unset("rope.scaling.factor");
  tiny.set("rope.scale_linear", 2.0f);  // the older name
  EXPECT_EQ(table_of(tiny).freq_scale, 0.5f);
}

TEST(Load, OptionalKeysHaveDefaults) {
  TinyModel tiny("llama");
  for (const char* key : {"attention.head_count_kv", "attention.key_length", "attention.value_length",
                          "rope.dimension_count", "rope.freq_base"})
    tiny.unset(key);
  tiny.put("blk.0.attn_q.weight", {64, 64}, Format::q8_0);  // head_count 4 of n_embd 64: heads of 16, all of them keys
  for (const char* layer : {"blk.0.", "blk.1."}) {
    for (const char* name : {"attn_q.weight", "attn_k.weight", "attn_v.weight"})
      tiny.put(std::string(layer) + name, {64, 64}, Format::q8_0);
    tiny.put(std::string(layer) + "attn_output.weight", {64, 64}, Format::q8_0);
  }
  const auto m = loaded(tiny);
  ASSERT_TRUE(m);
  EXPECT_EQ(m->model.kv.layers[1], (KvSpec{1, 4, 16, 16, 0}));
  EXPECT_EQ(table_of(tiny).n_rot, 16u);
}

TEST(Load, PerLayerArrays) {
  TinyModel tiny("llama");
  const uint32_t heads[] = {4, 2}, kv[] = {2, 1}, ff[] = {96, 32};
  tiny.keys.set_array<uint32_t>("llama.attention.head_count", heads);
  tiny.keys.set_array<uint32_t>("llama.attention.head_count_kv", kv);
  tiny.keys.set_array<uint32_t>("llama.feed_forward_length", ff);
  tiny.put("blk.1.attn_q.weight", {64, 64}, Format::q8_0);
  tiny.put("blk.1.attn_k.weight", {64, 32}, Format::q8_0);
  tiny.put("blk.1.attn_v.weight", {64, 32}, Format::q8_0);
  tiny.put("blk.1.attn_output.weight", {64, 64}, Format::q8_0);
  tiny.put("blk.1.ffn_gate.weight", {64, 32}, Format::q8_0);
  tiny.put("blk.1.ffn_up.weight", {64, 32}, Format::q8_0);
  tiny.put("blk.1.ffn_down.weight", {32, 64}, Format::q8_0);
  const auto m = loaded(tiny);
  ASSERT_TRUE(m);
  EXPECT_EQ(m->model.kv.layers[1].n_head_kv, 1u);
}

TEST(Load, OtherPrefixesAreMetadata) {
  TinyModel tiny("qwen3");
  tiny.keys.set("llama.expert_count", 8u);
  tiny.keys.set("quantize.imatrix.file", "x");
  tiny.keys.set("qwen3moe.expert_count", 8u);
  tiny.keys.set("general.license", "mit");
  for (const char* key : {"vocab_size", "embedding_length_out"}) tiny.set(key, 64u);
  tiny.set("rope.scaling.finetuned", true);
  EXPECT_TRUE(loaded(tiny));
  TinyModel dense("llama");
  dense.set("expert_count", 0u);
  dense.set("expert_used_count", 0u);
  EXPECT_TRUE(loaded(dense));
}

TEST(Load, PartsOfAFusedTensorAreItsRows) {
  const TinyModel tiny("qwen2", {.fused_qkv = true});
  const auto m = loaded(tiny);
  const TinyModel& t = tiny;
  const auto& weight = std::find_if(t.tensors.begin(), t.tensors.end(), [](const auto& x) {
                         return x.name == "blk.1.attn_qkv.weight";
                       })->data;
  const auto& bias = std::find_if(t.tensors.begin(), t.tensors.end(), [](const auto& x) {
                       return x.name == "blk.1.attn_qkv.bias";
                     })->data;
  size_t weight_at = 0, bias_at = 0;
  for (const Value& v : m->model.graph.values) {
    if (v.name.starts_with("blk.1.attn_qkv.weight")) {
      EXPECT_EQ(std::memcmp(v.data, &weight[weight_at], v.file_bytes()), 0) << v.name;
      weight_at += v.file_bytes();
    } else if (v.name.starts_with("blk.1.attn_qkv.bias")) {
      EXPECT_EQ(std::memcmp(v.data, &bias[bias_at], v.file_bytes()), 0) << v.name;
      bias_at += v.file_bytes();
    }
  }
  EXPECT_EQ(weight_at, weight.size());
  EXPECT_EQ(bias_at, bias.size());
}

}  // namespace
}  // namespace argent
