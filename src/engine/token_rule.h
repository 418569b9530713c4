// What an answer's next token may be, beyond its sampling parameters: a grammar, a budget of reasoning.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace argent {

class TokenRule {
 public:
  virtual ~TokenRule() = default;
  // Clears the bits of tokens that may not come next (bit t % 32 of word t / 32). False: all may; nothing was changed.
  virtual bool restrict(std::span<uint32_t> mask) = 0;
  // The token came. False: it was not allowed, which ends the answer with an error.
  virtual bool accept(int32_t token) = 0;
  // The same rule in the same state, for another answer.
  virtual std::unique_ptr<TokenRule> fork() const = 0;
};

}  // namespace argent
