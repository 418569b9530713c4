// Tool calls that the model may make or not: its text is free until it opens a call as its kind does, from there the
// call is one of the tools with arguments that keep to its schema, then the text is free again.
//
// What opens a call is looked for in bytes, since tokens begin and end anywhere: one may hold the end of a mark and the
// beginning of the call. Those whose rest can not begin a call are known for each place in a mark, and are all that is
// forbidden in free text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "chat/output.h"
#include "engine/token_rule.h"
#include "grammar/grammar.h"
#include "tokenizer/tokenizer.h"

namespace argent::server {

// What opens calls of a style that a grammar can carry. The first is how a required call is written.
struct CallMark {
  std::string opens;  // '\n': any white space
  std::string given;  // the beginning of a block that stands in `opens` already
  bool at_start;      // only where nothing but white space, a thought or a call came before
  grammar::ToolCallStyle style;
};
// Empty for a model without calls.
const std::vector<CallMark>& call_marks(ToolStyle style);

// Where an answer stands, as OutputParser sees it.
class CallWatch {
 public:
  enum class Where : uint8_t { start, after_call, text, thought };
  struct Mark {
    enum class Does : uint8_t { open_call, begin_thought, end_thought };
    std::string text;  // '\n' as above
    Does does;
    bool at_start;
    int call;  // of open_call: which of call_marks
  };
  // Marks of a form.
  static std::vector<Mark> marks_of(const OutputForm& form);

  // The marks must outlive it.
  CallWatch(const std::vector<Mark>* marks, Where where, int mark = -1, size_t n = 0)
      : marks_(marks), where_(where), mark_(mark), n_(n) {}
  // Which call is opened with this byte; -1: none.
  int feed(char c);
  void call_ended() { where_ = Where::after_call; }
  // Watches of the same state go on alike.
  uint32_t state() const { return uint32_t(where_) | uint32_t(mark_ + 1) << 2 | uint32_t(n_) << 8; }

 private:
  int complete(const Mark& mark);
  void plain(char c);
  bool fits(const Mark& mark) const;

  const std::vector<Mark>* marks_;
  Where where_;
  int mark_;  // of which n_ bytes were read; -1: none has begun
  size_t n_;
};

// The tokens of a vocabulary with which a call opens, in each state of a watch. Takes some ms to make.
class CallOpenings {
 public:
  struct Opening {
    int32_t token;
    int call;
    std::string rest;  // the bytes behind the mark
  };
  CallOpenings(const Tokenizer& tokenizer, const OutputForm& form);
  const std::vector<CallWatch::Mark>& marks() const { return marks_; }
  const std::unordered_map<uint32_t, std::vector<Opening>>& by_state() const { return by_state_; }

 private:
  std::vector<CallWatch::Mark> marks_;
  std::unordered_map<uint32_t, std::vector<Opening>> by_state_;
};

// openings: of the tokenizer and the form. blocks: Compiler::tool_block of each of call_marks. several: more than one
// block may come. begun: text that the prompt ends with and the answer goes on from.
std::unique_ptr<TokenRule> watch_calls(const Tokenizer& tokenizer, const OutputForm& form,
                                       std::shared_ptr<const CallOpenings> openings,
                                       std::vector<std::shared_ptr<const grammar::Compiled>> blocks, bool several,
                                       std::string_view begun);

// Both rules hold; one that is null is none.
std::unique_ptr<TokenRule> both(std::unique_ptr<TokenRule> a, std::unique_ptr<TokenRule> b);
// One of them holds, of an answer from its beginning: whatever comes next is what either allows.
std::unique_ptr<TokenRule> either(std::unique_ptr<TokenRule> a, std::unique_ptr<TokenRule> b);

}  // namespace argent::server
