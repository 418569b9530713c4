// Texts that end an answer, found in a stream of pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace argent {

// Gives text on as soon as it can not be the beginning of a stop text. The rule: the text is read byte by byte, and the
// first byte with which any stop text is complete ends the answer; of several that end there the longest counts, that
// is, the one that begins first. What comes out, together, is the text before that one's beginning. So
//   "bc" ends "abcd" before "abcd" can;  "abc" and "c" both end with the c, and "abc" counts;  order in the list is
//   nothing, but that of two equal texts the first is named.
// Neither tokens nor pieces matter: engines that look once a token may find another stop, where one token holds the
// ends of two. Linear time (Aho and Corasick 1975).
class StopMatcher {
 public:
  StopMatcher() = default;
  explicit StopMatcher(const std::vector<std::string>& stops);  // none of them empty

  // Appends what is safe to `out`. True: a stop text is complete; nothing comes after it.
  bool push(std::string_view text, std::string& out);
  // The text has ended: what was held back.
  void finish(std::string& out);
  // Which one it was; -1: none yet.
  int matched() const { return matched_; }

 private:
  struct Node {
    std::vector<std::pair<char, int>> next;
    int fail = 0;
    int depth = 0;
    int ends = -1;  // the longest stop that ends here, also by failure links
    int ends_depth = 0;
  };
  int child(int node, char c) const;

  std::vector<Node> nodes_;
  std::string held_;  // the last bytes, not given on
  int at_ = 0;
  int matched_ = -1;
};

}  // namespace argent
