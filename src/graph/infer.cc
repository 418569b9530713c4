// Shape rules of the ops: one small function a rule of ops.def.
#include <algorithm>
#include <cmath>

#include "graph/graph.h"

namespace argent {
namespace {

struct Call {
  const Graph& graph;
  Op op;
  const std::vector<ValueId>& inputs;
  const Attrs& attrs;

  const Value& in(size_t i) const { return graph.values[inputs[i]]; }
  Error misfit(std::string_view what) const {
    std::string seen;
    for (ValueId id : inputs) seen += fmt::format("{}{}", seen.empty() ? "" : ", ", describe(graph.values[id]));
    return fail(Code::invalid, "{}({}): {}", info(op).name, seen, what);
  }
};
using Out = Result<std::vector<Value>>;

Value like(const Value& v, uint32_t width, DType dtype = DType::f32) {
  Value out;
  out.dtype = dtype;
  out.rows = v.rows;
  out.width = width;
  return out;
}

bool is_rows(const Value& v) { return v.kind == ValueKind::activation && v.dtype == DType::f32; }
bool is_matrix(const Value& v) { return v.kind == ValueKind::weight; }
bool is_vector(const Value& v) { return v.kind == ValueKind::weight && v.n_rows == 1 && v.format == Format::f32; }

Out same(const Call& c) {
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    if (!is_rows(c.in(i))) return c.misfit("wants activations");
    if (c.in(i).rows != c.in(0).rows || c.in(i).width != c.in(0).width) return c.misfit("wants equal shapes");
  }
  return std::vector{like(c.in(0), c.in(0).width)};
}

Out copied(const Call& c) {
  const bool hidden = c.in(0).kind == ValueKind::input && c.in(0).input == Input::hidden;
  if (c.in(0).kind != ValueKind::activation && !hidden) return c.misfit("wants what an op has made");
  return std::vector{like(c.in(0), c.in(0).width, c.in(0).dtype)};
}

Out embed(const Call& c) {
  if (c.in(0).dtype != DType::i32 || !is_matrix(c.in(1))) return c.misfit("wants token ids and a table");
  return std::vector{like(c.in(0), c.in(1).width)};
}

Out matmul(const Call& c) {
  if (!is_rows(c.in(0)) || !is_matrix(c.in(1))) return c.misfit("wants activations and a matrix");
  if (c.in(0).width != c.in(1).width) return c.misfit("the matrix' rows and the activations differ in length");
  return std::vector{like(c.in(0), c.in(1).n_rows)};
}

Out row_vector(const Call& c) {
  if (!is_rows(c.in(0)) || !is_vector(c.in(1))) return c.misfit("wants activations and an F32 vector");
  const uint32_t width = c.in(1).width;
  if (width == 0 || c.in(0).width % width != 0) return c.misfit("the vector's length does not divide the row");
  if (c.op == Op::add_bias && c.in(0).width != width) return c.misfit("wants a bias as long as the row");
  if (c.op == Op::norm_mul && (c.attrs.group ? c.attrs.group : c.in(0).width) != width)
    return c.misfit("wants a weight as long as the group that is normalised");
  return std::vector{like(c.in(0), c.in(0).width)};
}

Out norm(const Call& c) {
  if (!is_rows(c.in(0))) return c.misfit("wants activations");
  if (c.attrs.group && c.in(0).width % c.attrs.group) return c.misfit("the group does not divide the row");
  return std::vector{like(c.in(0), c.in(0).width)};
}

Out rope_table(const Call& c) {
  if (c.in(0).dtype != DType::i32) return c.misfit("wants positions");
  if (c.attrs.n_rot == 0 || c.attrs.n_rot % 2) return c.misfit("wants an even number of rotated elements");
  if (c.inputs.size() == 2 && (!is_vector(c.in(1)) || c.in(1).width != c.attrs.n_rot / 2))
    return c.misfit(fmt::format("wants {} frequency factors", c.attrs.n_rot / 2));
  return std::vector{like(c.in(0), c.attrs.n_rot)};
}

Out rope(const Call& c) {
  if (!is_rows(c.in(0)) || !is_rows(c.in(1)) || c.in(0).rows != c.in(1).rows)
    return c.misfit("wants activations and a table");
  if (c.in(0).width != uint64_t(c.attrs.n_head) * c.attrs.d_head)
    return c.misfit("the row is not n_head heads of d_head");
  if (c.in(1).width != c.attrs.n_rot || c.attrs.n_rot > c.attrs.d_head)
    return c.misfit("the table does not fit the head");
  return std::vector{like(c.in(0), c.in(0).width)};
}

Out kv_store(const Call& c) {
  const Value& state = c.in(2);
  if (!is_rows(c.in(0)) || !is_rows(c.in(1)) || c.in(0).rows != c.in(1).rows || state.kind != ValueKind::state)
    return c.misfit("wants keys, values and a cache");
  const KvSpec& kv = state.kv;
  if (c.attrs.n_head_kv != kv.n_head_kv || c.attrs.d_head != kv.d_head || c.attrs.d_value != kv.d_value ||
      c.in(0).width != uint64_t(kv.n_head_kv) * kv.d_head || c.in(1).width != uint64_t(kv.n_head_kv) * kv.d_value)
    return c.misfit("the cache has other heads");
  return std::vector<Value>{};
}

Out attention(const Call& c) {
  const Value& state = c.in(1);
  if (!is_rows(c.in(0)) || state.kind != ValueKind::state) return c.misfit("wants queries and a cache");
  const Attrs& a = c.attrs;
  if (a.n_head == 0 || a.n_head_kv == 0 || a.n_head % a.n_head_kv)
    return c.misfit("query heads are no multiple of key heads");
  if (c.in(0).width != uint64_t(a.n_head) * a.d_head || a.n_head_kv != state.kv.n_head_kv ||
      a.d_head != state.kv.d_head || a.d_value != state.kv.d_value || a.window != state.kv.window)
    return c.misfit("the cache has other heads or another window");
  return std::vector{like(c.in(0), a.n_head * a.d_value)};
}

Out gather_rows(const Call& c) {
  if (!is_rows(c.in(0)) || c.in(0).rows != Rows::tokens || c.in(1).dtype != DType::i32 || c.in(1).rows != Rows::outputs)
    return c.misfit("wants rows of tokens and the rows that want logits");
  Value out = like(c.in(0), c.in(0).width);
  out.rows = Rows::outputs;
  return std::vector{out};
}

Out token(const Call& c) {
  if (c.in(0).dtype == DType::i32) return c.misfit("wants logits or candidates");
  return std::vector{like(c.in(0), 1, DType::i32)};
}

Out candidates(const Call& c) {
  if (!is_rows(c.in(0))) return c.misfit("wants logits");
  return std::vector{like(c.in(0), c.in(0).width, DType::candidates)};
}

Out filter(const Call& c) {
  if (c.in(0).dtype != DType::candidates) return c.misfit("wants candidates");
  return std::vector{like(c.in(0), c.in(0).width, DType::candidates)};
}

Out add_norm_mul(const Call& c) {
  if (!is_rows(c.in(0)) || !is_rows(c.in(1)) || c.in(0).rows != c.in(1).rows || c.in(0).width != c.in(1).width ||
      !is_vector(c.in(2)) || (c.attrs.group ? c.attrs.group : c.in(0).width) != c.in(2).width)
    return c.misfit("wants two equal rows and a norm weight");
  return std::vector{like(c.in(0), c.in(0).width), like(c.in(0), c.in(0).width)};
}

Out norm_mul_add(const Call& c) {
  if (!is_rows(c.in(0)) || !is_vector(c.in(1)) || !is_rows(c.in(2)) || c.in(0).rows != c.in(2).rows ||
      c.in(0).width != c.in(2).width || (c.attrs.group ? c.attrs.group : c.in(0).width) != c.in(1).width)
    return c.misfit("wants a row, a norm weight and a residual row");
  return std::vector{like(c.in(0), c.in(0).width)};
}

Out qkv(const Call& c) {
  std::vector<Value> out;
  if (c.inputs.size() != 4 && c.inputs.size() != 7) return c.misfit("wants no biases or three");
  for (size_t i = 1; i < 4; ++i) {
    if (!is_rows(c.in(0)) || !is_matrix(c.in(i)) || c.in(i).width != c.in(0).width)
      return c.misfit("wants three matrices that fit the row");
    if (c.inputs.size() == 7 && (!is_vector(c.in(i + 3)) || c.in(i + 3).width != c.in(i).n_rows))
      return c.misfit("wants biases as long as the outputs");
    out.push_back(like(c.in(0), c.in(i).n_rows));
  }
  return out;
}

Out norm_add_norm(const Call& c) {
  const auto is_weight = [&](const Value& v) {
    return is_vector(v) && v.width == (c.attrs.group ? c.attrs.group : c.in(0).width);
  };
  if (!is_rows(c.in(0)) || !is_weight(c.in(1)) || !is_rows(c.in(2)) || c.in(0).rows != c.in(2).rows ||
      c.in(0).width != c.in(2).width || !is_weight(c.in(3)))
    return c.misfit("wants a row, a norm weight, a residual row and another norm weight");
  return std::vector{like(c.in(0), c.in(0).width), like(c.in(0), c.in(0).width)};
}

Out qkv_store(const Call& c) {
  const Attrs& a = c.attrs;
  const Value& state = c.in(4);
  const QkvStoreInputs at = qkv_store_inputs(c.inputs.size(), a);
  if (at.count != c.inputs.size()) return c.misfit("wants biases for q, k and v or none, norms for q and k or none");
  if (!is_rows(c.in(0)) || state.kind != ValueKind::state) return c.misfit("wants activations and a cache");
  const KvSpec& kv = state.kv;
  if (a.n_head_kv == 0 || a.n_head % a.n_head_kv) return c.misfit("query heads are no multiple of key heads");
  if (a.n_head_kv != kv.n_head_kv || a.d_head != kv.d_head || a.d_value != kv.d_value)
    return c.misfit("the cache has other heads");
  const uint64_t widths[3] = {uint64_t(a.n_head) * a.d_head, uint64_t(a.n_head_kv) * a.d_head,
                              uint64_t(a.n_head_kv) * a.d_value};
  for (size_t i = 0; i < 3; ++i) {
    const Value& w = c.in(1 + i);
    if (!is_matrix(w) || w.width != c.in(0).width || w.n_rows != widths[i])
      return c.misfit("wants matrices that give the heads");
    if (at.biases && (!is_vector(c.in(at.biases + i)) || c.in(at.biases + i).width != widths[i]))
      return c.misfit("wants biases as long as the outputs");
    if (at.norms && i < 2 && (!is_vector(c.in(at.norms + i)) || c.in(at.norms + i).width != a.d_head))
      return c.misfit("wants norm weights as long as a head");
  }
  if (at.table && (!is_rows(c.in(at.table)) || c.in(at.table).rows != c.in(0).rows || c.in(at.table).width != a.n_rot ||
                   a.n_rot > a.d_head))
    return c.misfit("the table does not fit the head");
  return std::vector{like(c.in(0), uint32_t(widths[0]))};
}

Out glu(const Call& c) {
  if (!is_rows(c.in(0)) || !is_matrix(c.in(1)) || !is_matrix(c.in(2)) || c.in(1).width != c.in(0).width ||
      c.in(2).width != c.in(0).width || c.in(1).n_rows != c.in(2).n_rows)
    return c.misfit("wants two equal matrices that fit the row");
  return std::vector{like(c.in(0), c.in(1).n_rows)};
}

}  // namespace

QkvStoreInputs qkv_store_inputs(size_t n_inputs, const Attrs& attrs) {
  QkvStoreInputs at;
  if (attrs.n_rot) at.table = at.count++;
  const size_t rest = n_inputs - std::min(n_inputs, at.count);
  if (rest >= 3) at.biases = at.count, at.count += 3;
  if (rest == 2 || rest == 5) at.norms = at.count, at.count += 2;
  return at;
}

Result<std::vector<Value>> infer(const Graph& graph, Op op, const std::vector<ValueId>& inputs, const Attrs& attrs) {
  const OpInfo& row = info(op);
  if (inputs.size() < row.least_inputs || inputs.size() > row.most_inputs)
    return fail(Code::internal, "{}: has {} inputs, wants {} to {}", row.name, inputs.size(), row.least_inputs,
                row.most_inputs);
  for (ValueId id : inputs)
    if (id >= graph.values.size()) return fail(Code::internal, "{}: an input is missing", row.name);
  const Call call{graph, op, inputs, attrs};
  switch (op) {
#define OP(name, least, most, n_out, shape, cost, in_place, ...) \
  case Op::name:                                                 \
    return shape(call);
#include "graph/ops.def"
#undef OP
  }
  return fail(Code::internal, "unknown op");
}

}  // namespace argent
