// Sampling (sample/rules.h): the tokens are the reference's to the bit.
//
// argmax, top_k and adjust read whole rows of logits, so a row is shared out among CTAs: argmax and top_k find the best
// of each part, and a second, small kernel joins them, which costs 0.7 us and needs no counters that somebody has to
// clear. After top_k lists are short, 40 candidates unless k is 0; the filters and draw have a CTA a row.
//
//   kernel         grid               threads  shared
//   adjust         tiles x n_rows     512      16 KB
//   argmax_parts   parts x n_rows     1,024    256 B
//   argmax_join    n_rows             32
//   top_k_parts    parts x n_rows     1,024    46 KB
//   top_k_join, filter, draw   n_rows 1,024    14 KB
#include "backends/cuda/part/kernels/kernels.h"
#include "backends/cuda/part/kernels/launch.cuh"
#include "backends/cuda/part/kernels/sample_select.cuh"
#include "sample/device_row.h"

namespace argent::cuda {
namespace {

constexpr uint32_t kPart = 8192;  // logits of a row that a CTA of argmax_parts and top_k_parts takes
constexpr uint32_t kTile = 4096, kAdjustThreads = 512, kTokenThreads = 256;
constexpr uint32_t kPerThread = kPart / kTeam;

__host__ __device__ constexpr uint32_t parts_of(uint32_t n_vocab) { return (n_vocab + kPart - 1) / kPart; }
__device__ __forceinline__ uint64_t list_places(uint32_t n_vocab) { return uint64_t(n_vocab) + 1; }  // in pairs

// A thread's share of a part: f(i, bits) for kPerThread logits of the n at `row`, i ascending.
template <class F>
__device__ __forceinline__ void each_logit(const uint32_t* row, uint32_t n, bool aligned, const F& f) {
  if (aligned && n == kPart) {
    uint4 four[kPerThread / 4];
#pragma unroll
    for (uint32_t k = 0; k < kPerThread / 4; ++k)
      four[k] = reinterpret_cast<const uint4*>(row)[k * kTeam + threadIdx.x];
#pragma unroll
    for (uint32_t k = 0; k < kPerThread / 4; ++k) {
      const uint32_t i = 4 * (k * kTeam + threadIdx.x);
      f(i, four[k].x), f(i + 1, four[k].y), f(i + 2, four[k].z), f(i + 3, four[k].w);
    }
    return;
  }
  uint32_t bits[kPerThread];
#pragma unroll
  for (uint32_t k = 0; k < kPerThread; ++k) bits[k] = row[min(k * kTeam + threadIdx.x, n - 1)];
#pragma unroll
  for (uint32_t k = 0; k < kPerThread; ++k)
    if (k * kTeam + threadIdx.x < n) f(k * kTeam + threadIdx.x, bits[k]);
}

// The best of a warp's (key, id), in all lanes.
__device__ __forceinline__ uint2 best_of_warp(uint32_t key, uint32_t id) {
  const uint32_t best = __reduce_max_sync(kAllLanes, key);
  return make_uint2(best, __reduce_min_sync(kAllLanes, key == best ? id : 0xffffffff));
}

__global__ void __launch_bounds__(kTeam)
    argmax_parts(const uint32_t* logits, uint2* parts, uint32_t n_vocab, bool aligned) {
  __shared__ uint2 of_warps[kLanes];
  let_next_start();
  wait_for_previous();
  const uint32_t begin = blockIdx.x * kPart;
  uint32_t best = 0, id = 0;
  each_logit(logits + uint64_t(blockIdx.y) * n_vocab + begin, min(n_vocab - begin, kPart), aligned,
             [&](uint32_t i, uint32_t bits) {
               const uint32_t key = logit_key(bits);
               if (key > best) best = key, id = begin + i;  // ids ascend: an equal logit is no better
             });
  const uint2 of_warp = best_of_warp(best, id);
  if (lane_of_thread() == 0) of_warps[warp_of_thread()] = of_warp;
  __syncthreads();
  if (warp_of_thread() != 0) return;
  const uint2 own = of_warps[lane_of_thread()], all = best_of_warp(own.x, own.y);
  if (threadIdx.x == 0) parts[uint64_t(blockIdx.y) * gridDim.x + blockIdx.x] = all;
}

__global__ void __launch_bounds__(kLanes) argmax_join(const uint2* parts, int32_t* token, uint32_t n_parts) {
  let_next_start();
  wait_for_previous();
  uint32_t best = 0, id = 0;
  for (uint32_t i = threadIdx.x; i < n_parts; i += kLanes) {
    const uint2 part = parts[uint64_t(blockIdx.x) * n_parts + i];
    if (part.x > best) best = part.x, id = part.y;
  }
  const uint2 all = best_of_warp(best, id);
  if (threadIdx.x == 0) token[blockIdx.x] = all.x == 0 || all.x == kUnusable ? -1 : int32_t(all.y);
}

// The k best of n candidates to `to`: their number, or kUnusable.
template <class Reader>
__device__ uint32_t keep_best(const Reader& reader, uint32_t n, uint32_t k, uint2* to, TeamMemory& memory) {
  const uint2 found = best_and_count(reader, n, memory);
  if (found.x == kUnusable) return kUnusable;
  Bound bound = {found.x, 0, 0};
  if (k != 0 && k < found.y) bound.worst = worst_reached(reader, n, found.x, {Goal::fixed, k}, memory);
  return keep(reader, n, bound, to, memory);
}

// How far apart the parts of a list lie that top_k_parts makes.
__device__ __forceinline__ uint32_t part_places(uint32_t k) { return k == 0 ? kPart : min(k, kPart); }

// lists: [row][1 + n_vocab], parts at their own places. counts: [row][part].
__global__ void __launch_bounds__(kTeam) top_k_parts(const uint32_t* logits, uint2* lists, uint32_t* counts,
                                                     const SampleRow* rows, uint32_t n_vocab, bool aligned) {
  __shared__ TeamMemory memory;
  __shared__ __align__(16) uint32_t part[kPart];
  let_next_start();
  const uint32_t k = rows[blockIdx.y].top_k;
  wait_for_previous();
  const uint32_t begin = blockIdx.x * kPart, n = min(n_vocab - begin, kPart);
  each_logit(logits + uint64_t(blockIdx.y) * n_vocab + begin, n, aligned,
             [&](uint32_t i, uint32_t bits) { part[i] = bits; });
  __syncthreads();
  uint2* to = lists + blockIdx.y * list_places(n_vocab) + uint64_t(blockIdx.x) * part_places(k);
  const uint32_t count = keep_best(RowReader{part, begin}, n, k, to, memory);
  if (threadIdx.x == 0) counts[uint64_t(blockIdx.y) * gridDim.x + blockIdx.x] = count;
}

__global__ void __launch_bounds__(kTeam)
    top_k_join(uint2* lists, const uint32_t* counts, const SampleRow* rows, uint32_t n_vocab) {
  __shared__ TeamMemory memory;
  let_next_start();
  const uint32_t k = rows[blockIdx.x].top_k, n_parts = parts_of(n_vocab), places = part_places(k);
  wait_for_previous();
  uint2* list = lists + blockIdx.x * list_places(n_vocab);
  const PartsReader reader = {list, counts + uint64_t(blockIdx.x) * n_parts, places};
  const uint32_t count = keep_best(reader, n_parts * places, k, list, memory);
  if (threadIdx.x == 0) list[0].x = count == kUnusable ? 0 : count;
}

// A list as it is.
__device__ void copy_list(const uint2* from, uint32_t n, uint2* to) {
  if (from == to) return;
  for (uint32_t i = threadIdx.x; i < n; i += kTeam) to[1 + i] = from[1 + i];
  if (threadIdx.x == 0) to[0].x = n;
}

// from and to may be the same.
__global__ void __launch_bounds__(kTeam)
    filter_kernel(Filter f, const uint2* from, uint2* to, const SampleRow* rows, uint32_t n_vocab) {
  __shared__ TeamMemory memory;
  let_next_start();
  const SampleRow& row = rows[blockIdx.x];
  const u64 least = u64(row.min_p_high) << 32 | row.min_p_low;
  const float temperature = __uint_as_float(row.temperature);
  const Wanted share = {Goal::share, row.top_p};
  const bool does = f == Filter::top_p ? row.top_p_on != 0 : f == Filter::min_p ? least != 0 : row.temperature != 0;
  wait_for_previous();
  from += blockIdx.x * list_places(n_vocab), to += blockIdx.x * list_places(n_vocab);
  const ListReader reader = {from};
  const uint32_t n = from[0].x;
  if (!does || n == 0) return copy_list(from, n, to);
  Bound bound = {best_and_count(reader, n, memory).x, 0, 0};
  if (f == Filter::temperature) {
    const float best = key_float(bound.best);
    for (uint32_t i = threadIdx.x; i < n; i += kTeam) {  // each thread reads its own again, and writes them
      const uint2 pair = from[1 + i];
      const float below = __fsub_rn(__uint_as_float(pair.y), best);
      to[1 + i] = make_uint2(pair.x, __float_as_uint(__fdiv_rn(below, temperature)));
    }
    if (from != to && threadIdx.x == 0) to[0].x = n;
    return;
  }
  if (f == Filter::top_p)
    bound.worst = worst_reached(reader, n, bound.best, share, memory);
  else
    bound.least = least;
  const uint32_t count = keep(reader, n, bound, to, memory);
  if (threadIdx.x == 0) to[0].x = count;
}

__global__ void __launch_bounds__(kTeam)
    draw_kernel(const uint2* lists, int32_t* token, const SampleRow* rows, uint32_t n_vocab) {
  __shared__ TeamMemory memory;
  let_next_start();
  const SampleRow& row = rows[blockIdx.x];
  const u64 seed = u64(row.seed_high) << 32 | row.seed_low;
  const Wanted drawn = {Goal::draw, sample::draw_bits(seed, row.position, row.sample_index)};
  wait_for_previous();
  const ListReader reader = {lists + blockIdx.x * list_places(n_vocab)};
  const uint32_t n = reader.list[0].x;
  int32_t id = -1;
  if (n != 0) {
    const uint32_t best = best_and_count(reader, n, memory).x;
    id = int32_t(~uint32_t(worst_reached(reader, n, best, drawn, memory)));
  }
  if (threadIdx.x == 0) token[blockIdx.x] = id;
}

// ---- adjust: a CTA loads kTile logits of a row, changes the few that the row's lists name, masks and stores, so that
// one pass over memory does all and no two CTAs meet. Lists ascend: each CTA finds its tokens by bisection. Tokens of
// the history that are still in slots are few (one a sequence): each is compared with all others, and looked up among
// the tokens that the host knows, so that a token counts once however many entries mean it.

// The first of n ascending pairs whose token is not below `token`.
__device__ uint32_t first_from(const uint2* pairs, uint32_t n, uint32_t token) {
  uint32_t low = 0, high = n;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (pairs[middle].x < token)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

struct SlotTokens {
  const uint2* pairs;  // (slot, uses) of the row
  uint32_t n;
  const int32_t* tokens;  // of all slots
  uint32_t n_tokens;
  __device__ uint32_t operator()(uint32_t i) const {  // an id of no token: none
    const uint32_t slot = pairs[i].x;
    return uint32_t(slot < n_tokens ? tokens[slot] : -1);
  }
  // A token's uses, with those of the slots that hold it.
  __device__ uint32_t uses_with(uint32_t uses, uint32_t token) const {
    for (uint32_t i = 0; i < n; ++i)
      if ((*this)(i) == token) uses = ((uses >> 1) + (pairs[i].y >> 1)) << 1 | ((uses | pairs[i].y) & 1);
    return uses;
  }
  __device__ bool is_repeated(uint32_t i, uint32_t token) const {
    for (uint32_t j = 0; j < i; ++j)
      if ((*this)(j) == token) return true;
    return false;
  }
};

__device__ float penalised(float logit, uint32_t uses, const SampleRow& row) {
  const float repeat = __uint_as_float(row.repeat_penalty);
  if (uses & 1) logit = logit <= 0 ? __fmul_rn(logit, repeat) : __fdiv_rn(logit, repeat);
  if (uses >> 1) {
    const float counted = __fmul_rn(float(uses >> 1), __uint_as_float(row.frequency_penalty));
    logit = __fsub_rn(logit, __fadd_rn(counted, __uint_as_float(row.presence_penalty)));
  }
  return logit;
}

__global__ void __launch_bounds__(kAdjustThreads)
    adjust_kernel(const float* x, float* y, const SampleRow* rows, const uint32_t* data, const int32_t* slot_tokens,
                  uint32_t n_slot_tokens, uint32_t n_vocab) {
  __shared__ float tile[kTile];
  let_next_start();
  const SampleRow& row = rows[blockIdx.y];
  const bool changes = row.mask != kNowhere || row.n_bias + row.n_tokens + row.n_slots != 0;
  wait_for_previous();
  if (x == y && !changes) return;
  const uint32_t begin = blockIdx.x * kTile, n = min(n_vocab - begin, kTile), end = begin + n;
  const uint64_t place = uint64_t(blockIdx.y) * n_vocab + begin;
  for (uint32_t i = threadIdx.x; i < n; i += kAdjustThreads) tile[i] = x[place + i];
  __syncthreads();
  const uint2* bias = reinterpret_cast<const uint2*>(data + row.bias);
  for (uint32_t i = first_from(bias, row.n_bias, begin) + threadIdx.x; i < row.n_bias && bias[i].x < end;
       i += kAdjustThreads) {
    const uint32_t token = bias[i].x;
    if (i != 0 && bias[i - 1].x == token) continue;  // the first of a token adds them all, in their order
    float logit = tile[token - begin];
    for (uint32_t k = i; k < row.n_bias && bias[k].x == token; ++k)
      logit = __fadd_rn(logit, __uint_as_float(bias[k].y));
    tile[token - begin] = logit;
  }
  __syncthreads();
  const uint2* tokens = reinterpret_cast<const uint2*>(data + row.tokens);
  const SlotTokens slots = {reinterpret_cast<const uint2*>(data + row.slots), row.n_slots, slot_tokens, n_slot_tokens};
  for (uint32_t i = first_from(tokens, row.n_tokens, begin) + threadIdx.x; i < row.n_tokens && tokens[i].x < end;
       i += kAdjustThreads) {
    const uint32_t token = tokens[i].x;
    tile[token - begin] = penalised(tile[token - begin], slots.uses_with(tokens[i].y, token), row);
  }
  for (uint32_t i = threadIdx.x; i < row.n_slots; i += kAdjustThreads) {
    const uint32_t token = slots(i);
    if (token < begin || token >= end || slots.is_repeated(i, token)) continue;
    const uint32_t known = first_from(tokens, row.n_tokens, token);
    if (known == row.n_tokens || tokens[known].x != token)
      tile[token - begin] = penalised(tile[token - begin], slots.uses_with(0, token), row);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < n; i += kAdjustThreads) {
    float logit = tile[i];
    if (row.mask != kNowhere && logit < INFINITY)  // begin is a multiple of 32
      logit = data[row.mask + (begin + i) / 32] >> (i % 32) & 1 ? logit : -INFINITY;
    y[place + i] = logit;
  }
}

// A slot that failed (-1) gives 0, which nobody will use; so does what is no slot.
__global__ void __launch_bounds__(kTokenThreads)
    resolve_kernel(const int32_t* tokens, int32_t* ids, uint32_t n_rows, const int32_t* slots, uint32_t n_slots) {
  let_next_start();
  wait_for_previous();
  const uint32_t r = blockIdx.x * kTokenThreads + threadIdx.x;
  if (r >= n_rows) return;
  int32_t token = tokens[r];
  if (token < 0) token = uint32_t(~token) < n_slots ? max(0, slots[~token]) : 0;
  ids[r] = token;
}

__global__ void __launch_bounds__(kTokenThreads)
    store_kernel(const int32_t* sampled, uint32_t n_rows, const SampleRow* rows, int32_t* slots, uint32_t n_slots) {
  let_next_start();
  wait_for_previous();
  const uint32_t r = blockIdx.x * kTokenThreads + threadIdx.x;
  if (r < n_rows && rows[r].slot < n_slots) slots[rows[r].slot] = sampled[r];
}

const SampleRow* rows_of(const SampleStep& step) { return static_cast<const SampleRow*>(step.rows); }

// Whether all rows of logits can be read 16 bytes at a time.
bool is_aligned(const float* logits, uint32_t n_vocab) {
  return n_vocab % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % 16 == 0;
}

}  // namespace

uint64_t sample_workspace(uint32_t n_rows, uint32_t n_vocab) {
  return uint64_t(n_rows) * parts_of(n_vocab) * sizeof(uint2);
}

void adjust(Launch& launch, const float* logits, float* y, uint32_t n_rows, uint32_t n_vocab, const SampleStep& step) {
  start(launch, "adjust", adjust_kernel, dim3((n_vocab + kTile - 1) / kTile, n_rows), kAdjustThreads, 0, logits, y,
        rows_of(step), step.data, step.slots, step.n_slots, n_vocab);
}

void argmax(Launch& launch, const float* logits, int32_t* token, uint32_t n_rows, uint32_t n_vocab, void* scratch) {
  uint2* parts = static_cast<uint2*>(scratch);
  start(launch, "argmax", argmax_parts, dim3(parts_of(n_vocab), n_rows), kTeam, 0,
        reinterpret_cast<const uint32_t*>(logits), parts, n_vocab, is_aligned(logits, n_vocab));
  start(launch, "argmax", argmax_join, n_rows, kLanes, 0, parts, token, parts_of(n_vocab));
}

void top_k(Launch& launch, const float* logits, uint8_t* list, uint32_t n_rows, uint32_t n_vocab,
           const SampleStep& step, void* scratch) {
  uint2* lists = reinterpret_cast<uint2*>(list);
  uint32_t* counts = static_cast<uint32_t*>(scratch);
  start(launch, "top_k", top_k_parts, dim3(parts_of(n_vocab), n_rows), kTeam, 0,
        reinterpret_cast<const uint32_t*>(logits), lists, counts, rows_of(step), n_vocab, is_aligned(logits, n_vocab));
  start(launch, "top_k", top_k_join, n_rows, kTeam, 0, lists, counts, rows_of(step), n_vocab);
}

void filter(Launch& launch, Filter f, const uint8_t* from, uint8_t* to, uint32_t n_rows, uint32_t n_vocab,
            const SampleStep& step) {
  start(launch, "filter", filter_kernel, n_rows, kTeam, 0, f, reinterpret_cast<const uint2*>(from),
        reinterpret_cast<uint2*>(to), rows_of(step), n_vocab);
}

void draw(Launch& launch, const uint8_t* list, int32_t* token, uint32_t n_rows, uint32_t n_vocab,
          const SampleStep& step) {
  start(launch, "draw", draw_kernel, n_rows, kTeam, 0, reinterpret_cast<const uint2*>(list), token, rows_of(step),
        n_vocab);
}

void resolve_tokens(Launch& launch, const int32_t* tokens, int32_t* ids, uint32_t n_rows, const SampleStep& step) {
  start(launch, "resolve_tokens", resolve_kernel, (n_rows + kTokenThreads - 1) / kTokenThreads, kTokenThreads, 0,
        tokens, ids, n_rows, step.slots, step.n_slots);
}

void store_tokens(Launch& launch, const int32_t* sampled, uint32_t n_rows, const SampleStep& step) {
  start(launch, "store_tokens", store_kernel, (n_rows + kTokenThreads - 1) / kTokenThreads, kTokenThreads, 0, sampled,
        n_rows, rows_of(step), step.slots, step.n_slots);
}

}  // namespace argent::cuda
