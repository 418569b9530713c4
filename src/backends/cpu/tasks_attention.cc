// Attention tasks. Many rows: a claim is one tile of rows of one KV head. Few rows over a long context: splits of the
// keys are claims of their own, and a second phase merges their states in order, which gives the same bits.
#include <algorithm>

#include "backends/cpu/attention_policy.h"
#include "backends/cpu/tasks.h"
#include "base/checked.h"
#include "base/cpu_features.h"

namespace argent::cpu {
namespace {

// Rows of the result that belong to one sequence.
struct SequenceRows {
  uint32_t first, count;
};

// The rows of sequence s: token rows are neighbours; logits rows are those whose token row lies among them.
SequenceRows rows_of(const Run& run, const Task& task, const StepSequence& s) {
  if (task.rows == Rows::tokens) return {s.first_row, s.n_rows};
  const auto& rows = run.step.output_rows;
  const auto begin = std::lower_bound(rows.begin(), rows.end(), int32_t(s.first_row));
  const auto end = std::lower_bound(begin, rows.end(), int32_t(s.first_row + s.n_rows));
  return {uint32_t(begin - rows.begin()), uint32_t(end - begin)};
}

uint32_t tiles_of(const SequenceRows& rows, uint32_t tile_rows, const Attrs& a) {
  return (rows.count + tile_rows - 1) / tile_rows * a.n_head_kv;
}

struct Tile {
  AttentionTile tile;
  const float* q[kAttentionRows];
  int32_t position[kAttentionRows];
  uint32_t split_begin, split_end;
};

void fill_tile(const Run& run, const Task& task, const StepSequence& s, uint32_t first, uint32_t count,
               uint32_t head_kv, Tile& t) {
  const Attrs& a = *task.attrs;
  const uint32_t group = a.n_head / a.n_head_kv;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t row = first + i;
    t.q[i] = task.in[0] + (uint64_t(row) * a.n_head + uint64_t(head_kv) * group) * a.d_head;
    t.position[i] = run.step.positions[run.token_row(task.rows, row)];
  }
  t.tile = {task.kv, s.tables[task.group].data(), head_kv, group, a.window, a.scale, a.softcap, count, t.q, t.position};
  t.tile.fetch_into_l1 = fetch_into_l1(l1_data_bytes());
  const uint32_t last = uint32_t(t.position[count - 1]);
  const uint32_t oldest =
      a.window && uint32_t(t.position[0]) + 1 > a.window ? uint32_t(t.position[0]) + 1 - a.window : 0;
  t.split_begin = oldest / kSplitKeys;
  t.split_end = last / kSplitKeys + 1;
}

// Splits that some row of the step sees.
struct SplitRange {
  uint32_t first, end;
};

SplitRange visible_splits(const Run& run, uint32_t window) {
  int32_t first = INT32_MAX, last = 0;
  for (const int32_t p : run.step.positions) first = std::min(first, p), last = std::max(last, p);
  const uint32_t oldest = window && uint32_t(first) + 1 > window ? uint32_t(first) + 1 - window : 0;
  return {window ? oldest / kSplitKeys : 0, uint32_t(last) / kSplitKeys + 1};
}

// The workspace: scratch and one tile's states for each thread, then the states of kSplitWave splits of kSplitRows rows
// and one running state for each of these rows.
struct Workspace {
  Workspace(const Attrs& a, uint32_t n_threads)
      : group(a.n_head / a.n_head_kv),
        state(attention_state_floats(a.d_value)),
        scratch_bytes(align_up(attention_scratch(group, a.d_head, a.d_value), 64)),
        tile_bytes(align_up(uint64_t(kAttentionRows) * group * state * 4, 64)),
        split_bytes(uint64_t(kSplitRows) * a.n_head * state * 4),
        threads(n_threads) {}
  uint64_t bytes() const { return threads * (scratch_bytes + tile_bytes) + (kSplitWave + 1) * split_bytes; }
  uint8_t* scratch(uint8_t* base, uint32_t thread) const { return base + thread * scratch_bytes; }
  float* tile(uint8_t* base, uint32_t thread) const {
    return reinterpret_cast<float*>(base + threads * scratch_bytes + thread * tile_bytes);
  }
  // States of one split of the wave, or of the running result (split kSplitWave), of a KV head from a row on.
  float* split(uint8_t* base, uint32_t split, uint32_t row, uint32_t head_kv) const {
    return reinterpret_cast<float*>(base + threads * (scratch_bytes + tile_bytes) + split * split_bytes) +
           (uint64_t(head_kv) * kSplitRows + row) * group * state;
  }

  uint64_t group, state, scratch_bytes, tile_bytes, split_bytes, threads;
};

void attend_tiles(const Run& run, const Task& task, uint32_t thread) {
  const Attrs& a = *task.attrs;
  const Workspace w(a, run.pool.n_threads());
  float* states = w.tile(task.workspace, thread);
  Tile t;
  const uint32_t tile_rows = rows_a_tile(run.count(task.rows), a.n_head_kv, uint32_t(w.group), run.pool.n_threads());
  uint32_t total = 0;
  for (const StepSequence& s : run.step.sequences) total += tiles_of(rows_of(run, task, s), tile_rows, a);
  for (uint32_t c = run.pool.claim(); c < total; c = run.pool.claim()) {
    uint32_t index = total - 1 - c;  // a tile's cost grows with its position: the dear ones first
    size_t s = 0;
    SequenceRows rows = rows_of(run, task, run.step.sequences[s]);
    while (index >= tiles_of(rows, tile_rows, a)) {
      index -= tiles_of(rows, tile_rows, a);
      rows = rows_of(run, task, run.step.sequences[++s]);
    }
    const uint32_t first = index / a.n_head_kv * tile_rows, head_kv = index % a.n_head_kv;
    const uint32_t count = std::min(tile_rows, rows.count - first);
    fill_tile(run, task, run.step.sequences[s], rows.first + first, count, head_kv, t);
    run.vector.attention_begin(states, count * w.group, a.d_value);
    run.vector.attention(t.tile, t.split_begin, t.split_end, states, w.scratch(task.workspace, thread));
    for (uint32_t i = 0; i < count * w.group; ++i) {
      const uint64_t row = rows.first + first + i / w.group, head = head_kv * w.group + i % w.group;
      run.vector.attention_end(states + i * w.state, task.out[0] + (row * a.n_head + head) * a.d_value, a.d_value);
    }
  }
}

// The rows of one sequence with one KV head.
struct Item {
  const StepSequence* sequence;
  SequenceRows rows;
  uint32_t head_kv;
};

Item item_at(const Run& run, const Task& task, uint32_t index) {
  const uint32_t n_head_kv = task.attrs->n_head_kv;
  for (const StepSequence& s : run.step.sequences) {
    const SequenceRows rows = rows_of(run, task, s);
    if (rows.count == 0) continue;
    if (index < n_head_kv) return {&s, rows, index};
    index -= n_head_kv;
  }
  return {};
}

// The keys of a split of an item are the next that the tile's caller reads.
void set_next(AttentionTile& tile, const Item& item, uint32_t group, uint32_t split) {
  const std::span<const int32_t> table = item.sequence->tables[group];
  const size_t first = std::min<size_t>(table.size(), uint64_t(split) * (kSplitKeys / kKvBlockTokens));
  tile.next = table.data() + first;
  tile.n_next = uint32_t(std::min<size_t>(table.size() - first, kSplitKeys / kKvBlockTokens));
  tile.next_head = item.head_kv;
}

uint32_t count_items(const Run& run, const Task& task) {
  uint32_t n = 0;
  for (const StepSequence& s : run.step.sequences) n += rows_of(run, task, s).count ? task.attrs->n_head_kv : 0;
  return n;
}

void attend_splits(const Run& run, const Task& task, uint32_t thread, uint32_t n_items, const SplitRange& splits,
                   uint32_t a_claim) {
  const Attrs& a = *task.attrs;
  const Workspace w(a, run.pool.n_threads());
  Tile t;
  for (uint32_t wave = splits.first; wave < splits.end; wave += kSplitWave) {
    // Units are the KV heads of a split, which lie side by side, then those of the next split.
    const uint32_t in_wave = std::min(kSplitWave, splits.end - wave), n_units = n_items * in_wave;
    const auto split_of = [&](uint32_t unit) { return unit / a.n_head_kv % in_wave; };
    const auto item_of = [&](uint32_t unit) {
      return item_at(run, task, unit / a.n_head_kv / in_wave * a.n_head_kv + unit % a.n_head_kv);
    };
    const bool ahead = claims_ahead(n_units / a_claim, run.pool.n_threads());
    uint32_t begin = run.pool.claim() * a_claim, then = n_units;
    for (; begin < n_units; begin = ahead ? then : run.pool.claim() * a_claim) {
      if (ahead) then = run.pool.claim() * a_claim;
      const uint32_t end = std::min(begin + a_claim, n_units);
      for (uint32_t unit = begin; unit < end; ++unit) {
        const Item item = item_of(unit);
        const uint32_t k = split_of(unit), next = unit + 1 < end ? unit + 1 : then;
        fill_tile(run, task, *item.sequence, item.rows.first, item.rows.count, item.head_kv, t);
        float* mine = w.split(task.workspace, k, item.rows.first, item.head_kv);
        run.vector.attention_begin(mine, uint32_t(item.rows.count * w.group), a.d_value);
        if (wave + k < t.split_begin || wave + k >= t.split_end) continue;
        if (next < n_units) set_next(t.tile, item_of(next), task.group, wave + split_of(next));
        run.vector.attention(t.tile, wave + k, wave + k + 1, mine, w.scratch(task.workspace, thread));
      }
    }
    run.pool.barrier();
    for (uint32_t i = run.pool.claim(); i < n_items; i = run.pool.claim()) {
      const Item item = item_at(run, task, i);
      const uint32_t n_states = uint32_t(item.rows.count * w.group);
      float* sum = w.split(task.workspace, kSplitWave, item.rows.first, item.head_kv);
      if (wave == splits.first) run.vector.attention_begin(sum, n_states, a.d_value);
      for (uint32_t k = 0; k < in_wave; ++k)
        run.vector.attention_merge(sum, w.split(task.workspace, k, item.rows.first, item.head_kv), n_states, a.d_value);
      if (wave + in_wave < splits.end) continue;
      for (uint32_t n = 0; n < n_states; ++n) {
        const uint64_t row = item.rows.first + n / w.group, head = item.head_kv * w.group + n % w.group;
        run.vector.attention_end(sum + n * w.state, task.out[0] + (row * a.n_head + head) * a.d_value, a.d_value);
      }
    }
    if (wave + in_wave < splits.end) run.pool.barrier();
  }
}

}  // namespace

uint64_t attention_workspace(const Node& node, uint32_t n_threads) { return Workspace(node.attrs, n_threads).bytes(); }

void run_attention(const Run& run, const Task& task, uint32_t thread) {
  const uint32_t n_items = count_items(run, task);
  const SplitRange splits = visible_splits(run, task.attrs->window);
  const uint32_t a_claim =
      units_a_claim(run.count(task.rows), n_items, splits.end - splits.first, run.pool.n_threads());
  if (a_claim)
    attend_splits(run, task, thread, n_items, splits, a_claim);
  else
    attend_tiles(run, task, thread);
}

}  // namespace argent::cpu
