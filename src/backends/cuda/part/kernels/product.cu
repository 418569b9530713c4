// Which product kernel runs; products of float formats; activations to int8.
#include "backends/cuda/part/kernels/product_many.cuh"
#include "backends/cuda/part/kernels/product_rows.cuh"
#include "backends/cuda/part/kernels/quantize.cuh"

namespace argent::cuda {
namespace {

__global__ void quantize_kernel(const float* x, uint32_t n_in, Q8 to) {
  wait_for_previous();
  let_next_start();
  const uint32_t column = blockIdx.y * blockDim.x + threadIdx.x;
  if (column >= n_in) return;  // whole warps: n_in is a multiple of 32
  store_quantized(to, blockIdx.x, column / 32, x[uint64_t(blockIdx.x) * n_in + column]);
}

template <Format F>
__device__ __forceinline__ float weight(const uint8_t* row, uint32_t i) {
  if constexpr (F == Format::f32) return reinterpret_cast<const float*>(row)[i];
  const uint32_t bits = reinterpret_cast<const uint16_t*>(row)[i];
  return F == Format::f16 ? qk_half(bits) : __uint_as_float(bits << 16);
}
// Activations of bf16 weights are rounded to bf16, as on every backend.
template <Format F>
__device__ __forceinline__ float activation(float x) {
  if constexpr (F != Format::bf16) return x;
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return x;
  return __uint_as_float((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

constexpr uint32_t kFloatRows = 8;  // of activations at once

// A warp a row of weights: lanes take columns in fours, in turn, then meet.
template <Format F>
__global__ void float_kernel(PartArgs part, uint32_t n_in, const float* x, uint32_t n_rows) {
  wait_for_previous();
  let_next_start();
  const uint32_t lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= part.n_out) return;
  const uint32_t first = blockIdx.y * kFloatRows, n = min(kFloatRows, n_rows - first);
  const uint8_t* w = part.p8 + uint64_t(row) * n_in * (F == Format::f32 ? 4 : 2);
  float acc[kFloatRows] = {};
  for (uint32_t c = 4 * lane; c < n_in; c += 128) {
    const uint32_t some = min(4u, n_in - c);
    for (uint32_t k = 0; k < some; ++k) {
      const float v = weight<F>(w, c + k);
#pragma unroll
      for (uint32_t r = 0; r < kFloatRows; ++r)
        if (r < n) acc[r] = __fmaf_rn(v, activation<F>(x[uint64_t(first + r) * n_in + c + k]), acc[r]);
    }
  }
#pragma unroll
  for (uint32_t r = 0; r < kFloatRows; ++r) {
    if (r >= n) break;
    for (uint32_t step = 16; step; step /= 2) acc[r] = __fadd_rn(acc[r], __shfl_xor_sync(~0u, acc[r], step));
    if (lane) continue;
    const uint64_t to = uint64_t(first + r) * part.n_out + row;
    float sum = acc[r];
    if (part.bias) sum = __fadd_rn(sum, part.bias[row]);
    if (part.residual) sum = __fadd_rn(sum, part.residual[to]);
    part.y[to] = sum;
  }
}

template <Format F>
void float_product(Launch& launch, const PartArgs& part, uint32_t n_in, const float* x, uint32_t n_rows) {
  start(launch, "product", float_kernel<F>, dim3((part.n_out + 7) / 8, (n_rows + kFloatRows - 1) / kFloatRows),
        dim3(256), 0, part, n_in, x, n_rows);
}

PartArgs part_of(const Matrix& w, uint32_t tiles_end, float* y, const float* bias, const float* residual,
                 float* squares) {
  PartArgs part = {w.data, nullptr, nullptr, nullptr, nullptr, w.n_out, tiles_end, y, bias, residual, squares};
  with_format(w.format, [&]<Format F>() {
    const Planes planes = planes_of(plane_shape<F>(), w.n_out, w.n_in);
    part.p8 = w.data + planes.p8, part.p4 = w.data + planes.p4, part.p2 = w.data + planes.p2;
    part.p1 = w.data + planes.p1, part.scales = w.data + planes.scales;
  });
  return part;
}

uint32_t tiles_of(const Matrix& w) { return (w.n_out + kPanelRows - 1) / kPanelRows; }

}  // namespace

#define ARGENT_EXTERN(name) extern template void product_of<Format::name>(Launch&, ProductArgs)
ARGENT_EXTERN(q4_0);
ARGENT_EXTERN(q4_1);
ARGENT_EXTERN(q5_0);
ARGENT_EXTERN(q5_1);
ARGENT_EXTERN(q8_0);
ARGENT_EXTERN(q2_k);
ARGENT_EXTERN(q3_k);
ARGENT_EXTERN(q4_k);
ARGENT_EXTERN(q5_k);
ARGENT_EXTERN(q6_k);
ARGENT_EXTERN(iq4_nl);
ARGENT_EXTERN(iq4_xs);
ARGENT_EXTERN(mxfp4);
#undef ARGENT_EXTERN

void quantize(Launch& launch, const float* x, uint32_t n_rows, uint32_t n_in, const Q8& to) {
  if (wide(launch, n_rows)) return wide_rows(launch, x, n_rows, n_in, to.q);
  start(launch, "quantize", quantize_kernel, dim3(n_rows, (n_in + 255) / 256), dim3(256), 0, x, n_in, to);
}

void products(Launch& launch, const ProductPart* parts, uint32_t n_parts, const float* x, const Q8& q,
              const OwnRow& own, uint32_t n_rows) {
  for (uint32_t begin = 0, end; begin < n_parts; begin = end) {
    const Format format = parts[begin].w.format;
    ProductArgs args = {};
    uint32_t tiles = 0;
    for (end = begin; end < n_parts && parts[end].w.format == format; ++end) {
      const ProductPart& p = parts[end];
      tiles += tiles_of(p.w);
      args.parts[args.n_parts++] = part_of(p.w, tiles, p.y, p.bias, p.residual, p.squares);
      if (!is_float(format)) continue;
      const PartArgs& part = args.parts[args.n_parts - 1];
      if (format == Format::f32)
        float_product<Format::f32>(launch, part, p.w.n_in, x, n_rows);
      else if (format == Format::f16)
        float_product<Format::f16>(launch, part, p.w.n_in, x, n_rows);
      else
        float_product<Format::bf16>(launch, part, p.w.n_in, x, n_rows);
    }
    args.n_in = parts[begin].w.n_in, args.n_chunks = (args.n_in + kChunk - 1) / kChunk, args.n_rows = n_rows;
    args.q = q.q, args.own = own, args.waits_last = begin > 0, args.alone = begin == 0 && end == n_parts;
    with_format(format, [&]<Format F>() { product_of<F>(launch, args); });
  }
}

bool glu_is_fused(const Matrix& gate, const Matrix& up) { return gate.format == up.format && !is_float(gate.format); }

void glu(Launch& launch, const Matrix& gate, const Matrix& up, Act act, const Q8& q, const OwnRow& own, float* y,
         uint32_t n_rows) {
  ProductArgs args = {};
  args.parts[0] = part_of(gate, tiles_of(gate), y, nullptr, nullptr, nullptr);
  args.parts[1] = part_of(up, 2 * tiles_of(gate), y, nullptr, nullptr, nullptr);
  args.n_parts = 2, args.n_in = gate.n_in, args.n_chunks = (gate.n_in + kChunk - 1) / kChunk, args.n_rows = n_rows;
  args.q = q.q, args.own = own;
  args.alone = true;
  args.glu = true, args.gelu = act == Act::gelu;
  with_format(gate.format, [&]<Format F>() { product_of<F>(launch, args); });
}

}  // namespace argent::cuda
