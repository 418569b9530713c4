// Kernels that show what the shim's types and functions give; probe_test.cc says what that must be.
#include "backends/metal/kernels/dialect.h"

using namespace metal;

MTL_FC(bool, kNegate, 0);
MTL_FC(float, kScale, 1);
MTL_TABLE(float, kTable, 4) = {1.0f, 10.0f, 100.0f, 1000.0f};

// Row k of out is what the k-th function gives the 32 lanes; lanes hand in lane + 1.
kernel void probe_simd(device float* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  const float v = float(lane + 1);
  const int n = int(lane + 1);
  device float* row = out + lane;
  row[0] = simd_sum(v);
  row[32] = simd_max(v);
  row[64] = simd_min(v);
  row[96] = simd_shuffle(v, ushort(31 - lane));
  row[128] = simd_shuffle_xor(v, 5);
  row[160] = simd_shuffle_down(v, 3);
  row[192] = simd_shuffle_up(v, 3);
  row[224] = simd_broadcast(v, 7);
  row[256] = simd_prefix_inclusive_sum(v);
  row[288] = simd_prefix_exclusive_sum(v);
  row[320] = simd_prefix_exclusive_product(lane < 4 ? v : 1.0f);
  row[352] = float(simd_sum(n));
  const int bits = simd_or(n) * 100;
  row[384] = float(bits + simd_and(n));
  const float4 four = simd_sum(float4(v, 1.0f, -v, 0.0f));
  row[416] = four.x + four.y + four.z + four.w;
  row[448] = simd_any(lane == 9) ? 1.0f : 0.0f;
  row[480] = simd_all(lane < 31) ? 1.0f : 0.0f;
}

// One value a line of probe_test.cc.
kernel void probe_values(device const packed_float3* in [[buffer(0)]], device float* out [[buffer(1)]],
                         uint i [[thread_index_in_threadgroup]]) {
  if (i > 0) {
    return;
  }
  float4 a = float4(1.0f, 2.0f, 3.0f, 4.0f);
  a.xy = a.yx;
  out[0] = a.x * 10.0f + a.y;
  a.zw += float2(10.0f, 20.0f);
  out[1] = dot(a, float4(1.0f));
  const bool4 larger = a > float4(2.0f);
  out[2] = select(float4(0.0f), float4(1.0f, 10.0f, 100.0f, 1000.0f), larger).x + (any(larger) ? 0.5f : 0.0f) +
           (all(larger) ? 0.25f : 0.0f);
  out[3] = float(half(2049.0f));  // rounds to even: 2048
  out[4] = float(half(1.0f) / half(3.0f));
  out[5] = float(bfloat(1.00390625f));                // half way: to even, 1
  out[6] = float(bfloat(3.0f) * bfloat(1.0078125f));  // rounds to 8 bits
  out[7] = as_type<float>(0x40490fdbu);
  out[8] = float(as_type<uchar4>(0x04030201u).z);
  out[9] = float(as_type<char4>(0x000000ffu).x);
  const float3 packed = in[1];
  out[10] = packed.x * 100.0f + packed.y * 10.0f + packed.z;
  const float4x4 m = float4x4(float4(1.0f, 0.0f, 0.0f, 0.0f), float4(0.0f, 2.0f, 0.0f, 0.0f),
                              float4(0.0f, 0.0f, 3.0f, 0.0f), float4(1.0f));
  const float4 product = m * float4(1.0f, 1.0f, 1.0f, 2.0f);
  out[11] = product.x + 10.0f * product.y + 100.0f * product.z + 1000.0f * product.w;
  const half2x4 columns = half2x4(half4(1.0f), half4(2.0f));
  out[12] = float(columns[1].w) + float((columns * half2(1.0f, 2.0f)).x) * 10.0f;
  out[13] = exp(float2(0.0f, 1.0f)).y;
  out[14] = clamp(float4(-1.0f, 0.5f, 2.0f, 0.0f), 0.0f, 1.0f).z + fma(2.0f, 3.0f, 4.0f) + precise::tanh(0.0f);
  out[15] = (kNegate ? -1.0f : 1.0f) * kScale;
  out[16] = kTable[2];
  const uint4 shifted = uint4(1, 2, 3, 4) << 2u;
  out[17] = float(shifted.w) + float((shifted & 8u).y);
  out[18] = float(uchar4(half4(250.0f)).x);
  out[19] = float(half(65520.0f) > half(65504.0f));
  out[20] = rsqrt(4.0f) + floor(-0.5f) + float(abs(-3)) + max(uint2(1, 5), uint2(2, 3)).y;
  out[21] = float(sizeof(float3) * 10000 + sizeof(half2) * 1000 + sizeof(packed_float3) * 10 + sizeof(uchar4));
  out[22] = float(half(5.9604645e-8f)) * 16777216.0f;  // the smallest half
  const float3 turned = float3(1.0f, 2.0f, 3.0f).zyx;
  out[23] = turned.x;
}

// out = transpose(a at column 2, row 1) * b + b, of floats, halves or bfloats.
template <class T>
inline void probe_multiply(device const T* a, device const T* b, device float* out) {
  simdgroup_matrix<T, 8, 8> left;
  simdgroup_matrix<T, 8, 8> right;
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8>(0.5f);
  simdgroup_load(left, a, 10, ulong2(2, 1), true);
  simdgroup_load(right, b);
  simdgroup_multiply_accumulate(sum, left, right, sum);
  simdgroup_store(sum, out, 8, ulong2(0, 0), false);
}
kernel void probe_matrix(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                         device const half* a16 [[buffer(2)]], device const half* b16 [[buffer(3)]],
                         device const bfloat* a_b16 [[buffer(4)]], device const bfloat* b_b16 [[buffer(5)]],
                         device float* out [[buffer(6)]]) {
  probe_multiply(a, b, out);
  probe_multiply(a16, b16, out + 64);
  probe_multiply(a_b16, b_b16, out + 128);
}

// Threads of all threadgroups count into 8 bins.
kernel void probe_atomic(device atomic_uint* bins [[buffer(0)]], device atomic_int* low [[buffer(1)]],
                         uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&bins[i % 8], i, memory_order_relaxed);
  atomic_fetch_min_explicit(low, -int(i), memory_order_relaxed);
}

// Right uses of memory that a check might take for wrong: a thread's own bytes across a barrier that does not name
// them, lanes that exchange through both memories with barriers of their SIMD-group, a byte read by all and then
// written.
kernel void probe_barriers(device uint* y [[buffer(0)]], device atomic_uint* count [[buffer(1)]],
                           device uint* same_count [[buffer(2)]], threadgroup uint* shared MTL_TG(0),
                           uint i [[thread_index_in_threadgroup]]) {
  y[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] += 100;
  simdgroup_barrier(mem_flags::mem_device);
  const uint next = y[i ^ 1];
  shared[i] = next;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const uint own = shared[i ^ 1];
  simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  y[i] = own;
  const uint all = shared[i / 32 * 32];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 63) {
    shared[0] = all;
    atomic_store_explicit(count, own, memory_order_relaxed);
    same_count[0] += 1;
  }
}

// Values of every attribute, 8 a thread.
kernel void probe_attributes(device uint* out [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                             uint3 local [[thread_position_in_threadgroup]], uint3 global [[thread_position_in_grid]],
                             uint3 size [[threads_per_threadgroup]], uint3 groups [[threadgroups_per_grid]],
                             uint index [[thread_index_in_threadgroup]],
                             ushort simdgroup [[simdgroup_index_in_threadgroup]],
                             ushort lane [[thread_index_in_simdgroup]],
                             uint simdgroups [[simdgroups_per_threadgroup]]) {
  const uint threads = size.x * size.y * size.z;
  device uint* mine = out + 8 * (((group.z * groups.y + group.y) * groups.x + group.x) * threads + index);
  mine[0] = group.x + 16 * group.y + 256 * group.z;
  mine[1] = local.x + 16 * local.y + 256 * local.z;
  mine[2] = global.x + 16 * global.y + 256 * global.z;
  mine[3] = size.x + 16 * size.y + 256 * size.z;
  mine[4] = groups.x + 16 * groups.y + 256 * groups.z;
  mine[5] = index;
  mine[6] = simdgroup;
  mine[7] = lane + 100 * simdgroups;
}
