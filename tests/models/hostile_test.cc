// Models that must be refused: one line with the file, the key or tensor, what was seen and what was wanted.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>

#include "support/tiny_model.h"

namespace argent {
namespace {

using test::TinyModel;

constexpr uint32_t kHuge = 1u << 31;
const float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

void expect_refused(const TinyModel& tiny, const std::string& what, std::vector<std::string> wanted,
                    Code code = Code::invalid) {
  const auto start = std::chrono::steady_clock::now();
  const auto model = test::load(tiny);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  if (model) {
    ADD_FAILURE() << tiny.arch << ", " << what << ": loads";
    return;
  }
  const Error& error = model.error();
  EXPECT_EQ(error.code, code) << tiny.arch << ", " << what << ": " << error.message;
  wanted.push_back("tiny.gguf: ");
  for (const std::string& part : wanted)
    EXPECT_NE(error.message.find(part), std::string::npos)
        << tiny.arch << ", " << what << "\n  says  " << error.message << "\n  wants " << part;
  for (const char c : error.message) EXPECT_TRUE(uint8_t(c) >= 0x20 && uint8_t(c) < 0x7f) << error.message;
  EXPECT_LT(error.message.size(), 400u) << error.message;
}

struct Row {
  std::string arch;
  std::string key;
  std::function<void(TinyModel&)> change;
  std::vector<std::string> wanted;  // parts of the message, beside the key
  Code code = Code::invalid;
};

// One value for a key.
template <class T>
Row with(std::string arch, std::string key, T value, std::vector<std::string> wanted, Code code = Code::invalid) {
  return {arch, key, [key, value](TinyModel& t) { t.set(key, value); }, std::move(wanted), code};
}
template <class T>
Row with_array(std::string arch, std::string key, std::vector<T> values, std::vector<std::string> wanted) {
  return {arch, key, [key, values](TinyModel& t) { t.keys.set_array<T>(t.full(key), std::span<const T>(values)); },
          std::move(wanted)};
}

TEST(Hostile, RequiredKeys) {
  for (const std::string& arch : test::kArchitectures) {
    std::vector<std::string> required = {"block_count",          "embedding_length",
                                         "context_length",       "feed_forward_length",
                                         "attention.head_count", "attention.layer_norm_rms_epsilon"};
    if (arch == "muse-glimmer") required.insert(required.end(), {"attention.sliding_window", "logit_scale"});
    for (const std::string& key : required) {
      TinyModel missing(arch);
      missing.unset(key);
      expect_refused(missing, key, {"'" + arch + "." + key + "'", "missing", "wanted"});
      TinyModel text(arch);
      text.set(key, "4");
      expect_refused(text, key, {"'" + arch + "." + key + "'", "string '4'", "wanted"});
    }
  }
}

TEST(Hostile, IntegerKeys) {
  for (const std::string& arch : test::kArchitectures) {
    for (const char* key :
         {"block_count", "embedding_length", "context_length", "feed_forward_length", "attention.head_count",
          "attention.head_count_kv", "attention.key_length", "attention.value_length"}) {
      for (const uint32_t value : {0u, kHuge, 0xffffffffu}) {
        TinyModel tiny(arch);
        tiny.set(key, value);
        expect_refused(tiny, key, {tiny.full(key), std::to_string(value), "wanted"});
      }
      TinyModel negative(arch), real(arch), wide(arch), list(arch);
      negative.set(key, int32_t(-1));
      expect_refused(negative, key, {negative.full(key), "i32 -1", "wanted"});
      real.set(key, 2.0f);
      expect_refused(real, key, {real.full(key), "f32 2", "wanted"});
      wide.set(key, uint64_t(1) << 32 | 2);
      expect_refused(wide, key, {wide.full(key), "u64 4294967298", "wanted"});
      const uint32_t none[] = {0, 0, 0};
      list.keys.set_array<uint32_t>(list.full(key), none);
      expect_refused(list, key, {list.full(key), "wanted"});
    }
  }
}

TEST(Hostile, HyperParameters) {
  const std::vector<Row> rows = {
      with("llama", "attention.head_count_kv", 3u, {"4 query heads", "3 key heads"}),
      with("llama", "attention.head_count_kv", 8u, {"4 query heads", "8 key heads"}),
      with("llama", "rope.dimension_count", 34u, {"u32 34", "from 2 to 32"}),
      with("llama", "rope.dimension_count", 0u, {"u32 0", "from 2 to 32"}),
      with("qwen2", "rope.dimension_count", 31u, {"31", "even"}),
      with("llama", "rope.dimension_count", 16u, {"16", "the size of a head, 32"}, Code::unsupported),
      with("llama", "attention.layer_norm_rms_epsilon", 0.0f, {"f32 0", "wanted"}),
      with("qwen3", "attention.layer_norm_rms_epsilon", -1e-5f, {"f32 -1e-05", "wanted"}),
      with("gemma3", "attention.layer_norm_rms_epsilon", kNan, {"f32 nan", "wanted"}),
      with("gemma3", "attention.layer_norm_rms_epsilon", kInf, {"f32 inf", "wanted"}),
      with("qwen2", "attention.layer_norm_rms_epsilon", 2.0f, {"f32 2", "wanted"}),
      with("llama", "rope.freq_base", 0.0f, {"f32 0", "wanted"}),
      with("llama", "rope.freq_base", kNan, {"f32 nan", "wanted"}),
      with("llama", "attention.scale", 0.0f, {"f32 0", "wanted"}),
      with("gemma3", "rope.freq_base_swa", -1.0f, {"f32 -1", "wanted"}),
      with("gemma3", "final_logit_softcapping", -1.0f, {"f32 -1", "wanted"}),
      with("gemma3", "attention.sliding_window", kHuge, {"u32 2147483648", "wanted"}),
      with("muse-glimmer", "attention.sliding_window", 0u, {"u32 0", "wanted"}),
      with("muse-glimmer", "attention.sliding_window", 0xffffffffu, {"u32 4294967295", "wanted"}),
      with("muse-glimmer", "logit_scale", kNan, {"f32 nan", "wanted"}),
      with_array<uint8_t>("gemma3", "attention.sliding_window_pattern", {}, {"u8[0]", "7 of bools"}),
      with_array<uint32_t>("gemma3", "attention.sliding_window_pattern", {1, 1, 1, 1, 1, 0}, {"u32[6]", "7 of bools"}),
      with_array<uint32_t>("gemma3", "attention.sliding_window_pattern", {1, 1, 1, 1, 1, 2, 0}, {"2 at [5]", "0 or 1"}),
      with_array<float>("muse-glimmer", "attention.sliding_window_pattern", {1, 1, 1, 1, 1}, {"f32[5]", "bools"}),
      with("muse-glimmer", "attention.sliding_window_pattern", 1u << 20, {"u32 1048576", "wanted"}),
      with_array<uint32_t>("llama", "attention.head_count", {4, 0}, {"0 at [1]", "wanted"}),
      with_array<uint32_t>("llama", "attention.head_count_kv", {0, 2}, {"0 at [0]", "wanted"}),
      with_array<uint32_t>("llama", "attention.head_count", {4, 4, 4}, {"u32[3]", "of 2"}),
      with_array<uint32_t>("llama", "attention.head_count_kv", {2}, {"u32[1]", "of 2"}),
      with_array<uint32_t>("llama", "feed_forward_length", {96, 0}, {"0 at [1]", "wanted"}),
      with_array<int32_t>("qwen2", "feed_forward_length", {96, -96}, {"-96 at [1]", "wanted"}),
      with("llama", "expert_count", 8u, {"8", "computes 0 only"}, Code::unsupported),
      with("llama", "expert_used_count", 2u, {"2", "computes 0 only"}, Code::unsupported),
      with("qwen3", "expert_count", 8u, {"u32 8", "not understood"}, Code::unsupported),
      with("gemma3", "pooling_type", 1u, {"u32 1", "not understood"}, Code::unsupported),
      with("qwen2", "attention.causal", false, {"bool false", "not understood"}, Code::unsupported),
      with("llama", "attn_logit_softcapping", 50.0f, {"f32 50", "not understood"}, Code::unsupported),
      with("llama", "a\nb\"\x01", "c\nd", {"'llama.a\\x0ab", "not understood"}, Code::unsupported),
      with("llama", "rope.scaling.type", "longrope", {"'longrope'", "none, linear and yarn"}, Code::unsupported),
      with("qwen3", "rope.scaling.type", "\n", {"'\\x0a'", "none, linear and yarn"}, Code::unsupported),
      with("qwen2", "rope.scaling.type", 1u, {"u32 1", "a string"}),
      with("llama", "rope.scaling.factor", -2.0f, {"f32 -2", "wanted"}),
      with("llama", "rope.scaling.factor", 1e-38f, {"1e-38", "wanted"}),
      with("llama", "rope.scaling.factor", kInf, {"f32 inf", "wanted"}),
      with("llama", "rope.scaling.original_context_length", 0u, {"u32 0", "wanted"}),
      with("llama", "rope.scaling.yarn_ext_factor", 2.0f, {"f32 2", "wanted"}),
      with("muse-glimmer", "rope.scaling.factor", 2.0f, {"2", "no rope scaling"}, Code::unsupported),
  };
  for (const Row& row : rows) {
    TinyModel tiny(row.arch);
    row.change(tiny);
    std::vector<std::string> wanted = row.wanted;
    if (row.key.find('\n') == std::string::npos) wanted.push_back(row.arch + "." + row.key);
    expect_refused(tiny, row.key, wanted, row.code);
  }
}

TEST(Hostile, HeadsThatNeedAKeyLength) {
  TinyModel tiny("llama");
  tiny.unset("attention.key_length");
  tiny.set("attention.head_count", 3u);
  tiny.set("attention.head_count_kv", 3u);
  expect_refused(tiny, "n_embd by heads",
                 {"llama.embedding_length 64", "llama.attention.head_count 3", "llama.attention.key_length"});

  // Head sizes from n_embd are bounded as those of keys, so that no product of sizes wraps.
  TinyModel wide("llama");
  wide.unset("attention.key_length");
  wide.unset("attention.value_length");
  wide.unset("rope.dimension_count");
  wide.set("embedding_length", 1u << 20);
  const uint32_t heads[] = {1, 4096};
  wide.keys.set_array<uint32_t>("llama.attention.head_count", heads);
  wide.keys.set_array<uint32_t>("llama.attention.head_count_kv", heads);
  expect_refused(wide, "wide heads", {"llama.embedding_length 1048576", "heads of 1048576", "at most 1024"});

  TinyModel narrow("qwen2");
  narrow.unset("rope.dimension_count");
  narrow.set("attention.key_length", 31u);
  expect_refused(narrow, "odd heads", {"31", "even"});
}

TEST(Hostile, Architecture) {
  TinyModel tiny("llama");
  tiny.keys.set("general.architecture", "nosuch");
  expect_refused(tiny, "nosuch", {"'general.architecture'", "'nosuch'", "gemma3, llama, muse-glimmer, qwen2, qwen3"},
                 Code::unsupported);
  tiny.keys.set("general.architecture", std::string_view("a\nb\0c", 5));
  expect_refused(tiny, "bytes", {"'a\\x0ab\\x00c'"}, Code::unsupported);
  tiny.keys.set("general.architecture", std::string(100000, 'x'));
  expect_refused(tiny, "long", {"'xxxx"}, Code::unsupported);
  tiny.keys.set("general.architecture", 7u);
  expect_refused(tiny, "a number", {"'general.architecture'", "u32 7", "a string"});
  tiny.keys.erase("general.architecture");
  expect_refused(tiny, "none", {"'general.architecture'", "missing", "a string"});
}

TEST(Hostile, EveryTensorMissingOrMisshapen) {
  for (const std::string& arch : test::kArchitectures)
    for (const bool fused : {false, true}) {
      const TinyModel whole(arch, {.fused_qkv = fused});
      for (const auto& tensor : whole.tensors) {
        const std::string quoted = "'" + tensor.name + "'";
        if (tensor.name != "output.weight" || arch == "muse-glimmer") {  // else the head is tied
          TinyModel missing = whole;
          missing.drop(tensor.name);
          // without the fused tensor the three are looked for
          expect_refused(
              missing, tensor.name,
              {tensor.name.find("attn_qkv.weight") != std::string::npos ? "attn_q.weight" : quoted, "missing"});
        }
        for (size_t d = 0; d < tensor.dims.size(); ++d) {
          if (d == 1 && (tensor.name == "token_embd.weight" || tensor.name == "output.weight"))
            continue;  // the vocabulary's size
          TinyModel wrong = whole;
          auto dims = tensor.dims;
          dims[d] += 32;
          wrong.put(tensor.name, dims, tensor.format);
          expect_refused(wrong, tensor.name,
                         {quoted, "[" + std::to_string(dims[0]), "wanted", "[" + std::to_string(tensor.dims[0])});
        }
        TinyModel cube = whole;
        auto dims = tensor.dims;
        dims.push_back(1), dims.push_back(2);
        cube.put(tensor.name, dims, tensor.format);
        expect_refused(cube, tensor.name, {quoted, "[" + std::to_string(dims[0]), "wanted"});
        if (tensor.dims.size() == 1) {
          TinyModel half = whole;
          half.put(tensor.name, tensor.dims, Format::f16);
          expect_refused(half, tensor.name, {quoted, "F16", "wanted F32 ["});
        }
      }
    }
}

TEST(Hostile, VocabularySizesMustAgree) {
  TinyModel tiny("llama");
  tiny.put("output.weight", {64, 90}, Format::q8_0);
  expect_refused(tiny, "output.weight", {"output.weight has 90 rows", "token_embd.weight 100"});
}

TEST(Hostile, ExtraTensors) {
  for (const std::string& arch : test::kArchitectures)
    for (const std::string name :
         {"blk.0.ffn_gate_inp.weight", "blk.9.attn_q.weight", "rope_factors_long.weight", "x\ny"}) {
      TinyModel tiny(arch);
      tiny.put(name, {64, 2}, Format::f32);
      expect_refused(tiny, name, {name == "x\ny" ? "'x\\x0ay'" : "'" + name + "'", "not part of a " + arch + " model"},
                     Code::unsupported);
    }
  TinyModel both("llama", {.fused_qkv = true});
  both.put("blk.0.attn_q.weight", {64, 128}, Format::q8_0);
  expect_refused(both, "q beside qkv", {"'blk.0.attn_q.weight'", "not part of"}, Code::unsupported);
}

TEST(Hostile, FormatsThatNothingComputesWith) {
  for (const std::string name : {"blk.0.ffn_up.weight", "token_embd.weight", "blk.1.attn_norm.weight"}) {
    TinyModel tiny("llama");
    test::TinyTensor t = *tiny.find(name);
    tiny.drop(name);
    gguf::Writer writer = tiny.writer();
    const std::vector<uint8_t> data(t.dims[0] * (t.dims.size() > 1 ? t.dims[1] : 1) * 8);
    writer.add_tensor(name, t.dims, 28, data);  // F64
    const auto bytes = writer.to_bytes();
    ASSERT_TRUE(bytes);
    const auto file = gguf::File::parse(*bytes, "tiny.gguf");
    ASSERT_TRUE(file);
    const auto model = build_model(*file);
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code, Code::unsupported);
    EXPECT_EQ(model.error().message,
              "tiny.gguf: tensor '" + name + "' is stored as F64, which this build does not compute with");
  }
}

TEST(Hostile, ManyLayersWithoutTensorsAreCheap) {
  TinyModel tiny("gemma3");
  tiny.set("block_count", 1024u);
  expect_refused(tiny, "1024 layers", {"'blk.7.attn_norm.weight'", "missing"});
  tiny.set("block_count", 1025u);
  expect_refused(tiny, "1025 layers", {"gemma3.block_count", "u32 1025", "from 1 to 1024"});
}

}  // namespace
}  // namespace argent
