#include "server/think_budget.h"

#include <algorithm>
#include <vector>

namespace argent::server {
namespace {

class ThinkRule final : public TokenRule {
 public:
  ThinkRule(const Tokenizer& tokenizer, const OutputForm& form, std::optional<uint32_t> budget,
            std::unique_ptr<TokenRule> then)
      : tokenizer_(&tokenizer),
        begin_(form.think_begin),
        end_(form.think_end),
        closing_(tokenizer.encode(form.think_end, {false, true})),
        budget_(budget),
        then_(std::move(then)),
        state_(form.starts_in_thought ? State::thinking : State::before) {}

  bool restrict(std::span<uint32_t> mask) override {
    if (state_ == State::after) return then_ && then_->restrict(mask);
    if (state_ == State::before) {
      if (!then_) return false;
      then_->restrict(mask);  // or a thought begins
      for (int32_t id : tokenizer_->encode(begin_, {false, true})) {
        if (begun_.empty()) allow(mask, id);
        break;
      }
      return true;
    }
    if (n_closed_ == 0 && (!budget_ || n_thought_ < *budget_)) return false;
    std::fill(mask.begin(), mask.end(), 0);
    allow(mask, closing_[std::min(n_closed_, closing_.size() - 1)]);
    return true;
  }

  bool accept(int32_t token) override {
    std::string bytes;
    tokenizer_->append_bytes(token, bytes, true);
    if (state_ == State::after) return !then_ || then_->accept(token);
    if (state_ == State::before) {
      begun_ += bytes;
      const std::string_view seen =
          std::string_view(begun_).substr(std::min(begun_.find_first_not_of(" \n"), begun_.size()));
      if (seen.empty()) return !then_ || then_->accept(token);
      if (seen.starts_with(begin_)) {
        state_ = State::thinking;
        return true;
      }
      if (begin_.starts_with(seen) && !then_) return true;
      state_ = State::after;
      return !then_ || then_->accept(token);
    }
    ++n_thought_;
    if (budget_ && n_thought_ > *budget_) ++n_closed_;
    tail_ += bytes;
    if (tail_.find(end_) != std::string::npos) state_ = State::after;
    if (tail_.size() > 4 * end_.size() + 64) tail_.erase(0, tail_.size() - 2 * end_.size());
    return true;
  }

  std::unique_ptr<TokenRule> fork() const override {
    auto copy = std::unique_ptr<ThinkRule>(new ThinkRule(*this));
    if (then_) copy->then_ = then_->fork();
    return copy;
  }

 private:
  enum class State { before, thinking, after };
  ThinkRule(const ThinkRule& o)
      : tokenizer_(o.tokenizer_),
        begin_(o.begin_),
        end_(o.end_),
        closing_(o.closing_),
        budget_(o.budget_),
        state_(o.state_),
        begun_(o.begun_),
        tail_(o.tail_),
        n_thought_(o.n_thought_),
        n_closed_(o.n_closed_) {}

  static void allow(std::span<uint32_t> mask, int32_t id) { mask[size_t(id) / 32] |= 1u << (id % 32); }

  const Tokenizer* tokenizer_;
  std::string begin_, end_;
  std::vector<int32_t> closing_;  // the tokens of end_
  std::optional<uint32_t> budget_;
  std::unique_ptr<TokenRule> then_;
  State state_;
  std::string begun_, tail_;
  uint32_t n_thought_ = 0;
  size_t n_closed_ = 0;  // tokens of closing_ that were forced
};

}  // namespace

std::unique_ptr<TokenRule> limit_thinking(const Tokenizer& tokenizer, const OutputForm& form,
                                          std::optional<uint32_t> budget, std::unique_ptr<TokenRule> then) {
  return std::make_unique<ThinkRule>(tokenizer, form, budget, std::move(then));
}

}  // namespace argent::server
