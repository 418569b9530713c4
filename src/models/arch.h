// What an architecture file works with: keys under its own prefix, tensors named where they are used, and ops. The
// first error is kept and everything after it is a no-op, so that the file reads as the formula.
#pragma once

#include <set>
#include <string>

#include "gguf/gguf.h"
#include "graph/builder.h"
#include "models/model.h"

namespace argent {

// Sliding windows: far beyond any context, and window plus step stay below 2^31.
inline constexpr uint32_t kMaxWindow = 1u << 30;

// Sizes that every decoder of the llama family has.
struct Hparams {
  uint32_t n_layer = 0, n_embd = 0, n_ctx_train = 0;
  std::vector<uint32_t> n_head, n_head_kv, n_ff;  // by layer
  uint32_t d_head = 0, d_value = 0;
  float eps = 0;  // attention.layer_norm_rms_epsilon
  Attrs rope;     // n_rot, base, scaling; pairing is the architecture's
};

class ModelReader {
 public:
  ModelReader(const gguf::File& file, std::string arch) : file_(file), arch_(std::move(arch)) {}

  // Keys "<arch>.<key>"; a key that is read counts as understood.
  uint32_t u32(std::string_view key, uint32_t min, uint32_t max);
  uint32_t u32_or(std::string_view key, uint32_t fallback, uint32_t min, uint32_t max);
  float f32(std::string_view key, float min, float max);
  float f32_or(std::string_view key, float fallback, float min, float max);
  std::vector<uint32_t> u32_each(std::string_view key, uint32_t n, uint32_t min,
                                 uint32_t max);  // an array or one for all
  bool has(std::string_view key) const { return file_.find(full(key)) != nullptr; }
  // A sliding window's pattern: an array of bools by layer, or a number n: layer i is sliding when i mod n < n - 1.
  std::vector<bool> sliding_pattern(std::string_view key, uint32_t fallback, uint32_t n_layer);
  // The error for a key whose value this architecture does not compute.
  Error refuse(std::string_view key, auto seen, std::string_view wanted) const {
    return fail(Code::unsupported, "{}: key '{}' is {}, this build computes {}", file_.path(), full(key), seen, wanted);
  }
  // Keys that name a property which the computation does not depend on.
  void ignore(std::string_view key) { seen_.insert(full(key)); }
  // Refuses a key unless it has the one value that this architecture computes.
  void expect(std::string_view key, uint32_t value);

  // The common keys, with rope scaling (none, linear, yarn).
  Hparams hparams();

  // Tensors. matrix: [n_out][n_in]; vector: F32 [n].
  ValueId matrix(const std::string& name, uint32_t n_out, uint32_t n_in);
  ValueId vector(const std::string& name, uint32_t n);
  ValueId optional_vector(const std::string& name, uint32_t n);
  bool has_tensor(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  // x W^T + b: name.weight, and name.bias where the file has one (or must have one).
  enum class Bias { optional, required };
  ValueId linear(ValueId x, const std::string& name, uint32_t n_out, Bias bias = Bias::optional);
  // The same with the rows [first, first + n_out) of tensors of n_rows rows, which several projections share.
  ValueId linear_part(ValueId x, const std::string& name, uint32_t first, uint32_t n_out, uint32_t n_rows, Bias bias);

  Builder& ops() { return ops_; }
  void fail_with(Error error) { ops_.fail_with(std::move(error)); }

  // Everything of the file that this architecture's keys and tensors are must have been used.
  Result<Model> finish(const Hparams& h, ValueId logits);

 private:
  std::string full(std::string_view key) const { return fmt::format("{}.{}", arch_, key); }
  template <class T>
  T take(Result<T> result);
  // Checked tensors; null after an error. n_out 0: any number of rows.
  const gguf::Tensor* tensor(const std::string& name);
  const gguf::Tensor* matrix_tensor(const std::string& name, uint32_t n_out, uint32_t n_in);
  const gguf::Tensor* vector_tensor(const std::string& name, uint32_t n);
  void rope_scaling(Attrs& rope, uint32_t n_ctx_train);

  const gguf::File& file_;
  std::string arch_;
  Builder ops_;
  std::set<std::string, std::less<>> seen_;
  std::set<std::string, std::less<>> used_;
};

// A row of the registry (models/registry.cc).
struct Arch {
  std::string_view name;
  ValueId (*build)(ModelReader& m, const Hparams& h);  // returns the logits
};

ValueId build_llama(ModelReader& m, const Hparams& h);
ValueId build_qwen2(ModelReader& m, const Hparams& h);
ValueId build_qwen3(ModelReader& m, const Hparams& h);
ValueId build_gemma3(ModelReader& m, const Hparams& h);
ValueId build_muse_glimmer(ModelReader& m, const Hparams& h);

}  // namespace argent
