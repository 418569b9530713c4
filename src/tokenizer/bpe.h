// Byte-level BPE: every byte is a symbol, and pairs of symbols join in the order of the merges.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/merge.h"
#include "tokenizer/text_index.h"

namespace argent {

// In the texts of a byte-level vocabulary a byte stands as one character: itself if it is printable in Latin-1, else
// one of U+0100 to U+0143.
uint32_t byte_to_char(uint8_t byte);
int char_to_byte(uint32_t cp);  // -1 if the character stands for no byte

class Bpe {
 public:
  struct Merge {
    std::string_view left, right;
  };
  // The merges in their order. One whose parts or result are no tokens is passed over: it could yield nothing.
  void build(const TextPool& pool, const TextIndex& index, std::span<const Merge> merges);

  // Appends the ids of one word. A byte that the vocabulary has no token for is dropped.
  void encode_word(std::string_view word, std::vector<int32_t>& ids, MergeScratch& scratch) const;

 private:
  struct Pair {
    uint64_t key = UINT64_MAX;  // left << 32 | right
    uint32_t rank = kNoPair;
  };
  Pair& probe(uint64_t key) {
    size_t i = hash_(key) & (pairs_.size() - 1);
    while (pairs_[i].key != key && pairs_[i].key != UINT64_MAX) i = (i + 1) & (pairs_.size() - 1);
    return pairs_[i];
  }
  uint32_t rank(uint32_t left, uint32_t right) const {
    return const_cast<Bpe*>(this)->probe(uint64_t(left) << 32 | right).rank;
  }
  void encode_short(std::string_view word, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_{};
  std::vector<Pair> pairs_;       // open addressing
  std::vector<uint32_t> joined_;  // by rank: the id of the pair joined
  TextHash hash_;
};

}  // namespace argent
