// Ops that work on rows and elements: norms, rotary positions, element functions, gathering.
#include <algorithm>
#include <bit>
#include <cstring>

#include "backends/metal/encode_ops.h"
#include "backends/metal/kernels/args_elementwise.h"
#include "backends/metal/kernels/args_norm.h"
#include "backends/metal/kernels/args_rope.h"
#include "graph/rope_frequencies.h"

namespace argent::metal {
namespace {

constexpr uint32_t kHeadNorm = 512;  // groups up to this long are a SIMD-group's

// The power of two from n on, at most `most`.
uint32_t lanes_for(uint32_t n, uint32_t most) { return std::min(most, std::bit_ceil(std::max(1u, n))); }

// A grid over columns and rows for kernels that take a thread a column.
struct Tiles {
  Size grid, threads;
};
Tiles tiles(uint32_t columns, uint32_t rows) {
  const uint32_t x = lanes_for(columns, 64), y = 256 / x;
  return {{ceil_div(columns, x), ceil_div(rows, y)}, {x, y}};
}
uint32_t columns_of(uint32_t width) { return width % 4 ? width : width / 4; }

// Threads that take four elements each, and one each of the rest.
Tiles fours(uint32_t n) { return {{ceil_div(n / 4 + n % 4, 256)}, {256}}; }

uint32_t elements(const Encoder& e, ValueId id) { return e.rows_of(id) * e.value(id).width; }

struct Norm {
  Place x, w, r, s, y;
  bool adds_before = false, adds_after = false;
};

void norm(Encoder& e, const Norm& n, uint32_t n_elements, uint32_t group, float eps) {
  const uint32_t n_groups = n_elements / group;
  const bool heads = group <= kHeadNorm;
  // Wide rows keep up to 16 elements a thread in registers; a group that is no multiple of four is read twice.
  const uint32_t threads = heads ? 128 : std::min(kMaxThreads, std::max(64u, std::bit_ceil(ceil_div(group, 16))));
  const uint32_t lanes = heads ? kSimdWidth : threads;
  const uint32_t of_a_lane = group % 4 ? 0 : ceil_div(group, 4 * lanes);
  const Size grid = {heads ? ceil_div(n_groups, threads / kSimdWidth) : n_groups};
  Dispatch& d =
      e.add(heads ? "rms_norm_heads" : "rms_norm",
            {{0, bool(n.w.buffer)}, {1, n.adds_before}, {2, n.adds_after}, {3, of_a_lane > 8 ? 0u : of_a_lane}}, grid,
            {threads});
  if (!heads) d.threadgroup_bytes = {(threads / kSimdWidth * 4 + 15) / 16 * 16};
  d.value(0, RmsNormArgs{group, n_groups, eps});
  const Place& anything = n.x;  // what the op does not have is bound and not touched
  bind(d, 1, n.x);
  bind(d, 2, n.w.buffer ? n.w : anything);
  bind(d, 3, n.r.buffer ? n.r : anything);
  bind(d, 4, n.s.buffer ? n.s : n.y);
  bind(d, 5, n.y);
}

uint32_t group_of(const Encoder& e, const Node& node) {
  return node.attrs.group ? node.attrs.group : e.value(node.inputs[0]).width;
}

void map(Encoder& e, const Node& node, ElementFunction function, float parameter = 0) {
  const uint32_t n = elements(e, node.outputs[0]);
  const auto [grid, threads] = fours(n);
  Dispatch& d = e.add("map_elements", {{52, uint32_t(function)}}, grid, threads);
  d.value(0, ElementArgs{n, parameter});
  bind(d, 1, e.place(node.inputs[0]));
  bind(d, 2, e.place(node.outputs[0]));
}

void zip(Encoder& e, ElementFunction function, const Place& a, const Place& b, const Place& y, uint32_t n) {
  const auto [grid, threads] = fours(n);
  Dispatch& d = e.add("zip_elements", {{52, uint32_t(function)}}, grid, threads);
  d.value(0, ElementArgs{n, 0});
  bind(d, 1, a);
  bind(d, 2, b);
  bind(d, 3, y);
}

void zip_node(Encoder& e, const Node& node, ElementFunction function) {
  zip(e, function, e.place(node.inputs[0]), e.place(node.inputs[1]), e.place(node.outputs[0]),
      elements(e, node.outputs[0]));
}

void row_vector(Encoder& e, const Place& x, ValueId vector, const Place& y, uint32_t n, ElementFunction function) {
  const uint32_t width = e.value(vector).width;
  const auto [grid, threads] = tiles(columns_of(width), n / width);
  Dispatch& d = e.add("zip_vector", {{52, uint32_t(function)}}, grid, threads);
  d.value(0, RowVectorArgs{width, n / width});
  bind(d, 1, x);
  bind(d, 2, e.place(vector));
  bind(d, 3, y);
}

}  // namespace

void encode_norm(Encoder& e, const Node& node, size_t) {  // rms_norm, norm_mul
  const Place w = node.inputs.size() > 1 ? e.place(node.inputs[1]) : Place{};
  norm(e, {.x = e.place(node.inputs[0]), .w = w, .r = {}, .s = {}, .y = e.place(node.outputs[0])},
       elements(e, node.outputs[0]), group_of(e, node), node.attrs.eps);
}

void encode_add_norm_mul(Encoder& e, const Node& node, size_t) {
  norm(e,
       {.x = e.place(node.inputs[0]),
        .w = e.place(node.inputs[2]),
        .r = e.place(node.inputs[1]),
        .s = e.place(node.outputs[0]),
        .y = e.place(node.outputs[1]),
        .adds_before = true},
       elements(e, node.outputs[0]), group_of(e, node), node.attrs.eps);
}

void encode_norm_mul_add(Encoder& e, const Node& node, size_t) {
  norm(e,
       {.x = e.place(node.inputs[0]),
        .w = e.place(node.inputs[1]),
        .r = e.place(node.inputs[2]),
        .s = {},
        .y = e.place(node.outputs[0]),
        .adds_after = true},
       elements(e, node.outputs[0]), group_of(e, node), node.attrs.eps);
}

void encode_norm_add_norm(Encoder& e, const Node& node, size_t) {
  const uint32_t group = group_of(e, node);
  const uint32_t threads = std::min(kMaxThreads, std::max(64u, std::bit_ceil(ceil_div(group, 8))));
  Dispatch& d = e.add("rms_norm_twice", {}, {elements(e, node.outputs[0]) / group}, {threads});
  d.threadgroup_bytes = {(threads / kSimdWidth * 8 + 15) / 16 * 16};
  d.value(0, NormTwiceArgs{group, node.attrs.eps, node.attrs.eps2});
  for (uint32_t i = 0; i < 4; ++i) bind(d, 1 + i, e.place(node.inputs[i]));
  for (uint32_t i = 0; i < 2; ++i) bind(d, 5 + i, e.place(node.outputs[i]));
}

void norm_heads(Encoder& e, const Place& x, ValueId w, uint32_t n_elements, uint32_t d_head, float eps) {
  norm(e, {.x = x, .w = e.place(w), .r = {}, .s = {}, .y = x}, n_elements, d_head, eps);
}

void add_vector(Encoder& e, const Place& x, ValueId vector, uint32_t n_elements) {
  row_vector(e, x, vector, x, n_elements, kElementAdd);
}

void gate_up(Encoder& e, Activation act, const Place& gate, const Place& up, const Place& y, uint32_t n_elements) {
  zip(e, act == Activation::silu ? kElementMulSilu : kElementMulGelu, gate, up, y, n_elements);
}

void encode_row_vector(Encoder& e, const Node& node, size_t) {
  row_vector(e, e.place(node.inputs[0]), node.inputs[1], e.place(node.outputs[0]), elements(e, node.outputs[0]),
             node.op == Op::add_bias ? kElementAdd : kElementMul);
}

void encode_elements(Encoder& e, const Node& node, size_t) {
  switch (node.op) {
    case Op::add:
      return zip_node(e, node, kElementAdd);
    case Op::mul:
      return zip_node(e, node, kElementMul);
    case Op::mul_sigmoid:
      return zip_node(e, node, kElementMulSigmoid);
    case Op::scale:
      return map(e, node, kElementScale, node.attrs.scale);
    case Op::silu:
      return map(e, node, kElementSilu);
    case Op::gelu:
      return map(e, node, kElementGelu);
    case Op::sigmoid:
      return map(e, node, kElementSigmoid);
    default:
      return map(e, node, kElementSoftcap, node.attrs.softcap);
  }
}

std::vector<std::byte> rope_constants(const Graph& graph, const Node& node) {
  std::vector<float> factors;
  if (node.inputs.size() == 2) {
    factors.resize(node.attrs.n_rot / 2);
    std::memcpy(factors.data(), graph.value(node.inputs[1]).data, 4 * factors.size());
  }
  const std::vector<uint64_t> turns = RopeFrequencies(node.attrs, factors.empty() ? nullptr : factors.data()).turns();
  std::vector<std::byte> bytes(8 * turns.size());
  std::memcpy(bytes.data(), turns.data(), bytes.size());
  return bytes;
}

void encode_rope_table(Encoder& e, const Node& node, size_t index) {
  const uint32_t n_rot = node.attrs.n_rot, rows = e.rows_of(node.outputs[0]);
  Dispatch& d = e.add("rope_table", {}, {ceil_div(n_rot / 2, 32), ceil_div(rows, 4)}, {32, 4});
  d.value(0, RopeTableArgs{n_rot, rows, float(RopeFrequencies(node.attrs, nullptr).magnitude())});
  bind(d, 1, e.place(node.inputs[0]));
  bind(d, 2, e.constant(index));
  bind(d, 3, e.place(node.outputs[0]));
}

void rotate(Encoder& e, const Attrs& a, uint32_t n_head, const Place& x, const Place& table, const Place& y,
            uint32_t rows) {
  const bool in_place = x.buffer == y.buffer && x.offset == y.offset;
  const bool by_fours = a.n_rot % 8 == 0 && a.d_head % 4 == 0;
  const uint32_t copied = in_place ? 0 : a.d_head - a.n_rot;
  const uint32_t units = (a.n_rot / 2 + copied) / (by_fours ? 4 : 1);
  const uint32_t lanes = lanes_for(units, 32);
  Dispatch& d = e.add("rope", {{50, a.interleaved}, {51, by_fours}},
                      {ceil_div(units, lanes), ceil_div(n_head, 128 / lanes), rows}, {lanes, 128 / lanes});
  d.value(0, RopeArgs{n_head, 0, a.d_head, a.n_rot, copied});
  bind(d, 1, table);
  bind(d, 2, x);
  bind(d, 3, y);
}

void rotate_in_place(Encoder& e, const Attrs& a, const Place& q, const Place& k, const Place& table, uint32_t rows) {
  const bool by_fours = a.n_rot % 8 == 0 && a.d_head % 4 == 0;
  const uint32_t units = a.n_rot / 2 / (by_fours ? 4 : 1), lanes = lanes_for(units, 32);
  Dispatch& d =
      e.add("rope_qk", {{50, a.interleaved}, {51, by_fours}},
            {ceil_div(units, lanes), ceil_div(a.n_head + a.n_head_kv, 128 / lanes), rows}, {lanes, 128 / lanes});
  d.value(0, RopeArgs{a.n_head, a.n_head_kv, a.d_head, a.n_rot, 0});
  bind(d, 1, table);
  bind(d, 2, q);
  bind(d, 3, k);
  bind(d, 4, q);
  bind(d, 5, k);
}

void encode_rope(Encoder& e, const Node& node, size_t) {
  rotate(e, node.attrs, node.attrs.n_head, e.place(node.inputs[0]), e.place(node.inputs[1]), e.place(node.outputs[0]),
         e.rows_of(node.outputs[0]));
}

void encode_gather_rows(Encoder& e, const Node& node, size_t) {
  const uint32_t width = e.value(node.inputs[0]).width, n = e.rows_of(node.outputs[0]);
  const auto [grid, threads] = tiles(columns_of(width), n);
  Dispatch& d = e.add("gather_rows", {}, grid, threads);
  d.value(0, GatherRowsArgs{e.rows_of(node.inputs[0]), width, n});
  bind(d, 1, e.place(node.inputs[0]));
  bind(d, 2, e.place(node.inputs[1]));
  bind(d, 3, e.place(node.outputs[0]));
}

void encode_copy(Encoder& e, const Node& node, size_t) {
  const uint32_t n = uint32_t(e.place(node.outputs[0]).bytes / 4);
  const auto [grid, threads] = fours(n);
  Dispatch& d = e.add("copy_words", {}, grid, threads);
  d.value(0, CopyArgs{n});
  bind(d, 1, e.place(node.inputs[0]));
  bind(d, 2, e.place(node.outputs[0]));
}

}  // namespace argent::metal
