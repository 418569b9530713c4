#include "backends/metal/encode.h"

#include "backends/metal/encode_ops.h"
#include "graph/storage.h"

namespace argent::metal {

// What kernels/kv.h and args_step.h say of the cache.
static_assert(kKvPositions == kKvBlockTokens);
static_assert(int(KvType::f16) == 0 && int(KvType::bf16) == 1 && int(KvType::f32) == 2 && int(KvType::q8_0) == 3);

Place Encoder::place(ValueId id) const {
  const Value& v = value(id);
  switch (v.kind) {
    case ValueKind::weight:
      return memory_.weights[id];
    case ValueKind::state:
      return {};
    case ValueKind::activation:
      return {memory_.arena.get(), size_t(plan_.offset[id]), size_t(activation_row_bytes(v) * rows_of(id))};
    case ValueKind::input:
      break;
  }
  const StepBuffers& step = memory_.step;
  if (v.input == Input::hidden) return {&step.hidden(), 0, 4 * size_t(rows_of(id)) * v.width};
  const Buffer& buffer = v.input == Input::tokens      ? step.ids()
                         : v.input == Input::positions ? step.positions()
                                                       : step.output_rows();
  return {&buffer, 0, 4 * size_t(rows_of(id))};
}

const KvPlace& Encoder::kv_of(ValueId state) const { return memory_.kv[memory_.layer_of(value(state).kv)]; }

uint32_t Encoder::max_threads(std::string_view kernel, const std::vector<FunctionConstant>& constants) {
  const auto pipeline = device_.pipeline(kernel, constants);
  return pipeline ? std::min(kMaxThreads, (*pipeline)->max_threads() / kSimdWidth * kSimdWidth) : kMaxThreads;
}

Dispatch& Encoder::add(std::string_view kernel, std::vector<FunctionConstant> constants, Size grid, Size threads) {
  list_.dispatches.emplace_back();
  Dispatch& d = list_.dispatches.back();
  auto pipeline = device_.pipeline(kernel, constants);
  if (pipeline)
    d.pipeline = *pipeline;
  else if (status_)
    status_ = pipeline.error();
  d.grid = grid;
  d.threads = threads;
  return d;
}

Status Encoder::begin() {
  if (shape_.resolves) resolve_tokens(*this);
  return status_;
}

Status Encoder::end() {
  if (plan_.graph.sampled != kNone) store_tokens(*this, plan_.graph.sampled);
  return status_;
}

Status Encoder::encode(size_t index) {
  const Node& node = plan_.graph.nodes[index];
  if (const std::string why = missing_kernel(plan_.graph, node); !why.empty())
    return fail(Code::unsupported, "{}", why);
  // A step may want no logits at all.
  if (node.outputs.empty() || rows_of(node.outputs[0]) != 0) op_encoder(node.op).encode(*this, node, index);
  return status_;
}

}  // namespace argent::metal
