#include "server/tool_rule.h"

#include <map>
#include <optional>

namespace argent::server {
namespace {

using grammar::ToolCallStyle;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

constexpr const char* kArguments = "\"\n,\n\"arguments\"\n:\n";
constexpr const char* kParameters = "\"\n,\n\"parameters\"\n:\n";

// A block of these forms behind its mark.
CallMark marked(std::string mark, std::vector<ToolCallStyle::Form> forms, std::string between = {}) {
  return {mark, "", false, {mark, std::move(forms), std::move(between)}};
}

// {"name": ...} where an answer begins: nothing else says that it is a call.
CallMark bare_object(std::vector<std::string> name_end, std::string between) {
  return {"{\n\"name\"\n:", "{\"name\":", true, {"", {{.name_end = std::move(name_end)}}, std::move(between)}};
}

}  // namespace

const std::vector<CallMark>& call_marks(ToolStyle style) {
  using Form = ToolCallStyle::Form;
  static const std::vector<CallMark> kNone;
  static const std::vector<CallMark> kHermes = {marked("<tool_call>", {Form{.close = "\n</tool_call>"}}, "\n")};
  static const std::vector<CallMark> kLlama3 = {bare_object({kParameters}, "\n;\n"),
                                                marked("<|python_tag|>", {Form{.name_end = {kParameters}}})};
  static const std::vector<CallMark> kMistral = {
      marked("[TOOL_CALLS]", {Form{.open = "\n[", .between = "\n,", .close = "\n]"},
                              Form{.name_begin = "", .name_end = {"[ARGS]\n"}, .end = ""}})};
  static const std::vector<CallMark> kDeepseek = {
      marked("<｜tool▁calls▁begin｜>",
             {Form{.open = "\n",
                   .name_begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                   .name_end = {"\n```json\n"},
                   .end = "\n```\n<｜tool▁call▁end｜>",
                   .between = "\n",
                   .close = "\n<｜tool▁calls▁end｜>"},
              Form{.open = "\n",
                   .name_begin = "<｜tool▁call▁begin｜>",
                   .name_end = {"<｜tool▁sep｜>\n"},
                   .end = "\n<｜tool▁call▁end｜>",
                   .between = "\n",
                   .close = "\n<｜tool▁calls▁end｜>"}},
             "\n")};
  static const std::vector<CallMark> kAtem = [] {
    const ToolCallStyle::Tags tags{"\n<atem:parameter name=\"", "\">", "</atem:parameter>"};
    CallMark mark = marked("<atem:function_calls>", {Form{.open = "\n",
                                                          .name_begin = "<atem:invoke name=\"",
                                                          .name_end = {"\">"},
                                                          .end = "\n</atem:invoke>",
                                                          .between = "\n",
                                                          .close = "\n</atem:function_calls>",
                                                          .tags = tags}});
    mark.style.lead_begin = " to=", mark.style.lead_end = "<|message|>";
    return std::vector{mark};
  }();
  static const std::vector<CallMark> kObject = {bare_object({kArguments, kParameters}, "\n")};
  static const std::vector<CallMark> kLlama4 = {bare_object({kParameters}, "\n")};
  switch (style) {
    case ToolStyle::hermes:
      return kHermes;
    case ToolStyle::llama3:
      return kLlama3;
    case ToolStyle::mistral:
      return kMistral;
    case ToolStyle::deepseek:
      return kDeepseek;
    case ToolStyle::gemma:
    case ToolStyle::json:
      return kObject;
    case ToolStyle::llama4:
      return kLlama4;
    case ToolStyle::atem:
      return kAtem;
    case ToolStyle::none:
      return kNone;
  }
  return kNone;
}

std::vector<CallWatch::Mark> CallWatch::marks_of(const OutputForm& form) {
  std::vector<Mark> marks;
  const std::vector<CallMark>& calls = call_marks(form.tools);
  for (size_t i = 0; i < calls.size(); ++i)
    marks.push_back({calls[i].opens, Mark::Does::open_call, calls[i].at_start, int(i)});
  if (!form.think_begin.empty()) marks.push_back({form.think_begin, Mark::Does::begin_thought, true, -1});
  if (!form.think_end.empty()) marks.push_back({form.think_end, Mark::Does::end_thought, false, -1});
  return marks;
}

// Whether the mark means anything here.
bool CallWatch::fits(const Mark& mark) const {
  if ((mark.does == Mark::Does::end_thought) != (where_ == Where::thought)) return false;
  return !mark.at_start || where_ != Where::text;
}

int CallWatch::complete(const Mark& mark) {
  mark_ = -1, n_ = 0;
  if (mark.does == Mark::Does::begin_thought) where_ = Where::thought;
  if (mark.does == Mark::Does::end_thought) where_ = Where::start;
  return mark.call;
}

void CallWatch::plain(char c) {
  const bool separates = is_space(c) || (where_ == Where::after_call && c == ';');
  if (where_ != Where::thought && !separates) where_ = Where::text;
}

int CallWatch::feed(char c) {
  std::string held;
  if (mark_ >= 0) {
    const Mark& mark = (*marks_)[size_t(mark_)];
    size_t n = n_;
    if (mark.text[n] == '\n' && is_space(c)) return -1;
    if (mark.text[n] == '\n') ++n;
    if (mark.text[n] == c) {
      n_ = n + 1;
      return n_ == mark.text.size() ? complete(mark) : -1;
    }
    held = mark.text.substr(0, n_);
  }
  mark_ = -1, n_ = 0;
  held += c;
  // The longest end of what was read that another mark begins with.
  for (; !held.empty(); plain(held[0]), held.erase(0, 1))
    for (size_t i = 0; i < marks_->size(); ++i) {
      const Mark& mark = (*marks_)[i];
      if (!fits(mark) || !std::string_view(mark.text).starts_with(held)) continue;
      if (mark.text.size() == held.size()) return complete(mark);
      mark_ = int(i), n_ = held.size();
      return -1;
    }
  return -1;
}

CallOpenings::CallOpenings(const Tokenizer& tokenizer, const OutputForm& form) : marks_(CallWatch::marks_of(form)) {
  using Mark = CallWatch::Mark;
  using Where = CallWatch::Where;
  std::string last;  // bytes that opening marks end with
  for (const Mark& mark : marks_)
    if (mark.does == Mark::Does::open_call) last += mark.text.back();
  std::vector<std::pair<int32_t, std::string>> candidates;
  for (int32_t id = 0; id < tokenizer.n_vocab(); ++id) {
    std::string bytes;
    tokenizer.append_bytes(id, bytes, true);
    if (bytes.find_first_of(last) != std::string::npos) candidates.emplace_back(id, std::move(bytes));
  }
  const auto add = [&](const CallWatch& from) {
    std::vector<Opening> found;
    for (const auto& [id, bytes] : candidates) {
      CallWatch watch = from;
      for (size_t i = 0; i < bytes.size(); ++i)
        if (const int call = watch.feed(bytes[i]); call >= 0) {
          found.push_back({id, call, bytes.substr(i + 1)});
          break;
        }
    }
    if (!found.empty()) by_state_.emplace(from.state(), std::move(found));
  };
  for (const Where where : {Where::start, Where::after_call, Where::text, Where::thought}) {
    add(CallWatch(&marks_, where));
    for (size_t m = 0; m < marks_.size(); ++m)
      for (size_t n = 1; n < marks_[m].text.size(); ++n) add(CallWatch(&marks_, where, int(m), n));
  }
}

namespace {

// What all answers to one request share.
struct Calls {
  const Tokenizer* tokenizer;
  const std::vector<CallMark>& marks;
  std::shared_ptr<const CallOpenings> openings;
  std::vector<std::shared_ptr<const grammar::Compiled>> blocks;
  bool several;
  std::unordered_map<uint32_t, std::vector<int32_t>> malformed;  // tokens that open what can not be a call, by state
};

class ToolRule final : public TokenRule {
 public:
  ToolRule(std::shared_ptr<const Calls> calls, bool starts_in_thought)
      : calls_(std::move(calls)),
        watch_(&calls_->openings->marks(), starts_in_thought ? CallWatch::Where::thought : CallWatch::Where::start) {}

  bool restrict(std::span<uint32_t> mask) override {
    if (call_) {
      allowed_.resize(mask.size());
      call_->fill_mask(allowed_);  // nothing may come: nothing is allowed
      for (size_t i = 0; i < mask.size(); ++i) mask[i] &= allowed_[i];
      return true;
    }
    const auto forbid = [&](int32_t id) { mask[size_t(id) / 32] &= ~(1u << (id % 32)); };
    if (n_calls_ > 0 && !calls_->several) {
      const auto it = calls_->openings->by_state().find(watch_.state());
      if (it == calls_->openings->by_state().end()) return false;
      for (const CallOpenings::Opening& opening : it->second) forbid(opening.token);
      return true;
    }
    const auto it = calls_->malformed.find(watch_.state());
    if (it == calls_->malformed.end()) return false;
    for (int32_t id : it->second) forbid(id);
    return true;
  }

  bool accept(int32_t token) override {
    if (call_) {
      if (!call_->accept(token)) return false;
      end_call();
      return true;
    }
    bytes_.clear();
    calls_->tokenizer->append_bytes(token, bytes_, true);
    read(bytes_);
    return true;
  }

  // Bytes of free text, and of calls that open in them. What is no call after all, in a text that was given, is text.
  void read(std::string_view bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (call_) {
        if (!call_->accept_text(bytes.substr(i, 1))) call_.reset();
        end_call();
      } else if (const int call = watch_.feed(bytes[i]); call >= 0) {
        call_.emplace(calls_->blocks[size_t(call)]);
        call_->accept_text(calls_->marks[size_t(call)].given);
      }
    }
  }

  std::unique_ptr<TokenRule> fork() const override {
    auto copy = std::make_unique<ToolRule>(calls_, false);
    copy->watch_ = watch_;
    if (call_) copy->call_ = call_->fork();
    copy->n_calls_ = n_calls_;
    return copy;
  }

 private:
  void end_call() {
    if (!call_ || !call_->is_complete()) return;
    call_.reset();
    watch_.call_ended();
    ++n_calls_;
  }

  std::shared_ptr<const Calls> calls_;
  CallWatch watch_;
  std::optional<grammar::Matcher> call_;  // the call that is open
  uint32_t n_calls_ = 0;
  std::string bytes_;
  std::vector<uint32_t> allowed_;
};

class Both final : public TokenRule {
 public:
  Both(std::unique_ptr<TokenRule> a, std::unique_ptr<TokenRule> b) : a_(std::move(a)), b_(std::move(b)) {}
  bool restrict(std::span<uint32_t> mask) override {
    const bool first = a_->restrict(mask);
    return b_->restrict(mask) || first;
  }
  bool accept(int32_t token) override {
    const bool first = a_->accept(token);
    return b_->accept(token) && first;
  }
  std::unique_ptr<TokenRule> fork() const override { return std::make_unique<Both>(a_->fork(), b_->fork()); }

 private:
  std::unique_ptr<TokenRule> a_, b_;
};

class Either final : public TokenRule {
 public:
  Either(std::unique_ptr<TokenRule> a, std::unique_ptr<TokenRule> b) : a_(std::move(a)), b_(std::move(b)) {}
  bool restrict(std::span<uint32_t> mask) override {
    if (!a_ || !b_) return (a_ ? a_ : b_)->restrict(mask);
    other_.assign(mask.begin(), mask.end());
    a_->restrict(mask);
    b_->restrict(other_);
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= other_[i];
    return true;
  }
  bool accept(int32_t token) override {
    if (!a_ || !b_) return (a_ ? a_ : b_)->accept(token);
    const bool a = a_->accept(token), b = b_->accept(token);
    if (a != b) (a ? b_ : a_).reset();
    return a || b;
  }
  std::unique_ptr<TokenRule> fork() const override {
    return std::make_unique<Either>(a_ ? a_->fork() : nullptr, b_ ? b_->fork() : nullptr);
  }

 private:
  std::unique_ptr<TokenRule> a_, b_;  // null: the answer is not of that one
  std::vector<uint32_t> other_;
};

}  // namespace

std::unique_ptr<TokenRule> watch_calls(const Tokenizer& tokenizer, const OutputForm& form,
                                       std::shared_ptr<const CallOpenings> openings,
                                       std::vector<std::shared_ptr<const grammar::Compiled>> blocks, bool several,
                                       std::string_view begun) {
  auto calls = std::make_shared<Calls>(
      Calls{&tokenizer, call_marks(form.tools), std::move(openings), std::move(blocks), several, {}});
  std::vector<grammar::Matcher> at_begin;
  for (size_t i = 0; i < calls->blocks.size(); ++i)
    at_begin.emplace_back(calls->blocks[i]).accept_text(calls->marks[i].given);
  std::map<std::pair<int, std::string_view>, bool> seen;  // whether a rest begins a call
  for (const auto& [state, found] : calls->openings->by_state())
    for (const CallOpenings::Opening& opening : found) {
      if (opening.rest.empty()) continue;
      const auto [it, fresh] = seen.try_emplace({opening.call, opening.rest}, false);
      grammar::Matcher& matcher = at_begin[size_t(opening.call)];
      if (fresh && matcher.accept_text(opening.rest)) {
        it->second = true;
        matcher.rollback(1);
      }
      if (!it->second) calls->malformed[state].push_back(opening.token);
    }
  auto rule = std::make_unique<ToolRule>(std::move(calls), form.starts_in_thought);
  rule->read(begun);
  return rule;
}

std::unique_ptr<TokenRule> both(std::unique_ptr<TokenRule> a, std::unique_ptr<TokenRule> b) {
  if (!a || !b) return a ? std::move(a) : std::move(b);
  return std::make_unique<Both>(std::move(a), std::move(b));
}

std::unique_ptr<TokenRule> either(std::unique_ptr<TokenRule> a, std::unique_ptr<TokenRule> b) {
  if (!a || !b) return a ? std::move(a) : std::move(b);
  return std::make_unique<Either>(std::move(a), std::move(b));
}

}  // namespace argent::server
