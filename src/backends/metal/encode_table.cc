// The table of ops that the Metal backend has kernels for.
#include "backends/metal/encode_ops.h"

namespace argent::metal {

const OpEncoder& op_encoder(Op op) {
  static const OpEncoder none;
  switch (op) {
    case Op::embed: {
      static const OpEncoder one{encode_embed};
      return one;
    }
    case Op::matmul: {
      static const OpEncoder one{encode_matmul};
      return one;
    }
    default:
      return none;
  }
}

std::string missing_kernel(const Graph& graph, const Node& node) {
  const OpInfo& op = info(node.op);
  if (!op_encoder(node.op).encode) return fmt::format("{}: NONE on Metal", op.name);
  for (ValueId id : node.inputs) {
    const Value& v = graph.value(id);
    if (v.kind == ValueKind::weight && v.width % info(v.format).block)
      return fmt::format("{}: rows of {} are no whole blocks", op.name, describe(v));
  }
  return "";
}

}  // namespace argent::metal
