// What is worked out on the host for a step: where its parts lie, and how its attention and its products are shared
// out.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "backends/cuda/part/attention_work.h"
#include "backends/cuda/part/kernels/product_policy.h"
#include "backends/cuda/part/step_buffers.h"
#include "sample/device_step.h"

namespace argent::cuda {
namespace {

TEST(CudaStep, PartsAreAlignedAndApart) {
  std::mt19937 random(5);
  for (int i = 0; i < 500; ++i) {
    StepShape shape;
    shape.n_tokens = 1 + uint32_t(random() % 300), shape.n_outputs = uint32_t(random() % (shape.n_tokens + 1));
    shape.n_tables = uint32_t(random() % 3) * 1024, shape.n_data = uint32_t(random() % 3) * 1024;
    for (uint32_t n = uint32_t(random() % 4); n; --n)
      shape.lists.push_back({uint32_t(random() % 9), uint32_t(random() % 9), uint32_t(random() % 9)});
    const size_t n_groups = 1 + random() % 3;
    const StepLayout layout = step_layout(shape, n_groups);

    struct Part {
      uint64_t begin, bytes;
    };
    const uint64_t n = shape.n_tokens, n_out = shape.n_outputs;
    std::vector<Part> parts = {{layout.tokens, 4 * n},       {layout.positions, 4 * n},
                               {layout.row_sequence, 4 * n}, {layout.output_rows, 4 * n_out},
                               {layout.ids, 4 * n},          {layout.tables, 4ull * shape.n_tables}};
    if (shape.n_data) {
      parts.push_back({layout.sample_rows, sizeof(SampleRow) * n_out});
      parts.push_back({layout.data, 4ull * shape.n_data});
    }
    ASSERT_EQ(layout.sequences.size(), n_groups);
    for (const uint64_t begin : layout.sequences) parts.push_back({begin, sizeof(KvSequence) * n});
    ASSERT_EQ(layout.lists.size(), shape.lists.size());
    for (size_t l = 0; l < shape.lists.size(); ++l) {
      parts.push_back({layout.lists[l].counts, 12});
      parts.push_back({layout.lists[l].items, sizeof(AttentionItem) * uint64_t(shape.lists[l].items)});
      parts.push_back({layout.lists[l].rows, sizeof(AttentionRow) * uint64_t(shape.lists[l].rows)});
      parts.push_back({layout.lists[l].tiles, sizeof(AttentionTile) * uint64_t(shape.lists[l].tiles)});
    }
    // All of what is copied is in front of the tables' end; nothing but the ids is behind it.
    for (const Part& part : parts) {
      EXPECT_EQ(part.begin % 16, 0u);
      EXPECT_LE(part.begin + part.bytes, layout.end);
      EXPECT_TRUE(part.begin == layout.ids || part.begin <= layout.tables);
    }
    EXPECT_GE(layout.ids, layout.tables + 4ull * shape.n_tables);
    std::erase_if(parts, [](const Part& part) { return part.bytes == 0; });
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
    for (size_t p = 1; p < parts.size(); ++p) ASSERT_LE(parts[p - 1].begin + parts[p - 1].bytes, parts[p].begin);
  }
}

// ---- attention

struct Row {
  uint32_t first, end;  // the positions that it sees
  const KvSequence* sequence;
  uint32_t n_seen = 0;  // how many of them are in items and tiles
};

// The lists of a step beside what its rows see, position by position.
void check(const std::vector<KvSequence>& sequences, const std::optional<std::vector<int32_t>>& q_rows, uint32_t window,
           bool fast, uint32_t ctas) {
  std::vector<Row> rows;
  for (const KvSequence& s : sequences)
    for (uint32_t i = 0; i < s.n_rows; ++i) {
      if (q_rows && !std::binary_search(q_rows->begin(), q_rows->end(), int32_t(s.first_row + i))) continue;
      const uint32_t position = s.length + i;
      rows.push_back({window && position >= window ? position - window + 1 : 0, position + 1, &s});
    }
  std::optional<std::span<const int32_t>> wanted;
  if (q_rows) wanted = *q_rows;
  const AttentionLists lists = attention_lists(sequences, wanted, window, fast, ctas);

  std::vector<const AttentionItem*> slots(lists.n_slots);
  for (const AttentionItem& item : lists.items) {
    ASSERT_LT(item.q_row, rows.size());
    Row& row = rows[item.q_row];
    EXPECT_EQ(item.table, row.sequence->table);
    EXPECT_EQ(item.written, row.sequence->length);
    ASSERT_LT(item.first, item.end);
    ASSERT_GE(item.first, row.first);
    ASSERT_LE(item.end, row.end);
    row.n_seen += item.end - item.first;
    const uint32_t split = attention_split_keys(row.first, row.end, fast, ctas);
    // Clusters have splits of kFastSplitKeys.
    EXPECT_TRUE(!fast || item.first / kFastSplitKeys == (item.end - 1) / kFastSplitKeys ||
                lists.items.size() * ctas > kMostClusters)
        << item.first << " to " << item.end << ", " << ctas << " CTAs each";
    if (item.slot == kWholeRow) {
      EXPECT_EQ(item.first, row.first);
      EXPECT_EQ(item.end, row.end);
      EXPECT_TRUE(!fast || item.first / split == (item.end - 1) / split);  // at most a split
    } else {
      ASSERT_LT(item.slot, lists.n_slots);
      EXPECT_FALSE(slots[item.slot]);  // each is written once
      slots[item.slot] = &item;
      // A split, but for what the row does not see of it.
      const uint32_t s = item.first / split;
      EXPECT_EQ(item.first, std::max(row.first, s * split));
      EXPECT_EQ(item.end, std::min(row.end, (s + 1) * split));
    }
  }
  std::vector<uint8_t> combined(rows.size(), 0);
  uint32_t n_slots = 0;
  for (const AttentionRow& r : lists.rows) {
    ASSERT_LT(r.q_row, rows.size());
    EXPECT_FALSE(std::exchange(combined[r.q_row], 1));
    EXPECT_GT(r.n_splits, 1u);
    ASSERT_LE(r.first_slot + r.n_splits, lists.n_slots);
    n_slots += r.n_splits;
    // In order, from the first position that the row sees to the last, without a gap.
    uint32_t next = rows[r.q_row].first;
    for (uint32_t i = 0; i < r.n_splits; ++i) {
      const AttentionItem* item = slots[r.first_slot + i];
      ASSERT_TRUE(item);
      EXPECT_EQ(item->q_row, r.q_row);
      EXPECT_EQ(item->first, next);
      next = item->end;
    }
    EXPECT_EQ(next, rows[r.q_row].end);
  }
  EXPECT_EQ(n_slots, lists.n_slots);
  for (const AttentionTile& tile : lists.tiles) {
    EXPECT_TRUE(fast);
    ASSERT_GT(tile.n_rows, 0u);
    ASSERT_LE(tile.n_rows, kTileRows);
    ASSERT_LE(tile.q_row + tile.n_rows, rows.size());
    for (uint32_t i = 0; i < tile.n_rows; ++i) {
      Row& row = rows[tile.q_row + i];
      EXPECT_EQ(row.sequence->table, tile.table);
      EXPECT_EQ(row.end, tile.position + i + 1);
      row.n_seen += row.end - row.first;
    }
  }
  for (const Row& row : rows) EXPECT_EQ(row.n_seen, row.end - row.first);
  EXPECT_TRUE(
      std::is_sorted(lists.items.begin(), lists.items.end(),
                     [](const AttentionItem& a, const AttentionItem& b) { return a.end - a.first > b.end - b.first; }));
}

// Of random steps each key that a row sees is in one item or tile, and splits are where positions say.
TEST(CudaStep, AttentionHasEachKeyOnce) {
  std::mt19937 random(6);
  const auto below = [&](uint32_t n) { return uint32_t(random() % n); };
  for (int i = 0; i < 2000 && !testing::Test::HasFailure(); ++i) {
    std::vector<KvSequence> sequences;
    uint32_t n_rows = 0, table = 0;
    for (uint32_t n = 1 + below(6); n; --n) {
      const uint32_t lengths[] = {0, below(40), below(5000), 256 * below(9), 1024 * below(4) + 1023 + below(2)};
      const uint32_t takes[] = {1, 1 + below(kDecodeRows), kDecodeRows + 1, 1 + below(200), 64 * (1 + below(3))};
      const KvSequence s{n_rows, takes[below(5)], lengths[below(5)], table};
      table += (s.length + s.n_rows + 31) / 32;
      n_rows += s.n_rows;
      sequences.push_back(s);
    }
    std::optional<std::vector<int32_t>> q_rows;
    if (below(2)) {
      q_rows.emplace();
      const uint32_t share = 1 + below(4);
      for (uint32_t r = 0; r < n_rows; ++r)
        if (below(4) < share) q_rows->push_back(int32_t(r));
    }
    const uint32_t windows[] = {0, 1, 16, 512, 1024, 4096};
    const uint32_t window = windows[below(6)];
    const bool fast = below(2);
    SCOPED_TRACE(fmt::format("step {}: {} sequences, {} rows, window {}, {}", i, sequences.size(), n_rows, window,
                             fast ? "fast" : "any type"));
    check(sequences, q_rows, window, fast, 1 + below(150));
  }
}

// The items of a row are the same whatever else is in the step.
TEST(CudaStep, ARowsSplitsAreItsOwn) {
  for (const bool fast : {false, true})
    for (const uint32_t length : {0u, 255u, 256u, 1023u, 1024u, 3000u, 20000u}) {
      const std::vector<KvSequence> alone = {{0, 1, length, 0}};
      const std::vector<KvSequence> among = {{0, 100, 7, 0}, {100, 1, length, 4}, {101, 3, 2000, 200}};
      const AttentionLists a = attention_lists(alone, {}, 0, fast, 4), b = attention_lists(among, {}, 0, fast, 4);
      std::vector<std::pair<uint32_t, uint32_t>> one, other;
      for (const AttentionItem& item : a.items) one.emplace_back(item.first, item.end);
      for (const AttentionItem& item : b.items)
        if (item.q_row == 100) other.emplace_back(item.first, item.end);
      std::sort(one.begin(), one.end()), std::sort(other.begin(), other.end());
      EXPECT_EQ(one, other) << length;
    }
}

// ---- products

// Every warp has a step, and few turns pass without one.
TEST(CudaStep, WarpsOfAProduct) {
  for (uint32_t n_in = 32; n_in <= 1u << 17; n_in += 32) {
    const uint32_t n_steps = (n_in + kStepColumns - 1) / kStepColumns, warps = warps_of(n_in);
    ASSERT_GE(warps, std::min(n_steps, 6u)) << n_in;
    ASSERT_LE(warps, std::min(n_steps, kMostWarps)) << n_in;
    const uint32_t n_turns = (n_steps + warps - 1) / warps * warps;
    ASSERT_LE(8 * (n_turns - n_steps), n_turns) << n_in << ' ' << warps;
  }
}

// So many CTAs fit a multiprocessor, and one more does not.
TEST(CudaStep, BytesToSpread) {
  for (const uint32_t all : {167936u, 233472u})
    for (uint32_t most = 1; most <= 32; ++most) {
      const uint32_t bytes = bytes_to_spread(most, all, 1024);
      EXPECT_EQ(bytes % 128, 0u) << most;
      EXPECT_LE(most * (bytes + 1024), all) << most;
      EXPECT_GT((most + 1) * (bytes + 1024), all) << most;
    }
  EXPECT_EQ(bytes_to_spread(1000, 233472, 1024), 0u);
}

}  // namespace
}  // namespace argent::cuda
