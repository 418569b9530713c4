// From the file's blocks to the planes of planes.cuh: once, when a model is loaded.
#include "backends/cuda/part/kernels/launch.cuh"
#include "backends/cuda/part/kernels/planes.cuh"

namespace argent::cuda {
namespace {

__device__ uint32_t half_at(const uint8_t* p) { return p[0] | uint32_t(p[1]) << 8; }
__device__ uint32_t word_at(const uint8_t* p) { return half_at(p) | half_at(p + 2) << 16; }

template <Format F>
struct BlockOf;
#define ARGENT_BLOCK(name)       \
  template <>                    \
  struct BlockOf<Format::name> { \
    using Block = block_##name;  \
  }
ARGENT_BLOCK(q4_0);
ARGENT_BLOCK(q4_1);
ARGENT_BLOCK(q5_0);
ARGENT_BLOCK(q5_1);
ARGENT_BLOCK(q8_0);
ARGENT_BLOCK(q2_k);
ARGENT_BLOCK(q3_k);
ARGENT_BLOCK(q4_k);
ARGENT_BLOCK(q5_k);
ARGENT_BLOCK(q6_k);
ARGENT_BLOCK(iq4_nl);
ARGENT_BLOCK(iq4_xs);
ARGENT_BLOCK(mxfp4);
#undef ARGENT_BLOCK

// The quant of element e of a block, by the drawings in the formats' headers.
template <Format F>
__device__ uint32_t quant_of(const typename BlockOf<F>::Block& b, uint32_t e) {
  const uint32_t l = e % 32;
  if constexpr (F == Format::q8_0) {
    return uint8_t(b.qs[e]);
  } else if constexpr (F == Format::q4_0 || F == Format::q4_1 || F == Format::iq4_nl || F == Format::mxfp4) {
    return b.qs[e % 16] >> 4 * (e / 16) & 15;
  } else if constexpr (F == Format::q5_0 || F == Format::q5_1) {
    return (b.qs[e % 16] >> 4 * (e / 16) & 15) | (b.qh[e / 8] >> e % 8 & 1) << 4;
  } else if constexpr (F == Format::iq4_xs) {
    return b.qs[16 * (e / 32) + e % 16] >> 4 * (e / 16 % 2) & 15;
  } else if constexpr (F == Format::q4_k) {
    return q4_k_quants(b.qs[32 * (e / 64) + l], e / 32 % 2) & 15;
  } else if constexpr (F == Format::q5_k) {
    return q5_k_quants(b.qs[32 * (e / 64) + l], b.qh[l], e / 32) & 31;
  } else if constexpr (F == Format::q6_k) {
    const uint32_t h = e / 128, s = e / 32 % 4;
    return q6_k_quants(b.ql[64 * h + 32 * (s & 1) + l], b.qh[32 * h + l], s) & 63;
  } else if constexpr (F == Format::q2_k) {
    return q2_k_quants(b.qs[32 * (e / 128) + l], e / 32 % 4) & 3;
  } else {
    return q3_k_quants(b.qs[32 * (e / 128) + l], b.hmask[l], e / 128, e / 32 % 4) & 7;
  }
}

// A warp a tile and 64 columns.
template <Format F>
__global__ void relay_kernel(uint8_t* to, Planes planes, const uint8_t* rows, uint32_t first, uint32_t n,
                             uint32_t n_in) {
  using Block = typename BlockOf<F>::Block;
  constexpr PlaneShape s = plane_shape<F>();
  constexpr uint32_t kBlock = by_256(s.scales) ? 256 : 32;
  wait_for_previous();
  const uint32_t lane = threadIdx.x % 32, warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const uint32_t n_tiles = (n + kPanelRows - 1) / kPanelRows;
  if (warp >= n_tiles * planes.n_chunks) return;
  const uint32_t tile = warp / planes.n_chunks, chunk = warp % planes.n_chunks;
  const uint64_t unit = uint64_t(first / kPanelRows + tile) * planes.n_chunks + chunk;
  const uint32_t n_blocks = n_in / kBlock;
  const auto block = [&](uint32_t row, uint32_t column) -> const Block& {
    return reinterpret_cast<const Block*>(rows)[uint64_t(tile * kPanelRows + row) * n_blocks + column / kBlock];
  };
  const auto there = [&](uint32_t row, uint32_t column) { return tile * kPanelRows + row < n && column < n_in; };
  constexpr uint32_t kFlip = s.shift ? 0x80u >> s.shift : 0;

  uint32_t quants[2][4];  // group, word
  for (uint32_t g = 0; g < 2; ++g)
    for (uint32_t i = 0; i < 4; ++i) {
      quants[g][i] = 0;
      const uint32_t row = lane / 4 + 8 * (i % 2);
      for (uint32_t k = 0; k < 4; ++k) {
        const uint32_t column = chunk * kChunk + 32 * g + 16 * (i / 2) + 4 * (lane % 4) + k;
        if (there(row, column)) quants[g][i] |= (quant_of<F>(block(row, column), column % kBlock) ^ kFlip) << 8 * k;
      }
    }
  if constexpr (s.p8)
    for (uint32_t g = 0; g < 2; ++g)
      reinterpret_cast<uint4*>(to + planes.p8 + unit * 1024)[32 * g + lane] =
          make_uint4(quants[g][0], quants[g][1], quants[g][2], quants[g][3]);
  uint32_t above = 0;  // bits of a quant in the planes so far
  if constexpr (s.p4) {
    uint32_t words[4];
    for (uint32_t i = 0; i < 4; ++i)
      words[i] = (quants[i / 2][i % 2] & 0x0f0f0f0f) | (quants[i / 2][i % 2 + 2] & 0x0f0f0f0f) << 4;
    reinterpret_cast<uint4*>(to + planes.p4 + unit * 512)[lane] = make_uint4(words[0], words[1], words[2], words[3]);
    above = 4;
  }
  if constexpr (s.p2) {
    uint32_t words[2] = {};
    for (uint32_t i = 0; i < 8; ++i) words[i / 4] |= (quants[i / 4][i % 4] >> above & 0x03030303) << 2 * (i % 4);
    reinterpret_cast<uint2*>(to + planes.p2 + unit * 256)[lane] = make_uint2(words[0], words[1]);
    above += 2;
  }
  if constexpr (s.p1) {
    uint32_t word = 0;
    for (uint32_t i = 0; i < 8; ++i) word |= (quants[i / 4][i % 4] >> above & 0x01010101) << i;
    reinterpret_cast<uint32_t*>(to + planes.p1 + unit * 128)[lane] = word;
  }

  if constexpr (!by_256(s.scales)) {
    uint8_t* scales = to + planes.scales + unit * scale_bytes(s.scales);
    const uint32_t row = lane / 4 + 8 * (lane / 2 % 2), group = lane % 2, column = chunk * kChunk + 32 * group;
    const bool in = there(row, column);
    const uint32_t at = lane / 4, k = lane % 4;  // 4 values by row % 8
    if constexpr (s.scales == Scales::half) {
      reinterpret_cast<uint16_t*>(scales)[4 * at + k] = in ? uint16_t(block(row, column).d) : uint16_t(0);
    } else if constexpr (s.scales == Scales::two) {
      reinterpret_cast<uint16_t*>(scales)[8 * at + k] = in ? uint16_t(block(row, column).d) : uint16_t(0);
      reinterpret_cast<uint16_t*>(scales)[8 * at + 4 + k] = in ? uint16_t(block(row, column).m) : uint16_t(0);
    } else {
      scales[4 * at + k] = in ? block(row, column).e : uint8_t(0);
    }
  } else if (chunk % 4 == 0 && lane < kPanelRows) {
    uint8_t* scales = to + planes.scales +
                      (uint64_t(first / kPanelRows + tile) * planes.n_supers + chunk / 4) * scale_bytes(s.scales);
    const uint32_t row = lane;
    const bool in = there(row, chunk * kChunk);
    const Block* b = in ? &block(row, chunk * kChunk) : nullptr;
    if constexpr (s.scales == Scales::k4) {
      uint4 head = make_uint4(0, 0, 0, 0);
      if (in) {
        const uint32_t s0 = word_at(b->scales), s1 = word_at(b->scales + 4), s2 = word_at(b->scales + 8);
        head.x = b->d | uint32_t(b->dmin) << 16;
        for (uint32_t q = 0; q < 4; ++q) {
          const uint32_t fields = q4_k_scale(s0, s2, 2 * q) | q4_k_scale(s0, s2, 2 * q + 1) << 6 |
                                  q4_k_min(s1, s2, 2 * q) << 12 | q4_k_min(s1, s2, 2 * q + 1) << 18;
          head.y |= qk_byte(fields, 0) << 8 * q, head.z |= qk_byte(fields, 1) << 8 * q;
          head.w |= qk_byte(fields, 2) << 8 * q;
        }
      }
      reinterpret_cast<uint4*>(scales)[row] = head;
    } else if constexpr (s.scales == Scales::k6 || s.scales == Scales::k2) {
      for (uint32_t i = 0; i < 16; ++i) scales[16 * row + i] = in ? uint8_t(b->scales[i]) : uint8_t(0);
      if constexpr (s.scales == Scales::k6) {
        reinterpret_cast<uint16_t*>(scales + 256)[row] = in ? uint16_t(b->d) : uint16_t(0);
      } else {
        reinterpret_cast<uint32_t*>(scales + 256)[row] = in ? b->d | uint32_t(b->dmin) << 16 : 0;
      }
    } else if constexpr (s.scales == Scales::k3) {
      for (uint32_t i = 0; i < 12; ++i) scales[12 * row + i] = in ? b->scales[i] : uint8_t(0);
      reinterpret_cast<uint16_t*>(scales + 192)[row] = in ? uint16_t(b->d) : uint16_t(0);
    } else {
      reinterpret_cast<uint32_t*>(scales)[2 * row] = in ? b->d | uint32_t(b->scales_h) << 16 : 0;
      reinterpret_cast<uint32_t*>(scales)[2 * row + 1] = in ? word_at(b->scales_l) : 0;
    }
  }
}

// The power of two that a row's scales are multiplied with where they become f16 (planes.cuh); a warp a row.
template <Format F>
__global__ void factor_kernel(uint8_t* to, Planes planes, uint32_t first, uint32_t n) {
  constexpr PlaneShape s = plane_shape<F>();
  wait_for_previous();
  const uint32_t lane = threadIdx.x % 32, at = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (at >= n) return;
  const uint32_t row = first + at, tile = row / kPanelRows, r = row % kPanelRows;
  float scale = 0, min = 0;
  const auto look = [&](const ScaleMin& of) { scale = fmaxf(scale, fabsf(of.scale)), min = fmaxf(min, fabsf(of.min)); };
  if constexpr (by_256(s.scales)) {
    for (uint32_t i = lane; i < planes.n_supers; i += 32) {
      SuperScales<s.scales> scales;
      scales.load(to + planes.scales + (uint64_t(tile) * planes.n_supers + i) * scale_bytes(s.scales), r);
      for (uint32_t k = 0; k < 8; ++k)
        for (uint32_t side = 0; side < 32 / s.group; ++side) look(scales.at(k, side));
    }
  } else {
    for (uint32_t i = lane; i < planes.n_chunks; i += 32) {
      ChunkScales<s.scales> scales;
      scales.load(to + planes.scales + (uint64_t(tile) * planes.n_chunks + i) * scale_bytes(s.scales), r % 8);
      for (uint32_t k = 0; k < 2; ++k) look(scales.at(k, r / 8));
    }
  }
  const int of_scale = int(__reduce_max_sync(~0u, __float_as_uint(scale)) >> 23) - 127;
  const int of_min = int(__reduce_max_sync(~0u, __float_as_uint(min)) >> 23) - 127;
  const int up = ::min(::max(24 + ::min(-10 - of_scale, 2 - of_min), -126), 126);
  if (lane == 0) reinterpret_cast<float*>(to + planes.factors)[row] = __int_as_float((127 + up) << 23);
}

// An element of a quantized matrix as decode_row has it, bit for bit.
template <Format F>
__device__ float element(const uint8_t* data, const Planes& planes, uint32_t row, uint32_t column) {
  constexpr PlaneShape s = plane_shape<F>();
  const uint32_t tile = row / kPanelRows, r = row % kPanelRows, chunk = column / kChunk, g = column / 32 % 2;
  const uint32_t k = column % 32, lane = r % 8 * 4 + k % 16 / 4, i = r / 8 + 2 * (k / 16), byte = k % 4;
  const uint64_t unit = uint64_t(tile) * planes.n_chunks + chunk;
  uint32_t word = 0;
  if constexpr (s.p8) {
    word = reinterpret_cast<const uint32_t*>(data + planes.p8 + unit * 1024)[(32 * g + lane) * 4 + i];
  } else {
    uint32_t p4 = 0, p2 = 0, p1 = 0;
    if constexpr (s.p4)
      p4 = reinterpret_cast<const uint32_t*>(data + planes.p4 + unit * 512)[lane * 4 + 2 * g + i % 2] >> 4 * (i / 2);
    if constexpr (s.p2) p2 = reinterpret_cast<const uint32_t*>(data + planes.p2 + unit * 256)[lane * 2 + g] >> 2 * i;
    if constexpr (s.p1) p1 = reinterpret_cast<const uint32_t*>(data + planes.p1 + unit * 128)[lane] >> (4 * g + i);
    word = levels<F>(p4, p2, p1);
  }
  const uint32_t bits = qk_byte(word, byte);
  const float level = s.min ? float(bits) : float(qk_signed(bits) >> s.shift);
  ScaleMin of;
  if constexpr (by_256(s.scales)) {
    SuperScales<s.scales> scales;
    scales.load(data + planes.scales + (uint64_t(tile) * planes.n_supers + column / 256) * scale_bytes(s.scales), r);
    of = scales.at(column / 32 % 8, k / 16);
  } else {
    ChunkScales<s.scales> scales;
    scales.load(data + planes.scales + unit * scale_bytes(s.scales), r % 8);
    of = scales.at(g, r / 8);
  }
  return s.min ? __fadd_rn(__fmul_rn(of.scale, level), of.min) : __fmul_rn(of.scale, level);
}

template <Format F>
__device__ float plain_element(const uint8_t* data, uint64_t at) {
  if constexpr (F == Format::f32) return reinterpret_cast<const float*>(data)[at];
  const uint32_t bits = reinterpret_cast<const uint16_t*>(data)[at];
  return F == Format::f16 ? qk_half(bits) : __uint_as_float(bits << 16);
}

template <Format F>
__global__ void embed_kernel(const uint8_t* data, Planes planes, uint32_t n_in, const int32_t* ids, float* y) {
  wait_for_previous();
  let_next_start();
  const uint32_t row = uint32_t(ids[blockIdx.x]), column = blockIdx.y * blockDim.x + threadIdx.x;
  if (column >= n_in) return;
  float& to = y[uint64_t(blockIdx.x) * n_in + column];
  if constexpr (kIsFloat<F>) {
    to = plain_element<F>(data, uint64_t(row) * n_in + column);
  } else {
    to = element<F>(data, planes, row, column);
  }
}

}  // namespace

uint64_t matrix_bytes(Format format, uint32_t n_out, uint32_t n_in) {
  uint64_t bytes = row_bytes(format, n_in) * n_out;
  with_format(format, [&]<Format F>() { bytes = planes_of(plane_shape<F>(), n_out, n_in).bytes; });
  return bytes;
}

void relay(Launch& launch, const Matrix& to, const uint8_t* rows, uint32_t first, uint32_t n) {
  uint8_t* data = const_cast<uint8_t*>(to.data);
  if (is_float(to.format)) {
    const uint64_t row = row_bytes(to.format, to.n_in);
    launch.note(cudaMemcpyAsync(data + first * row, rows, n * row, cudaMemcpyDeviceToDevice, launch.stream), "relay");
    return;
  }
  with_format(to.format, [&]<Format F>() {
    const Planes planes = planes_of(plane_shape<F>(), to.n_out, to.n_in);
    const uint32_t warps = (n + kPanelRows - 1) / kPanelRows * planes.n_chunks;
    start(launch, "relay", relay_kernel<F>, dim3((warps + 3) / 4), dim3(128), 0, data, planes, rows, first, n, to.n_in);
    // Of padding rows too, whose scales are zeros: products read whole tiles.
    const uint32_t n_padded = (n + kPanelRows - 1) / kPanelRows * kPanelRows;
    start(launch, "relay", factor_kernel<F>, dim3(n_padded / 4), dim3(128), 0, data, planes, first, n_padded);
  });
}

void embed(Launch& launch, const Matrix& w, const int32_t* ids, uint32_t n_rows, float* y) {
  const dim3 grid(n_rows, (w.n_in + 255) / 256), block(256);
  const auto go = [&]<Format F>() {
    Planes planes = {};
    if constexpr (!kIsFloat<F>) planes = planes_of(plane_shape<F>(), w.n_out, w.n_in);
    start(launch, "embed", embed_kernel<F>, grid, block, 0, w.data, planes, w.n_in, ids, y);
  };
  with_format(w.format, go);
  if (w.format == Format::f32) go.template operator()<Format::f32>();
  if (w.format == Format::f16) go.template operator()<Format::f16>();
  if (w.format == Format::bf16) go.template operator()<Format::bf16>();
}

}  // namespace argent::cuda
