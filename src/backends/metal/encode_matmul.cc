// Products with weights, and rows of weights.
#include <algorithm>

#include "backends/metal/encode_ops.h"
#include "backends/metal/kernels/args.h"
#include "backends/metal/policy.h"

namespace argent::metal {
namespace {

std::string kernel_of(std::string_view family, Format format) {
  std::string name(family);
  for (const char c : info(format).name) name += char(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return name;
}

FunctionConstant plain_format(Format format) {
  return {60, uint32_t(format == Format::f32 ? 0 : format == Format::f16 ? 1 : 2)};
}

// Rows `first` to `first + n` of an activation of `width` floats.
Place rows_at(const Place& all, uint32_t width, uint32_t first, uint32_t n) {
  return {all.buffer, all.offset + 4 * size_t(first) * width, 4 * size_t(n) * width};
}

}  // namespace

void product(Encoder& e, const Place& x, ValueId weight, const Place& y, uint32_t n_rows) {
  const Value& w = e.value(weight);
  const MatmulArgs args{w.n_rows, w.width, n_rows, w.width, w.n_rows};
  const auto dispatch = [&](std::string_view family, const MatmulArgs& a, uint32_t first, Size grid, Size threads) {
    std::vector<FunctionConstant> constants;
    std::string name = std::string(family);
    if (family == "mul_mv_plain")
      constants.push_back(plain_format(w.format));
    else
      name = kernel_of(family, w.format);
    Dispatch& d = e.add(name, std::move(constants), grid, threads);
    d.value(0, a);
    bind(d, 1, e.place(weight));
    bind(d, 2, rows_at(x, w.width, first, a.tokens));
    bind(d, 3, rows_at(y, w.n_rows, first, a.tokens));
    return &d;
  };
  switch (product_kernel(w.format, w.width, n_rows, e.variants().has("matrix"))) {
    case Product::plain:
      dispatch("mul_mv_plain", args, 0, {ceil_div(w.n_rows, 2), n_rows}, {64});
      break;
    case Product::vector:
      dispatch("mul_mv_", args, 0, {ceil_div(w.n_rows, rows_of_mul_mv(w.format))}, {64});
      break;
    case Product::tokens:
      if (!e.variants().has("tokens")) {
        dispatch("mul_mv_", args, 0, {ceil_div(w.n_rows, rows_of_mul_mv(w.format)), n_rows}, {64});
        break;
      }
      for (uint32_t first = 0; first < n_rows; first += kTokensAtOnce) {
        MatmulArgs part = args;
        part.tokens = std::min(kTokensAtOnce, n_rows - first);
        dispatch("mul_mv_tokens_", part, first, {ceil_div(w.n_rows, 4)}, {64});
      }
      break;
    case Product::matrix:
      dispatch("mul_mm_", args, 0, {mul_mm_token_tiles(n_rows), ceil_div(w.n_rows, 64)}, {128})->threadgroup_bytes = {
          kMulMmBytes};
      break;
  }
}

void encode_embed(Encoder& e, const Node& node, size_t) {
  const Value& table = e.value(node.inputs[1]);
  const uint32_t n_rows = e.rows_of(node.outputs[0]);
  const bool plain = table.width % 8 != 0;
  std::vector<FunctionConstant> constants;
  if (plain) constants.push_back(plain_format(table.format));
  Dispatch& d = e.add(plain ? std::string("get_rows_plain") : kernel_of("get_rows_", table.format),
                      std::move(constants), {ceil_div(plain ? table.width : table.width / 8, 64), n_rows}, {64});
  d.value(0, GetRowsArgs{table.n_rows, table.width, table.width});
  bind(d, 1, e.place(node.inputs[1]));
  bind(d, 2, e.place(node.inputs[0]));
  bind(d, 3, e.place(node.outputs[0]));
}

void encode_matmul(Encoder& e, const Node& node, size_t) {
  product(e, e.place(node.inputs[0]), node.inputs[1], e.place(node.outputs[0]), e.rows_of(node.outputs[0]));
}

}  // namespace argent::metal
