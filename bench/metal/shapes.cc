#include "metal/shapes.h"

#include <cstring>

namespace argent::metal {
namespace {

// A decoder of the llama family, as its published GGUF file has it.
struct Shape {
  std::string_view name, arch;
  uint32_t n_layer, n_embd, n_ff, n_head, n_head_kv, d_head, n_vocab, window;
  Format base, wide, embedding, head;  // wide: of attn_v and ffn_down in the layers that mixes give more bits
  bool tied, biases, head_norms, gate, post_norms;
};
constexpr Shape kShapes[] = {
    {"smollm2-135m-q4_1", "llama", 30, 576, 1536, 9, 3, 64, 49152, 0, Format::q4_1, Format::q4_1, Format::q8_0,
     Format::q8_0, true, false, false, false, false},
    {"gemma-3-270m-q4_k_m", "gemma3", 18, 640, 2048, 4, 1, 256, 262144, 512, Format::q4_k, Format::q6_k, Format::q8_0,
     Format::q8_0, true, false, true, false, true},
    {"qwen2.5-0.5b-q4_k_m", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 0, Format::q4_k, Format::q6_k, Format::q8_0,
     Format::q8_0, true, true, false, false, false},
    {"qwen3-0.6b-q8_0", "qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 0, Format::q8_0, Format::q8_0, Format::q8_0,
     Format::q8_0, true, false, true, false, false},
    {"qwen2.5-7b-q4_k_m", "qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 0, Format::q4_k, Format::q6_k, Format::q4_k,
     Format::q6_k, false, true, false, false, false},
    {"llama-2-7b-q4_0", "llama", 32, 4096, 11008, 32, 32, 128, 32000, 0, Format::q4_0, Format::q4_0, Format::q4_0,
     Format::q6_k, false, false, false, false, false},
    {"muse-glimmer-30b-q4_k_m", "muse-glimmer", 52, 6656, 19968, 32, 2, 128, 202048, 2048, Format::q4_k, Format::q6_k,
     Format::q4_k, Format::q5_k, false, false, true, true, true},
};

// What llama-quantize takes for rows that are no whole blocks of 256.
Format fit(Format format, uint32_t n_in) {
  if (n_in % info(format).block == 0) return format;
  return format == Format::q4_k ? Format::q5_0 : format == Format::q5_k ? Format::q5_1 : Format::q8_0;
}
// The layers whose attn_v and ffn_down the _M mixes give more bits.
bool more_bits(uint32_t i, uint32_t n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

// GGUF version 3, little endian (the specification's layout).
class Header {
 public:
  void key(const std::string& name, uint32_t value) { head(name, 4), put(value), ++n_keys_; }
  void key(const std::string& name, float value) { head(name, 6), put(value), ++n_keys_; }
  void key(const std::string& name, const std::string& value) { head(name, 8), text(keys_, value), ++n_keys_; }
  void tensor(const std::string& name, std::vector<uint64_t> dims, Format format) {
    text(tensors_, name);
    put(tensors_, uint32_t(dims.size()));
    uint64_t rows = 1;
    for (size_t i = 0; i < dims.size(); ++i) {
      put(tensors_, dims[i]);
      if (i) rows *= dims[i];
    }
    put(tensors_, info(format).gguf_id);
    put(tensors_, data_bytes_);
    data_bytes_ += (rows * row_bytes(format, dims[0]) + 31) / 32 * 32;
    ++n_tensors_;
  }
  // The header, up to where the data begins; and with the data.
  std::string bytes() const {
    std::string all = "GGUF";
    put(all, uint32_t(3));
    put(all, n_tensors_);
    put(all, n_keys_);
    all += keys_ + tensors_;
    all.resize((all.size() + 31) / 32 * 32);
    return all;
  }
  uint64_t data_bytes() const { return data_bytes_; }

 private:
  template <class T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class T>
  void put(T value) {
    put(keys_, value);
  }
  static void text(std::string& to, const std::string& value) {
    put(to, uint64_t(value.size()));
    to += value;
  }
  void head(const std::string& name, uint32_t type) { text(keys_, name), put(keys_, type); }

  std::string keys_, tensors_;
  uint64_t n_keys_ = 0, n_tensors_ = 0, data_bytes_ = 0;
};

Header header_of(const Shape& s) {
  Header h;
  const std::string prefix = std::string(s.arch) + ".";
  h.key("general.architecture", std::string(s.arch));
  h.key("general.name", std::string(s.name));
  h.key("tokenizer.ggml.model", std::string("none"));
  for (const auto& [name, value] : {std::pair{"block_count", s.n_layer},
                                    {"context_length", 32768u},
                                    {"embedding_length", s.n_embd},
                                    {"feed_forward_length", s.n_ff},
                                    {"attention.head_count", s.n_head},
                                    {"attention.head_count_kv", s.n_head_kv},
                                    {"attention.key_length", s.d_head},
                                    {"attention.value_length", s.d_head}})
    h.key(prefix + name, value);
  h.key(prefix + "attention.layer_norm_rms_epsilon", 1e-6f);
  h.key(prefix + "rope.freq_base", 1e6f);
  if (s.arch != "gemma3") h.key(prefix + "rope.dimension_count", s.d_head);
  if (s.window) h.key(prefix + "attention.sliding_window", s.window);
  if (s.arch == "muse-glimmer") h.key(prefix + "logit_scale", 0.0625f);

  const auto matrix = [&](const std::string& name, uint32_t rows, uint32_t n_in, Format format) {
    h.tensor(name + ".weight", {n_in, rows}, fit(format, n_in));
  };
  const auto vector = [&](const std::string& name, uint32_t n) { h.tensor(name, {n}, Format::f32); };
  const uint32_t q = s.n_head * s.d_head, kv = s.n_head_kv * s.d_head;
  matrix("token_embd", s.n_vocab, s.n_embd, s.embedding);
  vector("output_norm.weight", s.n_embd);
  if (!s.tied) matrix("output", s.n_vocab, s.n_embd, s.head);
  for (uint32_t i = 0; i < s.n_layer; ++i) {
    const std::string at = fmt::format("blk.{}.", i);
    const Format wide = more_bits(i, s.n_layer) ? s.wide : s.base;
    vector(at + "attn_norm.weight", s.n_embd);
    matrix(at + "attn_q", q, s.n_embd, s.base);
    matrix(at + "attn_k", kv, s.n_embd, s.base);
    matrix(at + "attn_v", kv, s.n_embd, wide);
    for (const auto& [name, n] : {std::pair{"attn_q.bias", q}, {"attn_k.bias", kv}, {"attn_v.bias", kv}})
      if (s.biases) vector(at + name, n);
    for (const char* name : {"attn_q_norm.weight", "attn_k_norm.weight"})
      if (s.head_norms) vector(at + name, s.d_head);
    if (s.gate) matrix(at + "attn_gate", q, s.n_embd, s.base);
    matrix(at + "attn_output", s.n_embd, q, s.base);
    if (s.post_norms) vector(at + "post_attention_norm.weight", s.n_embd);
    vector(at + "ffn_norm.weight", s.n_embd);
    matrix(at + "ffn_gate", s.n_ff, s.n_embd, s.base);
    matrix(at + "ffn_up", s.n_ff, s.n_embd, s.base);
    matrix(at + "ffn_down", s.n_embd, s.n_ff, wide);
    if (s.post_norms) vector(at + "post_ffw_norm.weight", s.n_embd);
  }
  return h;
}

}  // namespace

std::vector<std::string_view> shape_names() {
  std::vector<std::string_view> names;
  for (const Shape& s : kShapes) names.push_back(s.name);
  return names;
}

Result<ShapedFile> make_shape(std::string_view name) {
  for (const Shape& s : kShapes) {
    if (s.name != name) continue;
    const Header header = header_of(s);
    const std::string bytes = header.bytes();
    ShapedFile made;
    ARGENT_LET(made.space, AddressSpace::make(bytes.size() + header.data_bytes()));
    std::memcpy(made.space.bytes().data(), bytes.data(), bytes.size());
    const auto all = made.space.bytes();
    ARGENT_LET(gguf::File file,
               gguf::File::parse({reinterpret_cast<const uint8_t*>(all.data()), all.size()}, std::string(name)));
    made.file = std::make_unique<gguf::File>(std::move(file));
    return made;
  }
  return fail(Code::not_found, "there is no shape '{}', there are {}", name, fmt::join(shape_names(), ", "));
}

}  // namespace argent::metal
