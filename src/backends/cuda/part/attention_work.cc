#include "backends/cuda/part/attention_work.h"

#include <algorithm>
#include <utility>

namespace argent::cuda {
namespace {

// What an H200 has at the same time: clusters (62), CTAs of 227 KB (132).
constexpr uint32_t kClusters = 60, kProcessors = 128;
constexpr uint32_t kBlock = 32;  // positions

uint32_t first_visible(uint32_t position, uint32_t window) {
  return window && position >= window ? position - window + 1 : 0;
}

class Maker {
 public:
  Maker(uint32_t window, bool fast, uint32_t ctas) : window_(window), fast_(fast), ctas_(ctas) {}

  // n rows of q that are neighbours in the step too; the first one is at that position. written: as in AttentionItem.
  void add_run(uint32_t q_row, uint32_t n, uint32_t position, uint32_t table, uint32_t written) {
    for (uint32_t i = 0; i<n; i += n> kDecodeRows && fast_ ? kTileRows : 1) {
      if (n <= kDecodeRows) {
        add_row(q_row + i, position + i, table, written);
      } else if (fast_) {
        lists_.tiles.push_back({q_row + i, std::min(n - i, kTileRows), table, position + i});
      } else {
        lists_.items.push_back(
            {q_row + i, table, first_visible(position + i, window_), position + i + 1, kWholeRow, written});
      }
    }
  }

  AttentionLists finish() {
    const auto more_keys = [](const AttentionItem& a, const AttentionItem& b) {
      return a.end - a.first > b.end - b.first;
    };
    const auto later = [](const AttentionTile& a, const AttentionTile& b) {
      return a.position + a.n_rows > b.position + b.n_rows;
    };
    std::stable_sort(lists_.items.begin(), lists_.items.end(), more_keys);
    std::stable_sort(lists_.tiles.begin(), lists_.tiles.end(), later);
    return std::move(lists_);
  }

 private:
  void add_row(uint32_t q_row, uint32_t position, uint32_t table, uint32_t written) {
    const uint32_t first = first_visible(position, window_), end = position + 1;
    const uint32_t keys = attention_split_keys(first, end, fast_, ctas_);
    const uint32_t split = first / keys, n_splits = position / keys - split + 1;
    if (n_splits > 1) lists_.rows.push_back({q_row, lists_.n_slots, n_splits});
    for (uint32_t s = split; s < split + n_splits; ++s)
      lists_.items.push_back({q_row, table, std::max(first, s * keys), std::min(end, (s + 1) * keys),
                              n_splits > 1 ? lists_.n_slots++ : kWholeRow, written});
  }

  const uint32_t window_;
  const bool fast_;
  const uint32_t ctas_;
  AttentionLists lists_;
};

}  // namespace

uint32_t attention_split_keys(uint32_t first, uint32_t end, bool fast, uint32_t ctas) {
  if (!fast) return kSplitKeys;
  const uint32_t n_splits = (end - 1) / kFastSplitKeys - first / kFastSplitKeys + 1;
  if (n_splits == 1 || n_splits * ctas <= kClusters) return kFastSplitKeys;
  const uint32_t n_blocks = (end - 1) / kBlock - first / kBlock + 1,
                 most = std::max(kProcessors / ctas, kMostClusters / ctas + 1);
  return std::min(kBlock * ((n_blocks + most - 1) / most), kMostSplitKeys);
}

AttentionLists attention_lists(std::span<const KvSequence> sequences, std::optional<std::span<const int32_t>> q_rows,
                               uint32_t window, bool fast, uint32_t ctas) {
  Maker maker(window, fast, ctas);
  size_t next = 0;  // of q_rows; sequences are in order of their rows
  for (const KvSequence& s : sequences) {
    if (!q_rows) {
      maker.add_run(s.first_row, s.n_rows, s.length, s.table, s.length);
      continue;
    }
    const auto is_next = [&](uint32_t from) {
      return next < q_rows->size() && uint32_t((*q_rows)[next]) >= from &&
             uint32_t((*q_rows)[next]) < s.first_row + s.n_rows;
    };
    while (is_next(s.first_row)) {
      const uint32_t first = uint32_t(next), row = uint32_t((*q_rows)[next]);
      while (is_next(row) && uint32_t((*q_rows)[next]) == row + uint32_t(next) - first) ++next;
      maker.add_run(first, uint32_t(next) - first, s.length + row - s.first_row, s.table, s.length);
    }
  }
  return maker.finish();
}

}  // namespace argent::cuda
