// Finds the tokens that are recognised in text as a whole, before any merging: control and user-defined tokens.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/text_index.h"

namespace argent {

// An Aho-Corasick automaton: one pass over the text, whatever the tokens are. Of overlapping tokens the longest wins,
// wherever it stands, then the leftmost: llama.cpp cuts the text by one token after the other, longest first, and the
// result is the same.
class Specials {
 public:
  struct Token {
    std::string_view text;  // not empty; kept by the caller
    int32_t id;
    bool control;
  };
  struct Match {
    uint32_t begin, end;
    int32_t id;
  };

  void build(std::span<const Token> tokens);

  // The matches in order. A control token counts only if no byte of it is plain: `plain` are the stretches of the text
  // where it must not be recognised, [begin, end) in order.
  std::vector<Match> find(std::string_view text, std::span<const std::pair<uint32_t, uint32_t>> plain) const;

 private:
  struct Node {
    uint32_t fail = 0;     // the longest proper suffix that is a prefix of a token
    uint32_t shorter = 0;  // the longest proper suffix that is a token; 0 for none
    uint32_t length = 0;
    int32_t id = -1;  // of the token that ends here
    bool control = false;
  };
  struct Edge {
    uint64_t key = UINT64_MAX;  // node << 8 | byte
    uint32_t node = 0;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;  // 0 for none
  void add_edge(uint32_t node, uint8_t byte, uint32_t child);
  size_t slot(uint64_t key) const;

  std::vector<Node> nodes_ = {Node{}};
  std::vector<Edge> edges_;  // open addressing
  std::array<uint32_t, 256> first_{};
  TextHash hash_;
};

}  // namespace argent
