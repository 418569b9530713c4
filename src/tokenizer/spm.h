// SentencePiece's BPE: every character is a symbol, neighbours that spell a token join in the order of the tokens'
// scores, and what is left without a token becomes the tokens of its bytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/merge.h"
#include "tokenizer/text_index.h"

namespace argent {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, which stands for a space

class Spm {
 public:
  // scores: of each token, finite. mergeable: whether it can come about in text: not control, unknown and byte tokens.
  // unk: what a byte without a token becomes; nothing to drop it.
  void build(const TextPool& pool, const TextIndex& index, std::span<const float> scores, std::vector<bool> mergeable,
             std::optional<int32_t> unk);

  // Appends the ids of a text; of " " and the text if space_first.
  void encode(std::string_view text, bool space_first, std::vector<int32_t>& ids, MergeScratch& scratch) const;

 private:
  int32_t find(std::string_view text) const;
  // Whether some token has character boundaries between bytes like these. U+2581 counts as the byte 0xFF.
  size_t seam(uint8_t last, uint8_t first) const { return size_t(last) << 8 | first; }
  void encode_part(std::string_view text, std::span<const uint32_t> offsets, std::vector<int32_t>& ids,
                   MergeScratch& scratch) const;

  const TextIndex* index_ = nullptr;
  std::vector<uint32_t> orders_;  // of each token: higher scores are lower numbers; kNoPair if it is not mergeable
  std::vector<bool> seams_;
  std::array<int32_t, 256> byte_ids_{};
  size_t max_length_ = 0;  // bytes of the longest mergeable token
};

}  // namespace argent
