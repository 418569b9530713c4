// The graph: what a model computes, as ops on values. Shapes are checked when an op is added; rows are kinds, not
// numbers, so one graph serves every step.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "graph/kv_type.h"
#include "quant/formats.h"

namespace argent {

enum class Activation : uint8_t { silu, gelu };

struct Attrs {
#define ATTR(type, name, value) type name = value;
#include "graph/attrs.def"
#undef ATTR
  bool operator==(const Attrs&) const = default;
};

enum class Op : uint8_t {
#define OP(name, ...) name,
#include "graph/ops.def"
#undef OP
};

inline constexpr size_t kOps = 0
#define OP(name, ...) +1
#include "graph/ops.def"
#undef OP
    ;

// An index into Graph::values; kNone where an optional value is absent.
using ValueId = uint32_t;
inline constexpr ValueId kNone = UINT32_MAX;

enum class ValueKind : uint8_t {
  weight,      // a tensor of the file
  input,       // data of the step: tokens, positions, rows that want logits, hidden states
  state,       // the KV cache of a layer
  activation,  // made by an op
};

enum class DType : uint8_t { f32, i32, candidates };  // candidates: a list of (token, logit) a row, n_vocab at most

// How many rows a value has: fixed by the file, or the tokens or the logits rows of the step.
enum class Rows : uint8_t { fixed, tokens, outputs };

// hidden: f32 rows that another device computed, of every token or of those that want logits.
enum class Input : uint8_t { tokens, positions, output_rows, hidden };

// What the KV cache of a layer holds for each position.
struct KvSpec {
  uint32_t layer = 0;
  uint32_t n_head_kv = 0, d_head = 0, d_value = 0;
  uint32_t window = 0;  // 0 = all positions
  bool operator==(const KvSpec&) const = default;
};

struct Value {
  ValueKind kind = ValueKind::activation;
  DType dtype = DType::f32;
  Rows rows = Rows::fixed;
  uint32_t n_rows = 1;            // when fixed: n_out of a matrix, 1 of a vector
  uint32_t width = 0;             // elements of a row: n_in of a matrix
  Format format = Format::f32;    // weights
  const uint8_t* data = nullptr;  // weights: the file's bytes, which outlive the graph
  Input input = Input::tokens;    // inputs
  KvSpec kv;                      // states
  std::string name;

  uint64_t file_bytes() const { return uint64_t(n_rows) * row_bytes(format, width); }
};

struct Node {
  Op op;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  Attrs attrs;
  int32_t layer = -1;     // -1: outside the layers
  uint8_t device = 0;     // set by the placement pass
  bool in_place = false;  // set by the alias pass: output 0 lives where the op's in-place input lives
};

// Which inputs of a qkv_store node are what; 0: it has none of these. Beside x, wq, wk, wv and the cache (0 to 4).
struct QkvStoreInputs {
  size_t table = 0, biases = 0, norms = 0;  // biases: of q, k, v; norms: of q and k
  size_t count = 5;
};
QkvStoreInputs qkv_store_inputs(size_t n_inputs, const Attrs& attrs);

struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;
  ValueId logits = kNone;   // f32 [outputs][n_vocab], or [tokens][n_vocab] before the rows pass
  ValueId sampled = kNone;  // i32, one token a logits row; none in plans that hand out logits only

  const Value& value(ValueId id) const { return values[id]; }
};

// What a row of ops.def says.
struct OpInfo {
  std::string_view name;
  uint8_t least_inputs, most_inputs, n_outputs;
  int8_t in_place;
  std::vector<std::string_view> attrs;
};
const OpInfo& info(Op op);

// Shape rule of the op: fills the outputs' dtype, rows and width, or says what does not fit.
Result<std::vector<Value>> infer(const Graph& graph, Op op, const std::vector<ValueId>& inputs, const Attrs& attrs);

// Work of one node in a step.
struct Cost {
  uint64_t bytes = 0;      // read and written once: weights, activations, KV
  uint64_t flops = 0;      // multiply and add are two
  uint64_t streamed = 0;   // of bytes: weights and KV read, which no cache keeps from step to step
  uint64_t quantized = 0;  // of flops: those with weights of block formats

  Cost& operator+=(const Cost& o) {
    bytes += o.bytes, flops += o.flops, streamed += o.streamed, quantized += o.quantized;
    return *this;
  }
};
struct CostContext {
  // n_kv: positions in the cache before the step, of all its sequences together, which are taken to be alike.
  uint64_t n_tokens = 1, n_outputs = 1, n_kv = 0;
  KvType kv_k = KvType::f16, kv_v = KvType::f16;
  uint64_t n_sequences = 1;
};
Cost cost(const Graph& graph, const Node& node, const CostContext& context);
Cost cost(const Graph& graph, const CostContext& context);  // of all nodes

// Checks a whole graph: arity, shapes as inferred, every value made before it is used, no value made twice, weights and
// states never written but by kv_store. Run after each pass in tests and in `argent graph`.
Status verify(const Graph& graph);

enum class DumpFormat { text, json, dot };
std::string dump(const Graph& graph, DumpFormat format, const CostContext& context);

// "f32 [tokens][576]", "Q4_K [1536][576]": for dumps and messages.
std::string describe(const Value& value);
// The attributes that the op's row lists and that differ from their default: "eps=1e-05 group=64".
std::string describe(Op op, const Attrs& attrs);

}  // namespace argent
