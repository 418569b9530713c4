#include <algorithm>
#include <cmath>

#include "models/arch.h"

namespace argent {
namespace {

// Bounds of sizes from a file: far above any model, far below what overflows 32-bit products of two of them with heads.
constexpr uint32_t kMaxLayers = 1024, kMaxWidth = 1 << 20, kMaxHeads = 1 << 12, kMaxHeadSize = 1 << 10;
constexpr float kMinFactor = 1e-6f;  // of rope scaling: its inverse stays finite

// Keys that describe the file or its making and change nothing that is computed.
constexpr std::string_view kInert[] = {"vocab_size", "rope.scaling.finetuned", "tensor_data_layout",
                                       "embedding_length_out"};

}  // namespace

template <class T>
T ModelReader::take(Result<T> result) {
  if (result) return *std::move(result);
  ops_.fail_with(result.error());
  return T{};
}

uint32_t ModelReader::u32(std::string_view key, uint32_t min, uint32_t max) {
  seen_.insert(full(key));
  return take(file_.require_u32(full(key), min, max));
}

uint32_t ModelReader::u32_or(std::string_view key, uint32_t fallback, uint32_t min, uint32_t max) {
  seen_.insert(full(key));
  return take(file_.u32_or(full(key), fallback, min, max));
}

float ModelReader::f32(std::string_view key, float min, float max) {
  seen_.insert(full(key));
  return take(file_.require_f32(full(key), min, max));
}

float ModelReader::f32_or(std::string_view key, float fallback, float min, float max) {
  seen_.insert(full(key));
  return take(file_.f32_or(full(key), fallback, min, max));
}

std::vector<uint32_t> ModelReader::u32_each(std::string_view key, uint32_t n, uint32_t min, uint32_t max) {
  seen_.insert(full(key));
  auto values = take(file_.require_u32_each(full(key), n, min, max));
  values.resize(n, min);  // after an error the numbers do not matter, their count does
  return values;
}

std::vector<bool> ModelReader::sliding_pattern(std::string_view key, uint32_t fallback, uint32_t n_layer) {
  seen_.insert(full(key));
  const gguf::Value* value = file_.find(full(key));
  std::vector<bool> sliding(n_layer);
  if (value && value->type() == gguf::Type::array) {
    sliding = take(file_.require_bools(full(key), n_layer));
    sliding.resize(n_layer);
    return sliding;
  }
  const uint32_t n = take(file_.u32_or(full(key), fallback, 0, kMaxLayers));
  for (uint32_t i = 0; i < n_layer; ++i) sliding[i] = n == 0 || i % n < n - 1;
  return sliding;
}

void ModelReader::expect(std::string_view key, uint32_t value) {
  seen_.insert(full(key));
  const auto seen = take(file_.find_u32(full(key)));
  if (seen && *seen != value)
    ops_.fail_with(fail(Code::unsupported, "{}: key '{}' is {}, this build computes {} only", file_.path(), full(key),
                        *seen, value));
}

void ModelReader::rope_scaling(Attrs& rope, uint32_t n_ctx_train) {
  seen_.insert(full("rope.scaling.type"));
  const std::string_view type = take(file_.string_or(full("rope.scaling.type"), "linear"));
  float factor = f32_or("rope.scaling.factor", 0.0f, 0.0f, 1e6f);
  if (!has("rope.scaling.factor")) factor = f32_or("rope.scale_linear", 0.0f, 0.0f, 1e6f);
  const uint32_t n_ctx_orig = u32_or("rope.scaling.original_context_length", n_ctx_train, 1, UINT32_MAX);
  const float attn_factor = f32_or("rope.scaling.attn_factor", 1.0f, 1e-3f, 1e3f);
  const float beta_fast = f32_or("rope.scaling.yarn_beta_fast", 32.0f, 1e-3f, 1e6f);
  const float beta_slow = f32_or("rope.scaling.yarn_beta_slow", 1.0f, 1e-3f, 1e6f);
  const float ext_factor = f32_or("rope.scaling.yarn_ext_factor", 1.0f, 0.0f, 1.0f);
  rope.attn_factor = attn_factor;
  if (type == "none") return;
  if (type != "linear" && type != "yarn") {
    ops_.fail_with(fail(Code::unsupported, "{}: key '{}' is {}, this build knows none, linear and yarn", file_.path(),
                        full("rope.scaling.type"), gguf::quote(type, 32)));
    return;
  }
  if (factor > 0.0f && factor < kMinFactor)
    ops_.fail_with(fail(Code::invalid, "{}: key '{}' is {}, wanted 0 or at least {}", file_.path(),
                        full("rope.scaling.factor"), factor, kMinFactor));
  if (factor > 0.0f) rope.freq_scale = 1.0f / factor;
  if (type == "yarn" && ext_factor != 0.0f) {
    rope.ext_factor = ext_factor;
    rope.beta_fast = beta_fast;
    rope.beta_slow = beta_slow;
    rope.n_ctx_orig = n_ctx_orig;
  }
}

Hparams ModelReader::hparams() {
  Hparams h;
  for (std::string_view key : kInert) ignore(key);
  h.n_layer = u32("block_count", 1, kMaxLayers);
  h.n_embd = u32("embedding_length", 1, kMaxWidth);
  h.n_ctx_train = u32("context_length", 1, 1u << 30);
  if (ops_.failed()) return h;
  h.n_ff = u32_each("feed_forward_length", h.n_layer, 1, kMaxWidth);
  h.n_head = u32_each("attention.head_count", h.n_layer, 1, kMaxHeads);
  h.n_head_kv =
      has("attention.head_count_kv") ? u32_each("attention.head_count_kv", h.n_layer, 1, kMaxHeads) : h.n_head;
  h.eps = f32("attention.layer_norm_rms_epsilon", 1e-12f, 1.0f);
  if (ops_.failed()) return h;
  if (!has("attention.key_length") && h.n_embd % h.n_head[0])
    fail_with(fail(Code::invalid, "{}: {} {} is no multiple of {} {}, and there is no {}", file_.path(),
                   full("embedding_length"), h.n_embd, full("attention.head_count"), h.n_head[0],
                   full("attention.key_length")));
  const uint32_t d_even = std::max(1u, h.n_embd / h.n_head[0]);
  h.d_head = u32_or("attention.key_length", d_even, 1, kMaxHeadSize);
  h.d_value = u32_or("attention.value_length", d_even, 1, kMaxHeadSize);
  if (std::max(h.d_head, h.d_value) > kMaxHeadSize)
    fail_with(fail(Code::invalid, "{}: {} {} and {} {} make heads of {}, wanted at most {}", file_.path(),
                   full("embedding_length"), h.n_embd, full("attention.head_count"), h.n_head[0], d_even,
                   kMaxHeadSize));
  if (ops_.failed()) return h;
  for (uint32_t i = 0; i < h.n_layer; ++i)
    if (h.n_head[i] % h.n_head_kv[i]) {
      fail_with(fail(Code::invalid, "{}: layer {} has {} query heads, which is no multiple of its {} key heads ({})",
                     file_.path(), i, h.n_head[i], h.n_head_kv[i], full("attention.head_count_kv")));
      return h;
    }
  h.rope.n_rot = u32_or("rope.dimension_count", h.d_head, 2, h.d_head);
  if (h.rope.n_rot % 2)
    fail_with(fail(Code::invalid, "{}: {} is {}, wanted an even number", file_.path(),
                   has("rope.dimension_count") ? fmt::format("key '{}'", full("rope.dimension_count"))
                                               : "the size of a head, which rotates,",
                   h.rope.n_rot));
  h.rope.freq_base = f32_or("rope.freq_base", 10000.0f, 1.0f, 1e12f);
  rope_scaling(h.rope, h.n_ctx_train);
  return h;
}

const gguf::Tensor* ModelReader::tensor(const std::string& name) {
  const gguf::Tensor* t = file_.find_tensor(name);
  if (!t) {
    ops_.fail_with(fail(Code::invalid, "{}: tensor '{}' is missing; a {} model needs it", file_.path(), name, arch_));
    return nullptr;
  }
  used_.insert(name);
  if (!t->format->format) {
    ops_.fail_with(fail(Code::unsupported, "{}: tensor '{}' is stored as {}, which this build does not compute with",
                        file_.path(), name, t->format->name));
    return nullptr;
  }
  return t;
}

const gguf::Tensor* ModelReader::matrix_tensor(const std::string& name, uint32_t n_out, uint32_t n_in) {
  const gguf::Tensor* t = tensor(name);
  if (!t) return nullptr;
  const bool any_rows = n_out == 0;  // the vocabulary's size comes from the file
  if (t->n_dims > 2 || t->dims[0] != n_in || (any_rows ? t->dims[1] >= (1u << 28) : t->dims[1] != n_out)) {
    ops_.fail_with(fail(Code::invalid, "{}: tensor '{}' is [{}, {}{}], wanted [{}, {}]", file_.path(), name, t->dims[0],
                        t->dims[1], t->n_dims > 2 ? ", ..." : "", n_in,
                        any_rows ? "vocabulary" : std::to_string(n_out)));
    return nullptr;
  }
  return t;
}

const gguf::Tensor* ModelReader::vector_tensor(const std::string& name, uint32_t n) {
  const gguf::Tensor* t = tensor(name);
  if (!t) return nullptr;
  if (t->n_dims != 1 || t->dims[0] != n || *t->format->format != Format::f32) {
    ops_.fail_with(fail(Code::invalid, "{}: tensor '{}' is {} [{}{}], wanted F32 [{}]", file_.path(), name,
                        t->format->name, t->dims[0],
                        t->n_dims > 1 ? fmt::format(", {}{}", t->dims[1], t->n_dims > 2 ? ", ..." : "") : "", n));
    return nullptr;
  }
  return t;
}

ValueId ModelReader::matrix(const std::string& name, uint32_t n_out, uint32_t n_in) {
  if (ops_.failed()) return 0;
  const gguf::Tensor* t = matrix_tensor(name, n_out, n_in);
  return t ? ops_.weight(name, *t->format->format, uint32_t(t->dims[1]), n_in, t->data) : 0;
}

ValueId ModelReader::vector(const std::string& name, uint32_t n) {
  if (ops_.failed()) return 0;
  const gguf::Tensor* t = vector_tensor(name, n);
  return t ? ops_.weight(name, Format::f32, 1, n, t->data) : 0;
}

ValueId ModelReader::optional_vector(const std::string& name, uint32_t n) {
  return has_tensor(name) ? vector(name, n) : kNone;
}

ValueId ModelReader::linear(ValueId x, const std::string& name, uint32_t n_out, Bias bias) {
  if (ops_.failed()) return 0;
  const uint32_t n_in = ops_.graph().value(x).width;
  const ValueId y = ops_.matmul(x, matrix(name + ".weight", n_out, n_in));
  return ops_.add_bias(y,
                       bias == Bias::required ? vector(name + ".bias", n_out) : optional_vector(name + ".bias", n_out));
}

ValueId ModelReader::linear_part(ValueId x, const std::string& name, uint32_t first, uint32_t n_out, uint32_t n_rows,
                                 Bias bias) {
  if (ops_.failed()) return 0;
  const uint32_t n_in = ops_.graph().value(x).width;
  const auto part = [&](std::string_view kind) {
    return fmt::format("{}.{}[{}:{}]", name, kind, first, first + n_out);
  };
  const gguf::Tensor* w = matrix_tensor(name + ".weight", n_rows, n_in);
  if (!w) return 0;
  const Format format = *w->format->format;
  const ValueId y =
      ops_.matmul(x, ops_.weight(part("weight"), format, n_out, n_in, w->data + first * row_bytes(format, n_in)));
  if (bias == Bias::optional && !has_tensor(name + ".bias")) return y;
  const gguf::Tensor* b = vector_tensor(name + ".bias", n_rows);
  return b ? ops_.add_bias(y, ops_.weight(part("bias"), Format::f32, 1, n_out, b->data + first * sizeof(float))) : 0;
}

Result<Model> ModelReader::finish(const Hparams& h, ValueId logits) {
  Model model;
  if (!ops_.failed()) {
    for (const gguf::Entry& entry : file_.entries())
      if (entry.key.starts_with(arch_ + ".") && !seen_.contains(entry.key))
        return fail(Code::unsupported, "{}: key {} ({}) could change the result and is not understood", file_.path(),
                    gguf::quote(entry.key), entry.value.describe());
    for (const gguf::Tensor& t : file_.tensors())
      if (!used_.contains(t.name))
        return fail(Code::unsupported, "{}: tensor {} is not part of a {} model as this build knows it", file_.path(),
                    gguf::quote(t.name), arch_);
    ops_.set_logits(logits);
    model.n_vocab = ops_.graph().value(logits).width;
    const gguf::Tensor* embedding = file_.find_tensor("token_embd.weight");
    if (embedding && embedding->dims[1] != model.n_vocab)
      return fail(Code::invalid, "{}: output.weight has {} rows, token_embd.weight {}", file_.path(), model.n_vocab,
                  embedding->dims[1]);
  }
  ARGENT_LET(model.graph, ops_.finish());
  model.arch = arch_;
  ARGENT_LET(const std::string_view name, file_.string_or("general.name", ""));
  model.name = name;
  model.n_layer = h.n_layer;
  model.n_embd = h.n_embd;
  model.n_ctx_train = h.n_ctx_train;
  for (const gguf::Tensor& t : file_.tensors()) model.n_params += t.n_elements;
  model.kv = kv_layout(model.graph);
  return model;
}

}  // namespace argent
