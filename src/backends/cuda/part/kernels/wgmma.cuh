// What kernels of sm_90a use beside ordinary CUDA (PTX ISA): wgmma with A from registers, mbarriers, bulk copies.
#pragma once

#include <cstdint>

namespace argent::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasWgmma = true;  // of what is being compiled for
#else
inline constexpr bool kHasWgmma = false;
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Barriers and what is copied to are addresses in shared memory.
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n) : "memory");
}
__device__ __forceinline__ void barriers_are_made() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and has the phase wait for so many bytes of copies.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of this parity has ended.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Has it? Without waiting.
__device__ __forceinline__ bool barrier_is_done(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}
// bytes: a multiple of 16, as both addresses are.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// From where another CTA of the cluster has `at`.
__device__ __forceinline__ float4 load_of_rank(const float4* at, uint32_t rank) {
  float4 x;
  uint32_t from;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(from) : "r"(shared_address(at)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(from));
  return x;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <uint32_t kLeft>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

// A warpgroup's share of the CTA's registers: more or fewer than at first.
template <bool kMore, uint32_t kRegisters>
__device__ __forceinline__ void set_registers() {
  if constexpr (kMore)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  else
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A K-major operand in rows of 128 bytes, swizzled by 128 (16 bytes j of row r are at j ^ r % 8), eight rows 1024 bytes
// after the eight before: the low half of its descriptor, which 32 bytes of rows further is 2 more, and the high half.
__device__ __forceinline__ uint32_t swizzled_operand(uint32_t address) { return address >> 4 | 1u << 16; }
inline constexpr uint32_t kSwizzledOperand = 1024 / 16 | 1u << 30;

// Operands of an instruction for 16 columns of results: eight registers.
#define ARGENT_P0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define ARGENT_P1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define ARGENT_P2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define ARGENT_P3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define ARGENT_P4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define ARGENT_P5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define ARGENT_P6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define ARGENT_P7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define ARGENT_P8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define ARGENT_P9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define ARGENT_P10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define ARGENT_P11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define ARGENT_P12 "%96,%97,%98,%99,%100,%101,%102,%103"
#define ARGENT_P13 "%104,%105,%106,%107,%108,%109,%110,%111"
#define ARGENT_P14 "%112,%113,%114,%115,%116,%117,%118,%119"
#define ARGENT_P15 "%120,%121,%122,%123,%124,%125,%126,%127"
#define ARGENT_D(i)                                                                                                   \
  "+f"(d[8 * i]), "+f"(d[8 * i + 1]), "+f"(d[8 * i + 2]), "+f"(d[8 * i + 3]), "+f"(d[8 * i + 4]), "+f"(d[8 * i + 5]), \
      "+f"(d[8 * i + 6]), "+f"(d[8 * i + 7])

// d += a b of 64 rows, kWidth columns and 16 k in f16; a: the four registers of a thread; b: swizzled_operand().
template <uint32_t kWidth, uint32_t kRegisters>
__device__ __forceinline__ void wgmma(float (&d)[kRegisters], const uint32_t (&a)[4], uint32_t b) {
#define ARGENT_WGMMA(n, registers, a0, a1, a2, a3, b0, high, ...)                                                 \
  if constexpr (kWidth == n)                                                                                      \
  asm volatile("{.reg .pred add; .reg .b64 b; setp.ne.b32 add, 1, 0; mov.b64 b, {%" #b0 ", %" #high               \
               "};\n"                                                                                             \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" registers "}, {%" #a0 ",%" #a1 ",%" #a2 \
               ",%" #a3 "}, b, add, 1, 1, 0;}"                                                                    \
               : __VA_ARGS__                                                                                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kSwizzledOperand))
  ARGENT_WGMMA(32, ARGENT_P0 "," ARGENT_P1, 16, 17, 18, 19, 20, 21, ARGENT_D(0), ARGENT_D(1));
  ARGENT_WGMMA(64, ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3, 32, 33, 34, 35, 36, 37, ARGENT_D(0),
               ARGENT_D(1), ARGENT_D(2), ARGENT_D(3));
  ARGENT_WGMMA(96, ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3 "," ARGENT_P4 "," ARGENT_P5, 48, 49, 50, 51, 52,
               53, ARGENT_D(0), ARGENT_D(1), ARGENT_D(2), ARGENT_D(3), ARGENT_D(4), ARGENT_D(5));
  ARGENT_WGMMA(112, ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3 "," ARGENT_P4 "," ARGENT_P5 "," ARGENT_P6, 56,
               57, 58, 59, 60, 61, ARGENT_D(0), ARGENT_D(1), ARGENT_D(2), ARGENT_D(3), ARGENT_D(4), ARGENT_D(5),
               ARGENT_D(6));
  ARGENT_WGMMA(
      128, ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3 "," ARGENT_P4 "," ARGENT_P5 "," ARGENT_P6 "," ARGENT_P7,
      64, 65, 66, 67, 68, 69, ARGENT_D(0), ARGENT_D(1), ARGENT_D(2), ARGENT_D(3), ARGENT_D(4), ARGENT_D(5), ARGENT_D(6),
      ARGENT_D(7));
  ARGENT_WGMMA(144,
               ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3 "," ARGENT_P4 "," ARGENT_P5 "," ARGENT_P6
                         "," ARGENT_P7 "," ARGENT_P8,
               72, 73, 74, 75, 76, 77, ARGENT_D(0), ARGENT_D(1), ARGENT_D(2), ARGENT_D(3), ARGENT_D(4), ARGENT_D(5),
               ARGENT_D(6), ARGENT_D(7), ARGENT_D(8));
  ARGENT_WGMMA(160,
               ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3 "," ARGENT_P4 "," ARGENT_P5 "," ARGENT_P6
                         "," ARGENT_P7 "," ARGENT_P8 "," ARGENT_P9,
               80, 81, 82, 83, 84, 85, ARGENT_D(0), ARGENT_D(1), ARGENT_D(2), ARGENT_D(3), ARGENT_D(4), ARGENT_D(5),
               ARGENT_D(6), ARGENT_D(7), ARGENT_D(8), ARGENT_D(9));
  ARGENT_WGMMA(176,
               ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3 "," ARGENT_P4 "," ARGENT_P5 "," ARGENT_P6
                         "," ARGENT_P7 "," ARGENT_P8 "," ARGENT_P9 "," ARGENT_P10,
               88, 89, 90, 91, 92, 93, ARGENT_D(0), ARGENT_D(1), ARGENT_D(2), ARGENT_D(3), ARGENT_D(4), ARGENT_D(5),
               ARGENT_D(6), ARGENT_D(7), ARGENT_D(8), ARGENT_D(9), ARGENT_D(10));
  ARGENT_WGMMA(192,
               ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3 "," ARGENT_P4 "," ARGENT_P5 "," ARGENT_P6
                         "," ARGENT_P7 "," ARGENT_P8 "," ARGENT_P9 "," ARGENT_P10 "," ARGENT_P11,
               96, 97, 98, 99, 100, 101, ARGENT_D(0), ARGENT_D(1), ARGENT_D(2), ARGENT_D(3), ARGENT_D(4), ARGENT_D(5),
               ARGENT_D(6), ARGENT_D(7), ARGENT_D(8), ARGENT_D(9), ARGENT_D(10), ARGENT_D(11));
  ARGENT_WGMMA(208,
               ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3 "," ARGENT_P4 "," ARGENT_P5 "," ARGENT_P6
                         "," ARGENT_P7 "," ARGENT_P8 "," ARGENT_P9 "," ARGENT_P10 "," ARGENT_P11 "," ARGENT_P12,
               104, 105, 106, 107, 108, 109, ARGENT_D(0), ARGENT_D(1), ARGENT_D(2), ARGENT_D(3), ARGENT_D(4),
               ARGENT_D(5), ARGENT_D(6), ARGENT_D(7), ARGENT_D(8), ARGENT_D(9), ARGENT_D(10), ARGENT_D(11),
               ARGENT_D(12));
  ARGENT_WGMMA(
      224,
      ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3 "," ARGENT_P4 "," ARGENT_P5 "," ARGENT_P6 "," ARGENT_P7
                "," ARGENT_P8 "," ARGENT_P9 "," ARGENT_P10 "," ARGENT_P11 "," ARGENT_P12 "," ARGENT_P13,
      112, 113, 114, 115, 116, 117, ARGENT_D(0), ARGENT_D(1), ARGENT_D(2), ARGENT_D(3), ARGENT_D(4), ARGENT_D(5),
      ARGENT_D(6), ARGENT_D(7), ARGENT_D(8), ARGENT_D(9), ARGENT_D(10), ARGENT_D(11), ARGENT_D(12), ARGENT_D(13));
  ARGENT_WGMMA(240,
               ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3 "," ARGENT_P4 "," ARGENT_P5 "," ARGENT_P6
                         "," ARGENT_P7 "," ARGENT_P8 "," ARGENT_P9 "," ARGENT_P10 "," ARGENT_P11 "," ARGENT_P12
                         "," ARGENT_P13 "," ARGENT_P14,
               120, 121, 122, 123, 124, 125, ARGENT_D(0), ARGENT_D(1), ARGENT_D(2), ARGENT_D(3), ARGENT_D(4),
               ARGENT_D(5), ARGENT_D(6), ARGENT_D(7), ARGENT_D(8), ARGENT_D(9), ARGENT_D(10), ARGENT_D(11),
               ARGENT_D(12), ARGENT_D(13), ARGENT_D(14));
  ARGENT_WGMMA(256,
               ARGENT_P0 "," ARGENT_P1 "," ARGENT_P2 "," ARGENT_P3 "," ARGENT_P4 "," ARGENT_P5 "," ARGENT_P6
                         "," ARGENT_P7 "," ARGENT_P8 "," ARGENT_P9 "," ARGENT_P10 "," ARGENT_P11 "," ARGENT_P12
                         "," ARGENT_P13 "," ARGENT_P14 "," ARGENT_P15,
               128, 129, 130, 131, 132, 133, ARGENT_D(0), ARGENT_D(1), ARGENT_D(2), ARGENT_D(3), ARGENT_D(4),
               ARGENT_D(5), ARGENT_D(6), ARGENT_D(7), ARGENT_D(8), ARGENT_D(9), ARGENT_D(10), ARGENT_D(11),
               ARGENT_D(12), ARGENT_D(13), ARGENT_D(14), ARGENT_D(15));
#undef ARGENT_WGMMA
}
#undef ARGENT_D
#undef ARGENT_P0
#undef ARGENT_P1
#undef ARGENT_P2
#undef ARGENT_P3
#undef ARGENT_P4
#undef ARGENT_P5
#undef ARGENT_P6
#undef ARGENT_P7
#undef ARGENT_P8
#undef ARGENT_P9
#undef ARGENT_P10
#undef ARGENT_P11
#undef ARGENT_P12
#undef ARGENT_P13
#undef ARGENT_P14
#undef ARGENT_P15

#endif

}  // namespace argent::cuda
