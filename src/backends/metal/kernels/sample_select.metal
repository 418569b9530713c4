// The sampling ops that choose: argmax, top_k, top_p, min_p, temperature, draw (sample/rules.h). The tokens are the
// reference's to the bit: sums are integers, so no order of threads shows in them.
//
// argmax and top_k read whole rows of logits. One threadgroup alone would wait for memory (a row of 262,144 is 1 MB, a
// core takes some ten GB/s), so a row is shared out in parts of kSamplePart: each part's threadgroup finds its own
// best, or the k best of its own, and a second, small kernel joins them. After top_k lists are short: 40 candidates
// unless k is 0; so the filters and draw have one threadgroup a row, and their time is that of a dispatch.
//
//   kernel        grid             threads                threadgroup(0)
//   argmax_parts  n_parts x n_rows 32 to 1,024, best 256  kArgmaxBytes
//   argmax_join   n_rows           32                     none
//   top_k_parts   n_parts x n_rows 32 to 1,024, best 512  kSelectBytes
//   others        n_rows           32 to 1,024, best the pipeline's most; kSelectBytes
//
// n_parts = ceil(n_vocab / kSamplePart). Lists lie n_vocab + 1 pairs apart; those of top_p, min_p and temperature may
// be the same for reading and writing. A dispatch reads what the one before wrote: a barrier before each but the first.
#include "backends/metal/kernels/sample.h"

using namespace metal;
using namespace argent;

inline uint parts_of(uint n_vocab) { return (n_vocab + kSamplePart - 1) / kSamplePart; }

kernel void argmax_parts(constant SampleArgs& args [[buffer(0)]],       //
                         device const uint* logits [[buffer(1)]],       // [row][n_vocab]
                         device uint2* parts [[buffer(2)]],             // [row][part] (key, id)
                         threadgroup uint* shared MTL_TG(0),            //
                         uint3 group [[threadgroup_position_in_grid]],  //
                         uint3 size [[threads_per_threadgroup]],        //
                         uint index [[thread_index_in_threadgroup]],    //
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint simdgroups [[simdgroups_per_threadgroup]],  //
                         uint lane [[thread_index_in_simdgroup]]) {
  device const uint* row = logits + ulong(group.y) * args.n_vocab;
  const uint end = min((group.x + 1) * kSamplePart, args.n_vocab);
  uint best = 0;
  uint id = 0;
  for (uint i = group.x * kSamplePart + index; i < end; i += 4 * size.x) {
    uint bits[4];  // four loads under way
    MTL_UNROLL
    for (uint k = 0; k < 4; k++) {
      bits[k] = row[min(i + k * size.x, end - 1)];
    }
    MTL_UNROLL
    for (uint k = 0; k < 4; k++) {
      const uint key = logit_key(bits[k]);
      if (key > best) {  // ids ascend: an equal logit is no better. The last one, seen again, has its own id elsewhere
        best = key;
        id = i + k * size.x;
      }
    }
  }
  const uint greatest = simd_max(best);
  const uint lowest = simd_min(best == greatest ? id : uint(kNowhere));
  if (lane == 0) {
    shared[2 * simdgroup] = greatest;
    shared[2 * simdgroup + 1] = lowest;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    const uint from = 2 * min(lane, simdgroups - 1);
    const uint all = simd_max(shared[from]);
    const uint first = simd_min(shared[from] == all ? shared[from + 1] : uint(kNowhere));
    if (lane == 0) {
      parts[ulong(group.y) * parts_of(args.n_vocab) + group.x] = uint2(all, first);
    }
  }
}

kernel void argmax_join(constant SampleArgs& args [[buffer(0)]],       //
                        device const uint2* parts [[buffer(1)]],       // [row][part] (key, id)
                        device int* tokens [[buffer(2)]],              // [row]
                        uint3 group [[threadgroup_position_in_grid]],  //
                        uint lane [[thread_index_in_simdgroup]]) {
  const uint n_parts = parts_of(args.n_vocab);
  uint best = 0;
  uint id = 0;
  for (uint i = lane; i < n_parts; i += 32) {
    const uint2 part = parts[ulong(group.x) * n_parts + i];
    if (part.x > best) {
      best = part.x;
      id = part.y;
    }
  }
  const uint all = simd_max(best);
  const uint first = simd_min(best == all ? id : uint(kNowhere));
  if (lane == 0) {
    tokens[group.x] = all == 0 || all == kUnusable ? -1 : int(first);
  }
}

kernel void top_k_parts(constant SampleArgs& args [[buffer(0)]],       //
                        device const SampleRow* rows [[buffer(1)]],    //
                        device const uint* logits [[buffer(2)]],       // [row][n_vocab]
                        device uint2* lists [[buffer(3)]],             // [row][1 + n_vocab], parts at their own places
                        device uint* counts [[buffer(4)]],             // [row][part], or kUnusable
                        threadgroup uint* shared MTL_TG(0),            //
                        uint3 group [[threadgroup_position_in_grid]],  //
                        uint3 size [[threads_per_threadgroup]],        //
                        uint index [[thread_index_in_threadgroup]],    //
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]],  //
                        uint lane [[thread_index_in_simdgroup]]) {
  const Team team = {index, size.x, lane, simdgroup, simdgroups};
  const uint k = rows[group.y].top_k;
  const uint begin = group.x * kSamplePart;
  const uint n = min(args.n_vocab - begin, uint(kSamplePart));
  const RowReader reader = {logits + ulong(group.y) * args.n_vocab + begin, begin};
  const uint2 found = best_and_count(reader, n, team, shared);
  uint count = kUnusable;
  if (found.x != kUnusable) {
    Bound bound = {found.x, 0, 0, 0};
    if (k != 0 && k < found.y) {  // not mutated: k of k are all
      const Goal goal = {kFixed, k};
      const Element worst = worst_reached(reader, n, found.x, goal, team, shared);
      bound.worst_key = worst.key;
      bound.worst_id = worst.id;
    }
    const uint stride = k == 0 ? uint(kSamplePart) : min(k, uint(kSamplePart));
    device uint2* to = lists + ulong(group.y) * list_places(args.n_vocab) + ulong(group.x) * stride;
    count = keep(reader, n, bound, to, team, shared);
  }
  if (index == 0) {
    counts[ulong(group.y) * parts_of(args.n_vocab) + group.x] = count;
  }
}

kernel void top_k_join(constant SampleArgs& args [[buffer(0)]],       //
                       device const SampleRow* rows [[buffer(1)]],    //
                       device uint2* lists [[buffer(2)]],             // [row][1 + n_vocab]
                       device const uint* counts [[buffer(3)]],       // [row][part]
                       threadgroup uint* shared MTL_TG(0),            //
                       uint3 group [[threadgroup_position_in_grid]],  //
                       uint3 size [[threads_per_threadgroup]],        //
                       uint index [[thread_index_in_threadgroup]],    //
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint simdgroups [[simdgroups_per_threadgroup]],  //
                       uint lane [[thread_index_in_simdgroup]]) {
  const Team team = {index, size.x, lane, simdgroup, simdgroups};
  const uint k = rows[group.x].top_k;
  const uint n_parts = parts_of(args.n_vocab);
  const uint stride = k == 0 ? uint(kSamplePart) : min(k, uint(kSamplePart));
  device uint2* list = lists + ulong(group.x) * list_places(args.n_vocab);
  const PartsReader reader = {list, counts + ulong(group.x) * n_parts, stride};
  uint worst_count = 0;
  for (uint i = index; i < n_parts; i += size.x) {
    worst_count = max(worst_count, reader.counts[i]);
  }
  const bool usable = greatest_and_sum(worst_count, 0, team, shared + kPartial).x != kUnusable;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint count = 0;
  if (usable) {
    const uint n = n_parts * stride;
    const uint2 found = best_and_count(reader, n, team, shared);
    Bound bound = {found.x, 0, 0, 0};
    if (k != 0 && k < found.y) {  // not mutated: k of k are all
      const Goal goal = {kFixed, k};
      const Element worst = worst_reached(reader, n, found.x, goal, team, shared);
      bound.worst_key = worst.key;
      bound.worst_id = worst.id;
    }
    count = keep(reader, n, bound, list, team, shared);
  }
  if (index == 0) {
    reinterpret_cast<device uint*>(list)[0] = count;
  }
}

// A list as it is.
inline void copy_list(device const uint2* from, device uint2* to, const Team team) {
  const uint n = from[0].x;
  if (from != to) {
    for (uint i = team.index; i < n; i += team.threads) {
      to[1 + i] = from[1 + i];
    }
    if (team.index == 0) {
      reinterpret_cast<device uint*>(to)[0] = n;
    }
  }
}

kernel void top_p(constant SampleArgs& args [[buffer(0)]],       //
                  device const SampleRow* rows [[buffer(1)]],    //
                  device const uint2* from [[buffer(2)]],        // [row][1 + n_vocab]
                  device uint2* to [[buffer(3)]],                // the same; may be `from`
                  threadgroup uint* shared MTL_TG(0),            //
                  uint3 group [[threadgroup_position_in_grid]],  //
                  uint3 size [[threads_per_threadgroup]],        //
                  uint index [[thread_index_in_threadgroup]],    //
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint simdgroups [[simdgroups_per_threadgroup]],  //
                  uint lane [[thread_index_in_simdgroup]]) {
  const Team team = {index, size.x, lane, simdgroup, simdgroups};
  const ulong place = ulong(group.x) * list_places(args.n_vocab);
  const ListReader reader = {from + place};
  const uint n = reader.list[0].x;
  if (rows[group.x].top_p_on == 0 || n == 0) {
    copy_list(from + place, to + place, team);
    return;
  }
  const uint best = best_and_count(reader, n, team, shared).x;
  const Goal goal = {kShare, rows[group.x].top_p};
  const Element worst = worst_reached(reader, n, best, goal, team, shared);
  const Bound bound = {best, worst.key, worst.id, 0};
  const uint count = keep(reader, n, bound, to + place, team, shared);
  if (index == 0) {
    reinterpret_cast<device uint*>(to + place)[0] = count;
  }
}

kernel void min_p(constant SampleArgs& args [[buffer(0)]],       //
                  device const SampleRow* rows [[buffer(1)]],    //
                  device const uint2* from [[buffer(2)]],        // [row][1 + n_vocab]
                  device uint2* to [[buffer(3)]],                // the same; may be `from`
                  threadgroup uint* shared MTL_TG(0),            //
                  uint3 group [[threadgroup_position_in_grid]],  //
                  uint3 size [[threads_per_threadgroup]],        //
                  uint index [[thread_index_in_threadgroup]],    //
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint simdgroups [[simdgroups_per_threadgroup]],  //
                  uint lane [[thread_index_in_simdgroup]]) {
  const Team team = {index, size.x, lane, simdgroup, simdgroups};
  const ulong place = ulong(group.x) * list_places(args.n_vocab);
  const ListReader reader = {from + place};
  const uint n = reader.list[0].x;
  const sample::u64 least = sample::u64(rows[group.x].min_p_high) << 32 | rows[group.x].min_p_low;
  if (least == 0) {
    copy_list(from + place, to + place, team);
    return;
  }
  const Bound bound = {best_and_count(reader, n, team, shared).x, 0, 0, least};
  const uint count = keep(reader, n, bound, to + place, team, shared);
  if (index == 0) {
    reinterpret_cast<device uint*>(to + place)[0] = count;
  }
}

kernel void temperature(constant SampleArgs& args [[buffer(0)]],       //
                        device const SampleRow* rows [[buffer(1)]],    //
                        device const uint2* from [[buffer(2)]],        // [row][1 + n_vocab]
                        device uint2* to [[buffer(3)]],                // the same; may be `from`
                        threadgroup uint* shared MTL_TG(0),            //
                        uint3 group [[threadgroup_position_in_grid]],  //
                        uint3 size [[threads_per_threadgroup]],        //
                        uint index [[thread_index_in_threadgroup]],    //
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]],  //
                        uint lane [[thread_index_in_simdgroup]]) {
  const Team team = {index, size.x, lane, simdgroup, simdgroups};
  const ulong place = ulong(group.x) * list_places(args.n_vocab);
  const ListReader reader = {from + place};
  const uint n = reader.list[0].x;
  const uint divisor = rows[group.x].temperature;
  if (divisor == 0) {
    copy_list(from + place, to + place, team);
    return;
  }
  const uint best = key_bits(best_and_count(reader, n, team, shared).x);
  for (uint i = index; i < n; i += size.x) {  // each thread reads its own again, and writes them
    const uint2 pair = reader.list[1 + i];
    to[place + 1 + i] = uint2(pair.x, sample::f32_div(sample::f32_sub(pair.y, best), divisor));
  }
  if (from != to && index == 0) {
    reinterpret_cast<device uint*>(to + place)[0] = n;
  }
}

kernel void draw(constant SampleArgs& args [[buffer(0)]],       //
                 device const SampleRow* rows [[buffer(1)]],    //
                 device const uint2* lists [[buffer(2)]],       // [row][1 + n_vocab]
                 device int* tokens [[buffer(3)]],              // [row]
                 threadgroup uint* shared MTL_TG(0),            //
                 uint3 group [[threadgroup_position_in_grid]],  //
                 uint3 size [[threads_per_threadgroup]],        //
                 uint index [[thread_index_in_threadgroup]],    //
                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                 uint simdgroups [[simdgroups_per_threadgroup]],  //
                 uint lane [[thread_index_in_simdgroup]]) {
  const Team team = {index, size.x, lane, simdgroup, simdgroups};
  const ListReader reader = {lists + ulong(group.x) * list_places(args.n_vocab)};
  const uint n = reader.list[0].x;
  int token = -1;
  if (n != 0) {
    const uint best = best_and_count(reader, n, team, shared).x;
    device const SampleRow& row = rows[group.x];
    const sample::u64 seed = sample::u64(row.seed_high) << 32 | row.seed_low;
    const Goal goal = {kDraw, sample::draw_bits(seed, row.position, row.sample_index)};
    token = int(worst_reached(reader, n, best, goal, team, shared).id);
  }
  if (index == 0) {
    tokens[group.x] = token;
  }
}
