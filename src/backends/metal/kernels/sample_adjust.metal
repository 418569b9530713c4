// What changes logits before sampling, and what keeps tokens on the device.
//
// adjust (sample/rules.h): biases, penalties, mask. A threadgroup takes kAdjustTile logits of a row: it loads them,
// changes the few that the row's lists name, masks and stores, so that one pass over memory does all and no two
// threadgroups meet. Lists are ascending; each threadgroup finds its tokens by bisection. Tokens of the history that
// are still in slots are few (one a sequence): each is compared with all others, and looked up among the tokens that
// the host knows, so that a token counts once however many entries mean it. Grid: ceil(n_vocab / kAdjustTile) x n_rows;
// threads 32 to 1,024, best 256; threadgroup(0): kAdjustBytes. May be left out when no row has a rule or a penalty, if
// it works in place.
//
// resolve_tokens: the tokens of a step's rows for the embedding, and store_tokens: what was sampled, into the slots,
// after argmax_join or draw. A thread a row, grid and threads as one likes.
#include "backends/metal/kernels/sample.h"

using namespace metal;
using namespace argent;

// The first of n ascending pairs whose token is not below `token`.
inline uint first_from(device const uint2* pairs, uint n, uint token) {
  uint low = 0;
  uint high = n;
  while (low < high) {
    const uint middle = (low + high) / 2;
    if (pairs[middle].x < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

struct Slots {
  device const uint2* pairs;  // of the row
  uint n;
  device const int* tokens;  // of all slots
  uint n_tokens;
};
// Below 0: none.
inline int token_in(const Slots slots, uint i) {
  const uint slot = slots.pairs[i].x;
  return slot < slots.n_tokens ? slots.tokens[slot] : -1;
}
// A token's uses, with those of the slots that hold it.
inline uint uses_with(const Slots slots, uint uses, uint token) {
  for (uint i = 0; i < slots.n; i++) {
    if (uint(token_in(slots, i)) == token) {
      const uint more = slots.pairs[i].y;
      uses = ((uses >> 1) + (more >> 1)) << 1 | ((uses | more) & 1);
    }
  }
  return uses;
}
inline bool is_repeated(const Slots slots, uint i, uint token) {
  bool repeated = false;
  for (uint j = 0; j < i; j++) {
    repeated = repeated || uint(token_in(slots, j)) == token;
  }
  return repeated;
}

// The count as f32 bits. Counts of 2^24 tokens and more are no step's.
inline uint count_bits(uint count) { return as_type<uint>(float(count)); }

inline uint penalised(uint logit, uint uses, device const SampleRow& row) {
  if ((uses & 1) != 0) {
    const bool positive = logit <= 0x7f800000;  // or 0, which stays 0 either way
    logit = positive ? sample::f32_div(logit, row.repeat_penalty) : sample::f32_mul(logit, row.repeat_penalty);
  }
  if (uses >> 1 != 0) {
    const uint counted = sample::f32_mul(count_bits(uses >> 1), row.frequency_penalty);
    logit = sample::f32_sub(logit, sample::f32_add(counted, row.presence_penalty));
  }
  return logit;
}

kernel void adjust(constant SampleArgs& args [[buffer(0)]],       //
                   device const SampleRow* rows [[buffer(1)]],    //
                   device const uint* data [[buffer(2)]],         // masks and pairs of the rows
                   device const int* slot_tokens [[buffer(3)]],   // [n_slots]
                   device const uint* x [[buffer(4)]],            // [row][n_vocab] logits
                   device uint* y [[buffer(5)]],                  // the same; may be x
                   threadgroup uint* tile MTL_TG(0),              //
                   uint3 group [[threadgroup_position_in_grid]],  //
                   uint3 size [[threads_per_threadgroup]],        //
                   uint index [[thread_index_in_threadgroup]]) {
  device const SampleRow& row = rows[group.y];
  const uint begin = group.x * kAdjustTile;
  const uint n = min(args.n_vocab - begin, uint(kAdjustTile));
  const uint end = begin + n;
  const ulong place = ulong(group.y) * args.n_vocab + begin;
  if (x == y && row.mask == kNowhere && row.n_bias + row.n_tokens + row.n_slots == 0) {
    return;
  }
  for (uint i = index; i < n; i += size.x) {
    tile[i] = x[place + i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device const uint2* bias = reinterpret_cast<device const uint2*>(data + row.bias);
  for (uint i = first_from(bias, row.n_bias, begin) + index; i < row.n_bias && bias[i].x < end; i += size.x) {
    const uint token = bias[i].x;
    if (i == 0 || bias[i - 1].x != token) {
      uint logit = tile[token - begin];
      for (uint k = i; k < row.n_bias && bias[k].x == token; k++) {
        logit = sample::f32_add(logit, bias[k].y);
      }
      tile[token - begin] = logit;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device const uint2* tokens = reinterpret_cast<device const uint2*>(data + row.tokens);
  const Slots slots = {reinterpret_cast<device const uint2*>(data + row.slots), row.n_slots, slot_tokens, args.n_slots};
  for (uint i = first_from(tokens, row.n_tokens, begin) + index; i < row.n_tokens && tokens[i].x < end; i += size.x) {
    const uint token = tokens[i].x;
    tile[token - begin] = penalised(tile[token - begin], uses_with(slots, tokens[i].y, token), row);
  }
  for (uint i = index; i < row.n_slots; i += size.x) {
    const uint token = uint(token_in(slots, i));
    if (token >= begin && token < end && !is_repeated(slots, i, token)) {
      const uint known = first_from(tokens, row.n_tokens, token);
      if (known == row.n_tokens || tokens[known].x != token) {
        tile[token - begin] = penalised(tile[token - begin], uses_with(slots, 0, token), row);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = index; i < n; i += size.x) {
    uint logit = tile[i];
    if (row.mask != kNowhere && logit_key(logit) != kUnusable) {
      const uint word = data[row.mask + (begin + i) / 32];
      logit = (word >> (i % 32) & 1) != 0 ? logit : 0xff800000;  // begin is a multiple of 32
    }
    y[place + i] = logit;
  }
}

// A row's token as an id: a slot that failed (-1) gives 0, which nobody will use.
kernel void resolve_tokens(constant TokensArgs& args [[buffer(0)]],  //
                           device const int* tokens [[buffer(1)]],   // [n_rows], or ~slot
                           device const int* slots [[buffer(2)]],    // [n_slots]
                           device int* ids [[buffer(3)]],            // [n_rows]
                           uint r [[thread_position_in_grid]]) {
  if (r < args.n_rows) {
    int token = tokens[r];
    if (token < 0) {  // not mutated: ~0 is no slot, and gives 0
      const uint slot = uint(~token);
      token = slot < args.n_slots ? max(0, slots[slot]) : 0;
    }
    ids[r] = token;
  }
}

kernel void store_tokens(constant TokensArgs& args [[buffer(0)]],     //
                         device const SampleRow* rows [[buffer(1)]],  // [n_rows]
                         device const int* tokens [[buffer(2)]],      // [n_rows] as sampled
                         device int* slots [[buffer(3)]],             // [n_slots]
                         uint r [[thread_position_in_grid]]) {
  if (r < args.n_rows && rows[r].slot < args.n_slots) {
    slots[rows[r].slot] = tokens[r];
  }
}
