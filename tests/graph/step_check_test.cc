// Whether a step fits, against a dull account of who reads and writes which block.
#include "graph/step_check.h"

#include <gtest/gtest.h>

#include <random>

namespace argent {
namespace {

constexpr uint32_t kBlock = 4, kVocab = 100;

struct Case {
  StepRules rules{.key = {.n_tokens = 64, .n_outputs = 8, .tail = Tail::logits},
                  .n_vocab = kVocab,
                  .block_tokens = kBlock,
                  .windows = {0, 6},
                  .group_blocks = {100'000, 100'000}};
  Step step;
  std::vector<std::vector<int32_t>> tables, texts;
  bool fits = true;
};

// Sequences with blocks of their own, some of them read by several, and often one thing that is wrong, or may be.
Case random_case(std::mt19937& random) {
  Case c;
  const auto below = [&](uint32_t n) { return uint32_t(random() % n); };
  const uint32_t n = 1 + below(6);
  // Blocks that a quick look could take for each other lie a power of two apart.
  const int32_t apart = 1 << (10 + below(7));
  const std::vector<int32_t> shared = {1, 1 + apart, 2};
  int32_t next = 10;
  c.tables.resize(2 * n), c.texts.resize(n);
  for (uint32_t s = 0; s < n; ++s) {
    StepSequence q{.first_row = uint32_t(c.step.tokens.size()),
                   .n_rows = 1 + below(6),
                   .length = below(40),
                   .slot = s,
                   .tables = {},
                   .recent = {}};
    for (uint32_t r = 0; r < q.n_rows; ++r) {
      c.step.tokens.push_back(int32_t(below(kVocab)));
      c.step.positions.push_back(int32_t(q.length + r));
      c.step.row_sequence.push_back(s);
    }
    for (uint32_t g = 0; g < 2; ++g) {
      std::vector<int32_t>& table = c.tables[2 * s + g];
      for (uint32_t b = 0; b <= (q.length + q.n_rows - 1) / kBlock; ++b) {
        const bool read_only = (b + 1) * kBlock <= q.length;
        const int32_t own = next % 2 ? next : (next + apart) % 100'000;
        ++next;
        table.push_back(read_only && b < shared.size() ? shared[b] : own);
      }
    }
    for (uint32_t i = 0; i < q.length + q.n_rows; ++i) c.texts[s].push_back(int32_t(below(kVocab)));
    c.step.sequences.push_back(q);
  }
  const uint32_t s = below(n), damage = below(6);
  std::vector<int32_t>& table = c.tables[2 * s + below(2)];
  if (damage == 0) table[below(uint32_t(table.size()))] = below(2) ? -1 : 100'000;
  if (damage == 1) table.pop_back();
  if (damage == 2) {
    const std::vector<int32_t>& from = c.tables[below(2 * n)];
    table[below(uint32_t(table.size()))] = from[below(uint32_t(from.size()))];
  }
  if (damage == 3) {
    const int32_t bad[] = {-1, int32_t(kVocab), INT32_MAX, INT32_MIN};
    c.texts[s][below(uint32_t(c.texts[s].size()))] = bad[below(4)];
    c.fits = false;
  }
  for (uint32_t i = 0; i < n; ++i) {
    c.step.sequences[i].tables = {c.tables[2 * i], c.tables[2 * i + 1]};
    c.step.sequences[i].recent = c.texts[i];
  }
  return c;
}

bool blocks_fit(const Case& c) {
  for (uint32_t g = 0; g < 2; ++g) {
    struct Use {
      int32_t block;
      uint32_t sequence, at;
      bool written;
    };
    std::vector<Use> uses;
    for (uint32_t s = 0; s < c.step.sequences.size(); ++s) {
      const StepSequence& q = c.step.sequences[s];
      const uint32_t window = c.rules.windows[g];
      for (uint32_t p = 0; p < q.length + q.n_rows; ++p) {
        if (window && p + window <= q.length) continue;  // no row sees it
        if (p / kBlock >= q.tables[g].size()) return false;
        const int32_t block = q.tables[g][p / kBlock];
        if (block < 0 || block >= 100'000) return false;
        uses.push_back({block, s, p / kBlock, p >= q.length});
      }
    }
    for (const Use& a : uses)
      for (const Use& b : uses)
        if (a.written && a.block == b.block && (a.sequence != b.sequence || (b.written && a.at != b.at))) return false;
  }
  return true;
}

TEST(StepCheck, AgreesWithADullAccount) {
  std::mt19937 random(1);
  size_t n_good = 0, n_bad = 0;
  for (int i = 0; i < 5000; ++i) {
    const Case c = random_case(random);
    const bool fits = c.fits && blocks_fit(c);
    const Status status = check_step(c.rules, c.step, {});
    ASSERT_EQ(bool(status), fits) << i << ": " << (status ? "" : status.error().message);
    (fits ? n_good : n_bad) += 1;
  }
  EXPECT_GT(n_good, 1000u);
  EXPECT_GT(n_bad, 1000u);
}

}  // namespace
}  // namespace argent
