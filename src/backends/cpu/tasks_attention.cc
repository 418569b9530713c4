// Attention tasks. Many rows: a claim is one tile of rows of one KV head. Few rows over a long context: splits of the
// keys are claims of their own, and a second phase merges their states in order, which gives the same bits.
#include <algorithm>

#include "backends/cpu/tasks.h"
#include "base/checked.h"

namespace argent::cpu {
namespace {

constexpr uint32_t kSplitWave = 64;  // splits that are reduced before they are merged: 16,384 keys
constexpr uint32_t kSplitRows = 8;   // most rows that are divided by splits

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

uint32_t tiles_of(const SequenceRows& rows, const Attrs& a) {
  return (rows.count + kAttentionRows - 1) / kAttentionRows * a.n_head_kv;
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
  const uint32_t last = uint32_t(t.position[count - 1]);
  const uint32_t oldest =
      a.window && uint32_t(t.position[0]) + 1 > a.window ? uint32_t(t.position[0]) + 1 - a.window : 0;
  t.split_begin = oldest / kSplitKeys;
  t.split_end = last / kSplitKeys + 1;
}

uint32_t most_splits(const Run& run) {
  int32_t last = 0;
  for (int32_t p : run.step.positions) last = std::max(last, p);
  return uint32_t(last) / kSplitKeys + 1;
}

// Few rows over many keys would leave threads idle: then each split of the keys is a claim of its own.
bool by_splits(const Run& run, const Task& task) {
  const uint32_t n = run.count(task.rows);
  return n <= kSplitRows && run.pool.n_threads() > 1 && n * task.attrs->n_head_kv < 4 * run.pool.n_threads() &&
         most_splits(run) > 1;
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
  // States of one split of the wave, or of the running result (split kSplitWave), of a row's KV head.
  float* split(uint8_t* base, uint32_t split, uint32_t row, uint32_t head_kv, uint32_t n_head) const {
    return reinterpret_cast<float*>(base + threads * (scratch_bytes + tile_bytes) + split * split_bytes) +
           (uint64_t(row) * n_head + uint64_t(head_kv) * group) * state;
  }

  uint64_t group, state, scratch_bytes, tile_bytes, split_bytes, threads;
};

void attend_tiles(const Run& run, const Task& task, uint32_t thread) {
  const Attrs& a = *task.attrs;
  const Workspace w(a, run.pool.n_threads());
  float* states = w.tile(task.workspace, thread);
  Tile t;
  uint32_t total = 0;
  for (const StepSequence& s : run.step.sequences) total += tiles_of(rows_of(run, task, s), a);
  for (uint32_t c = run.pool.claim(); c < total; c = run.pool.claim()) {
    uint32_t index = total - 1 - c;  // a tile's cost grows with its position: the dear ones first
    size_t s = 0;
    SequenceRows rows = rows_of(run, task, run.step.sequences[s]);
    while (index >= tiles_of(rows, a)) {
      index -= tiles_of(rows, a);
      rows = rows_of(run, task, run.step.sequences[++s]);
    }
    const uint32_t first = index / a.n_head_kv * kAttentionRows, head_kv = index % a.n_head_kv;
    const uint32_t count = std::min(kAttentionRows, rows.count - first);
    fill_tile(run, task, run.step.sequences[s], rows.first + first, count, head_kv, t);
    run.vector.attention_begin(states, count * w.group, a.d_value);
    run.vector.attention(t.tile, t.split_begin, t.split_end, states, w.scratch(task.workspace, thread));
    for (uint32_t i = 0; i < count * w.group; ++i) {
      const uint64_t row = rows.first + first + i / w.group, head = head_kv * w.group + i % w.group;
      run.vector.attention_end(states + i * w.state, task.out[0] + (row * a.n_head + head) * a.d_value, a.d_value);
    }
  }
}

void attend_splits(const Run& run, const Task& task, uint32_t thread) {
  const Attrs& a = *task.attrs;
  const Workspace w(a, run.pool.n_threads());
  const uint32_t items = run.count(task.rows) * a.n_head_kv, n_splits = most_splits(run);
  Tile t;
  for (uint32_t wave = 0; wave < n_splits; wave += kSplitWave) {
    const uint32_t in_wave = std::min(kSplitWave, n_splits - wave);
    for (uint32_t c = run.pool.claim(); c < items * in_wave; c = run.pool.claim()) {
      const uint32_t row = c / in_wave / a.n_head_kv, head_kv = c / in_wave % a.n_head_kv, k = c % in_wave;
      fill_tile(run, task, run.step.sequences[run.step.row_sequence[run.token_row(task.rows, row)]], row, 1, head_kv,
                t);
      float* mine = w.split(task.workspace, k, row, head_kv, a.n_head);
      run.vector.attention_begin(mine, uint32_t(w.group), a.d_value);
      if (wave + k >= t.split_begin && wave + k < t.split_end)
        run.vector.attention(t.tile, wave + k, wave + k + 1, mine, w.scratch(task.workspace, thread));
    }
    run.pool.barrier();
    for (uint32_t item = run.pool.claim(); item < items; item = run.pool.claim()) {
      const uint32_t row = item / a.n_head_kv, head_kv = item % a.n_head_kv;
      float* sum = w.split(task.workspace, kSplitWave, row, head_kv, a.n_head);
      if (wave == 0) run.vector.attention_begin(sum, uint32_t(w.group), a.d_value);
      for (uint32_t k = 0; k < in_wave; ++k)
        run.vector.attention_merge(sum, w.split(task.workspace, k, row, head_kv, a.n_head), uint32_t(w.group),
                                   a.d_value);
      if (wave + in_wave < n_splits) continue;
      for (uint64_t g = 0; g < w.group; ++g)
        run.vector.attention_end(
            sum + g * w.state, task.out[0] + (uint64_t(row) * a.n_head + head_kv * w.group + g) * a.d_value, a.d_value);
    }
    if (wave + in_wave < n_splits) run.pool.barrier();
  }
}

}  // namespace

uint64_t attention_workspace(const Node& node, uint32_t n_threads) { return Workspace(node.attrs, n_threads).bytes(); }

void run_attention(const Run& run, const Task& task, uint32_t thread) {
  if (by_splits(run, task))
    attend_splits(run, task, thread);
  else
    attend_tiles(run, task, thread);
}

}  // namespace argent::cpu
