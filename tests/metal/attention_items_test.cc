// How the attention of a step is shared out, and what the kernels' work comes to.
#include "backends/metal/attention_items.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backends/metal/emu/device.h"
#include "metal/attention_bench.h"
#include "metal/options.h"

namespace argent::metal {
namespace {

uint32_t first_visible(uint32_t position, uint32_t window) {
  return window && position >= window ? position - window + 1 : 0;
}

TEST(AttentionItems, SplitsCoverWhatARowSees) {
  for (const uint32_t window : {0u, 1u, 45u, 700u, 5000u}) {
    for (const uint32_t position : {0u, 31u, 32u, 287u, 288u, 575u, 576u, 600u, 2047u, 20000u}) {
      const std::vector<KvSequence> one = {{3, 1, position, 7}};
      AttentionLists lists = attention_items(one, {window, 8, true});
      std::sort(lists.decode.begin(), lists.decode.end(), [](auto& a, auto& b) { return a.first < b.first; });
      uint32_t at = first_visible(position, window);
      ASSERT_LE(lists.decode.size(), 8u);
      for (const AttentionItem& item : lists.decode) {
        EXPECT_EQ(item.row, 3u);
        EXPECT_EQ(item.table, 7u);
        EXPECT_EQ(item.first, at);
        EXPECT_TRUE(item.end % kKvPositions == 0 || item.end == position + 1);
        if (lists.decode.size() > 1) {
          EXPECT_GE(item.end - item.first, 256u);
        }
        at = item.end;
      }
      EXPECT_EQ(at, position + 1);
      if (lists.decode.size() == 1) {
        EXPECT_EQ(lists.decode[0].slot, uint32_t(kAttentionWhole));
        EXPECT_TRUE(lists.combine.empty());
      } else {
        ASSERT_EQ(lists.combine.size(), 1u);
        EXPECT_EQ(lists.combine[0].row, 3u);
        EXPECT_EQ(lists.combine[0].n_splits, lists.decode.size());
        for (const AttentionItem& item : lists.decode) EXPECT_LT(item.slot, lists.decode.size());
      }
    }
  }
}

// A row's items are the same whatever else the step has.
TEST(AttentionItems, RowsDependOnThemselvesAlone) {
  const std::vector<KvSequence> alone = {{0, 1, 3000, 0}}, among = {{0, 1, 3000, 0}, {1, 2, 900, 94}, {3, 40, 5, 130}};
  const auto a = attention_items(alone, {0, 16, true}), b = attention_items(among, {0, 16, true});
  std::vector<std::pair<uint32_t, uint32_t>> ranges[2];
  for (const AttentionItem& i : a.decode) ranges[0].push_back({i.first, i.end});
  for (const AttentionItem& i : b.decode)
    if (i.row == 0) ranges[1].push_back({i.first, i.end});
  EXPECT_EQ(ranges[0].size(), 10u);
  EXPECT_EQ(ranges[0], ranges[1]);
  ASSERT_EQ(b.combine.size(), 3u);
  std::vector<bool> taken(b.decode.size());
  for (const AttentionItem& i : b.decode) {
    ASSERT_LT(i.slot, taken.size());
    EXPECT_FALSE(taken[i.slot]);
    taken[i.slot] = true;
  }
}

TEST(AttentionItems, TilesCoverTheRows) {
  for (const uint32_t window : {0u, 50u}) {
    for (const uint32_t n_rows : {9u, 40u, 41u, 256u, 257u, 512u, 513u, 1000u}) {
      const std::vector<KvSequence> one = {{2, n_rows, 70, 4}};
      AttentionLists lists = attention_items(one, {window, 1, true});
      EXPECT_TRUE(lists.decode.empty());
      EXPECT_LE(lists.prefill.size(), attention_max_prefill(n_rows));
      EXPECT_EQ(lists.prefill.size(), (n_rows + kPrefillRows - 1) / kPrefillRows);
      std::sort(lists.prefill.begin(), lists.prefill.end(), [](auto& a, auto& b) { return a.row < b.row; });
      uint32_t row = 2;
      for (const AttentionItem& item : lists.prefill) {
        EXPECT_EQ(item.row, row);
        EXPECT_EQ(item.position, 70 + row - 2);
        EXPECT_EQ(item.first, first_visible(item.position, window));
        EXPECT_EQ(item.end, item.position + item.n_rows);
        EXPECT_EQ(item.table, 4u);
        EXPECT_LE(item.n_rows, uint32_t(kPrefillRows));
        row += item.n_rows;
      }
      EXPECT_EQ(row, 2 + n_rows);
    }
  }
  const std::vector<KvSequence> few = {{0, 8, 5, 0}, {8, 9, 5, 1}};
  const auto lists = attention_items(few, {0, 1, true}), any = attention_items(few, {0, 1, false});
  EXPECT_EQ(lists.decode.size(), 8u);
  EXPECT_EQ(lists.prefill.size(), 1u);
  EXPECT_EQ(any.decode.size(), 17u);
  EXPECT_TRUE(any.prefill.empty());
}

TEST(AttentionItems, SizesHoldForAnyLengths) {
  for (uint32_t n_rows = 1; n_rows <= 300; n_rows++) {
    // The most that there can be: every row alone, with more keys than splits need.
    std::vector<KvSequence> rows, nines;
    for (uint32_t r = 0; r < n_rows; r++) rows.push_back({r, 1, 100000, 0});
    for (uint32_t r = 0; r + 9 <= n_rows; r += 9) nines.push_back({r, 9, 100000, 0});
    const AttentionPolicy policy{0, attention_max_splits(n_rows), true};
    const AttentionLists lists = attention_items(rows, policy);
    EXPECT_EQ(lists.decode.size(), attention_max_decode(n_rows));
    EXPECT_LE(lists.combine.size(), attention_max_combine(n_rows));
    EXPECT_EQ(attention_items(nines, policy).prefill.size(), attention_max_prefill(n_rows));
    uint64_t slots = 0;
    for (const AttentionCombineItem& c : lists.combine) slots = std::max<uint64_t>(slots, c.slot + c.n_splits);
    EXPECT_LE(slots * 3 * (64 + kPartialExtra) * 4, attention_workspace_bytes(n_rows, 3, 64));
    EXPECT_LE(slots, 256u);
  }
  EXPECT_EQ(attention_max_splits(1), 64u);
  EXPECT_EQ(attention_max_splits(5), 32u);
  EXPECT_EQ(attention_max_splits(256), 1u);
  const uint32_t buckets[][2] = {{0, 0}, {1, 1}, {2, 2}, {3, 4}, {5, 8}, {64, 64}, {65, 128}};
  for (const auto& [n, bucket] : buckets) EXPECT_EQ(attention_bucket(n), bucket);
}

TEST(AttentionItems, HeadsOfAThreadgroup) {
  const uint32_t heads[][2] = {{1, 1}, {2, 2}, {3, 4}, {4, 4}, {5, 8}, {11, 8}};
  for (const auto& [of_kv, want] : heads) EXPECT_EQ(attention_decode_heads(of_kv), want);
  EXPECT_EQ(attention_decode_grid(22, 2), 4u);
  EXPECT_EQ(attention_decode_grid(6, 1), 1u);
  for (const uint32_t d : {64u, 80u, 96u, 128u, 256u}) {
    EXPECT_TRUE(attention_is_fast(d, d));
    EXPECT_FALSE(attention_is_fast(d, 20));
    EXPECT_LE(attention_decode_threadgroup_bytes(d, 8, kDecodeThreads), 16384u);
    EXPECT_LE(attention_prefill_threadgroup_bytes(d), d > 128 ? kMaxThreadgroupBytes : kMaxThreadgroupBytes / 2);
  }
}

// ---- counted work of attention_prefill_64; bytes are counted in the build with checks

struct Cost {
  double matrices = 0, bytes = 0, pairs = 0;  // pairs of a row and a key that it sees
};

Cost cost(const AttentionShape& shape) {
  emu::EmuDevice device({.check = false, .variant = test_options().variant});
  EXPECT_EQ(run_attention(device, "prefill", shape), "");
  Cost sum;
  for (const auto& counted : device.work()) {
    sum.matrices += double(counted.work.matrix_multiplies);
    sum.bytes += double(counted.work.loaded[0] + counted.work.stored[0]);
  }
  for (const auto& s : shape.sequences)
    for (uint32_t p = s.length; p < s.length + s.n_rows; p++) sum.pairs += p + 1 - first_visible(p, shape.window);
  return sum;
}

AttentionShape plain(std::vector<AttentionShape::Sequence> sequences, uint32_t window = 0) {
  AttentionShape shape;
  shape.sequences = std::move(sequences);
  shape.window = window;
  shape.check = false;
  return shape;
}

TEST(AttentionWork, OneRowMoreIsNoFurtherTile) {
  for (const uint32_t n : {256u, 512u}) {
    const Cost even = cost(plain({{0, n}})), odd = cost(plain({{0, n + 1}}));
    EXPECT_LE(odd.matrices, 1.1 * even.matrices) << n;
    EXPECT_LE(odd.bytes, 1.1 * even.bytes) << n;
    RecordProperty("rows_" + std::to_string(n),
                   std::to_string(odd.matrices / even.matrices) + " " + std::to_string(odd.bytes / even.bytes));
  }
}

// For each pair of a row and a key that it sees; rows see about as many keys as those of the plain case.
TEST(AttentionWork, WindowsAndSequencesCostWhatTheySee) {
  const Cost causal = cost(plain({{0, 384}}));
  struct Variant {
    const char* name;
    AttentionShape shape;
  };
  for (const auto& [name, shape] : {Variant{"all in the window", plain({{0, 384}}, 384)},
                                    {"window", plain({{300, 200}}, 300)},
                                    {"sequences", plain({{60, 270}, {40, 290}})},
                                    {"later chunks", plain({{200, 120}, {100, 200}})}}) {
    const Cost other = cost(shape);
    EXPECT_LE(other.matrices / other.pairs, 1.11 * causal.matrices / causal.pairs) << name;
    EXPECT_LE(other.bytes / other.pairs, 1.11 * causal.bytes / causal.pairs) << name;
    RecordProperty(name, std::to_string(other.matrices / other.pairs / (causal.matrices / causal.pairs)) + " " +
                             std::to_string(other.bytes / other.pairs / (causal.bytes / causal.pairs)));
  }
}

}  // namespace
}  // namespace argent::metal
