// Tiny models with random weights, made in memory: the real layout of each architecture, small enough for thousands of
// steps on the reference backend. Tests change keys and tensors before they take the bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "gguf/writer.h"
#include "models/model.h"

namespace argent::test {

inline const std::vector<std::string> kArchitectures = {"gemma3", "llama", "muse-glimmer", "qwen2", "qwen3"};

struct TinyShape {
  uint32_t n_layer = 0;  // 0: 2, or enough for a full layer among the sliding ones
  uint32_t n_embd = 64, n_ff = 96, n_head = 4, n_head_kv = 2, d_head = 32, n_vocab = 100;
  uint32_t window = 16;
  bool tied = false, fused_qkv = false, rope_factors = false;
  // Of the matrices, in turn; F32, F16, and formats whose block has one scale, in front: no Q4_1, no Q5_1.
  std::vector<Format> formats = {Format::q8_0};
  uint64_t seed = 1;
};

struct TinyTensor {
  std::string name;
  std::vector<uint64_t> dims;
  Format format = Format::f32;
  std::vector<uint8_t> data;
};

class TinyModel {
 public:
  explicit TinyModel(const std::string& arch, const TinyShape& shape = {}) : arch(arch), s(shape), rng_(shape.seed) {
    const bool gemma = arch == "gemma3", glimmer = arch == "muse-glimmer";
    if (!s.n_layer) s.n_layer = gemma ? 7 : glimmer ? 5 : 2;
    keys.set("general.architecture", arch);
    keys.set("general.name", "tiny " + arch);
    keys.set("tokenizer.ggml.model", "none");
    set("block_count", s.n_layer);
    set("context_length", 4096u);
    set("embedding_length", s.n_embd);
    set("feed_forward_length", s.n_ff);
    set("attention.head_count", s.n_head);
    set("attention.head_count_kv", s.n_head_kv);
    set("attention.key_length", s.d_head);
    set("attention.value_length", s.d_head);
    set("attention.layer_norm_rms_epsilon", 1e-5f);
    set("rope.freq_base", gemma ? 1e6f : 10000.0f);
    if (!gemma) set("rope.dimension_count", s.d_head);
    if (gemma || glimmer) set("attention.sliding_window", s.window);
    if (glimmer) set("logit_scale", 0.25f);
    add_tensors();
  }

  // A key under the architecture's prefix.
  template <class T>
  void set(const std::string& key, T value) {
    keys.set(full(key), value);
  }
  std::string full(const std::string& key) const { return arch + "." + key; }
  void unset(const std::string& key) { keys.erase(full(key)); }

  TinyTensor* find(const std::string& name) {
    const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const TinyTensor& t) { return t.name == name; });
    return it == tensors.end() ? nullptr : &*it;
  }
  void drop(const std::string& name) {
    std::erase_if(tensors, [&](const TinyTensor& t) { return t.name == name; });
  }
  // Adds a tensor, or replaces the one of that name; zeros.
  TinyTensor& put(const std::string& name, std::vector<uint64_t> dims, Format format) {
    TinyTensor* t = find(name);
    if (!t) t = &tensors.emplace_back();
    uint64_t rows = 1;
    for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
    const uint64_t n_bytes = rows * row_bytes(format, dims[0]);
    *t = {name, std::move(dims), format, std::vector<uint8_t>(n_bytes)};
    return *t;
  }
  // Element [row][column] of an F32 tensor.
  void poke(const std::string& name, uint64_t row, uint64_t column, float value) {
    TinyTensor& t = *find(name);
    std::memcpy(&t.data[(row * t.dims[0] + column) * sizeof(float)], &value, sizeof value);
  }

  gguf::Writer writer() const {
    gguf::Writer w = keys;
    for (const TinyTensor& t : tensors) w.add_tensor(t.name, t.dims, info(t.format).gguf_id, t.data);
    return w;
  }
  std::string write(const std::string& name) const {
    const std::string path = testing::TempDir() + name;
    const Status status = writer().write(path);
    EXPECT_TRUE(status) << status.error().message;
    return path;
  }

  const std::string arch;
  TinyShape s;
  gguf::Writer keys;
  std::vector<TinyTensor> tensors;

 private:
  float uniform() { return float(rng_.next() >> 40) * 0x1p-23f - 1; }

  void matrix(const std::string& name, uint32_t n_out, uint32_t n_in, float gain = 1, bool floats = false) {
    const Format format = floats ? Format::f32 : s.formats[turn_++ % s.formats.size()];
    TinyTensor& t = put(name, {n_in, n_out}, format);
    const float std = gain / std::sqrt(float(n_in));
    if (format == Format::f32 || format == Format::f16) {
      for (size_t i = 0; i < size_t(n_in) * n_out; ++i) {
        const float x = uniform() * std * 1.73f;
        const uint16_t half = float_to_half(x);
        if (format == Format::f32)
          std::memcpy(&t.data[4 * i], &x, 4);
        else
          std::memcpy(&t.data[2 * i], &half, 2);
      }
      return;
    }
    // Random codes; a block begins with its scale, which has either sign so that the matrix has no mean.
    const uint32_t bytes = info(format).bytes;
    for (size_t at = 0; at < t.data.size(); at += bytes) {
      for (uint32_t i = 0; i < bytes; ++i) t.data[at + i] = uint8_t(rng_.next() >> 32);
      const float one = format == Format::q8_0 ? 73.9f : 4.6f;  // standard deviation of the codes
      const uint16_t half = float_to_half(std / one * (1 + 0.5f * uniform()) * (rng_.next() & 1 ? 1.0f : -1.0f));
      std::memcpy(&t.data[at], &half, 2);
    }
  }

  void vector(const std::string& name, uint32_t n, float mean, float spread) {
    TinyTensor& t = put(name, {n}, Format::f32);
    for (uint32_t i = 0; i < n; ++i) {
      const float x = mean + spread * uniform();
      std::memcpy(&t.data[4 * i], &x, 4);
    }
  }

  void add_tensors() {
    const bool gemma = arch == "gemma3", glimmer = arch == "muse-glimmer", qwen2 = arch == "qwen2";
    const bool norm_qk = gemma || glimmer || arch == "qwen3", post_norm = gemma || glimmer;
    const uint32_t q = s.n_head * s.d_head, kv = s.n_head_kv * s.d_head;
    tensors.reserve(16 + 20 * s.n_layer);
    matrix("token_embd.weight", s.n_vocab, s.n_embd, s.tied ? 1.0f : std::sqrt(float(s.n_embd)), true);
    vector("output_norm.weight", s.n_embd, 1, 0.3f);
    if (!s.tied) matrix("output.weight", s.n_vocab, s.n_embd, 3);
    if (s.rope_factors) vector("rope_freqs.weight", s.d_head / 2, 4, 3);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
      const auto name = [&](const char* part) { return "blk." + std::to_string(i) + "." + part; };
      vector(name("attn_norm.weight"), s.n_embd, 1, 0.3f);
      if (s.fused_qkv) {
        matrix(name("attn_qkv.weight"), q + 2 * kv, s.n_embd, 1.5f);
        if (qwen2) vector(name("attn_qkv.bias"), q + 2 * kv, 0, 0.5f);
      } else {
        matrix(name("attn_q.weight"), q, s.n_embd, 1.5f);
        matrix(name("attn_k.weight"), kv, s.n_embd, 1.5f);
        matrix(name("attn_v.weight"), kv, s.n_embd);
        if (qwen2) {
          vector(name("attn_q.bias"), q, 0, 0.5f);
          vector(name("attn_k.bias"), kv, 0, 0.5f);
          vector(name("attn_v.bias"), kv, 0, 0.5f);
        }
      }
      if (norm_qk) {
        vector(name("attn_q_norm.weight"), s.d_head, 1, 0.3f);
        vector(name("attn_k_norm.weight"), s.d_head, 1, 0.3f);
      }
      if (glimmer) matrix(name("attn_gate.weight"), q, s.n_embd);
      matrix(name("attn_output.weight"), s.n_embd, q);
      if (post_norm) vector(name("post_attention_norm.weight"), s.n_embd, 1, 0.3f);
      vector(name("ffn_norm.weight"), s.n_embd, 1, 0.3f);
      matrix(name("ffn_gate.weight"), s.n_ff, s.n_embd);
      matrix(name("ffn_up.weight"), s.n_ff, s.n_embd);
      matrix(name("ffn_down.weight"), s.n_embd, s.n_ff);
      if (post_norm) vector(name("post_ffw_norm.weight"), s.n_embd, 1, 0.3f);
    }
  }

  Rng rng_;
  size_t turn_ = 0;
};

// A model and the bytes that its graph points into.
struct LoadedModel {
  std::vector<uint8_t> bytes;
  std::unique_ptr<gguf::File> file;
  Model model;
};

inline Result<std::unique_ptr<LoadedModel>> load(const TinyModel& tiny) {
  auto loaded = std::make_unique<LoadedModel>();
  ARGENT_LET(loaded->bytes, tiny.writer().to_bytes());
  ARGENT_LET(gguf::File file, gguf::File::parse(loaded->bytes, "tiny.gguf"));
  loaded->file = std::make_unique<gguf::File>(std::move(file));
  ARGENT_LET(loaded->model, build_model(*loaded->file));
  return loaded;
}

}  // namespace argent::test
