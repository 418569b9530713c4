#include "chat/output.h"

#include <array>

#include "chat/output_frames.h"

namespace argent {

using output::Calls;
using output::Frame;
using output::FrameKind;
using output::Opening;
using output::Verdict;

// Three states: text, a thought, a block. Each takes one byte at a time, so how the answer was cut cannot matter.
struct OutputParser::Impl {
  Impl(const OutputForm& f, const Json& t, std::function<std::string(uint32_t)> make_id)
      : form(f), tools(t), names(output::tool_names(tools)), ids(std::move(make_id)) {
    if (!form.think_begin.empty()) marks.push_back({form.think_begin, Mark::Does::begin_thought, true, {}});
    if (!names.empty()) {
      for (const Opening& o : output::openings(form.tools)) {
        marks.push_back({std::string(o.mark), Mark::Does::begin_block, o.at_start, o});
      }
    }
    if (form.tools == ToolStyle::atem) {
      marks.push_back({"<|start|>assistant", Mark::Does::begin_block, false, {"", FrameKind::header, ""}});
      for (const char* end : {"<|eom|>", "<|eot|>"}) marks.push_back({end, Mark::Does::nothing, false, {}});
    }
    if (!form.think_end.empty()) thought_marks.push_back({form.think_end, Mark::Does::end_thought, false, {}});
    if (form.starts_in_thought && !form.think_begin.empty()) {
      // Some models write the mark again that the prompt ended with.
      thought_marks.push_back({form.think_begin, Mark::Does::begin_thought, true, {}});
    }
    for (const Mark& m : marks) first[static_cast<uint8_t>(m.text[0])] = true;
    for (const Mark& m : thought_marks) thought_first[static_cast<uint8_t>(m.text[0])] = true;
    if (form.starts_in_thought) {
      begin_thought();
    } else if (form.tools == ToolStyle::atem) {
      begin_block({"", FrameKind::header, ""}, "");  // the prompt ends with <|start|>assistant
    }
  }

  // A text that changes the state.
  struct Mark {
    enum class Does : uint8_t { begin_thought, end_thought, begin_block, nothing };
    std::string text;
    Does does = Does::nothing;
    bool at_start = false;
    Opening opening;
  };
  enum class State : uint8_t { text, thought, block };

  void byte(char c) {
    if (state == State::block) {
      block_byte(c);
    } else {
      marked_byte(c);
    }
  }

  // Text and thoughts: marks are held as long as they may be one, and what is none goes on.
  void marked_byte(char c) {
    bool in_thought = state == State::thought;
    if (held.empty() && !(in_thought ? thought_first : first)[static_cast<uint8_t>(c)]) return plain_byte(c);
    held += c;
    while (!held.empty()) {
      bool may_be = false;
      for (const Mark& m : in_thought ? thought_marks : marks) {
        if ((m.at_start && !at_start) || !std::string_view(m.text).starts_with(held)) continue;
        if (m.text.size() == held.size()) {
          held.clear();
          return take(m, std::exchange(not_own, 0));
        }
        may_be = true;
      }
      if (may_be) return;
      drop_held();
    }
  }

  // The first byte that was held is none of a mark.
  void drop_held() {
    if (not_own == 0) {
      plain_byte(held[0]);
    } else {
      --not_own;
      at_start = after_call = false;
    }
    held.erase(0, 1);
  }

  void plain_byte(char c) {
    bool newline = c == '\n' || c == '\r';
    if (drop_newlines && newline) return;
    drop_newlines = false;
    std::string& to = state == State::thought ? delta.reasoning : delta.content;
    bool separator = c == ';' && after_call && form.tools == ToolStyle::llama3;
    if (state == State::thought ? newline : at_start && (output::is_space(c) || separator)) {
      space += c;
      return;
    }
    to += space;
    to += c;
    space.clear();
    at_start = after_call = false;
  }

  // n_before: bytes of it that are not the answer's.
  void take(const Mark& m, size_t n_before) {
    switch (m.does) {
      case Mark::Does::begin_thought:
        return begin_thought();
      case Mark::Does::end_thought:
        return end_thought();
      case Mark::Does::begin_block:
        begin_block(m.opening, m.text);
        raw.erase(0, n_before);
        return;
      case Mark::Does::nothing:
        at_start = true;
    }
  }

  void begin_thought() {
    state = State::thought;
    space.clear();
    at_start = drop_newlines = true;
    after_call = false;
  }

  void end_thought() {
    state = State::text;
    space.clear();
    at_start = drop_newlines = true;
  }

  void begin_block(const Opening& opening, std::string_view mark) {
    state = State::block;
    calls = Calls{&names, {}, false};
    frame = output::make_frame(opening, calls, tools);
    is_header = opening.kind == FrameKind::header;
    raw = opening.inside ? std::string_view() : mark;
    given = given_arguments = 0;
    begun = streaming = is_text = false;
    if (opening.inside) {
      for (char c : mark) block_byte(c);
    }
  }

  void block_byte(char c) {
    Verdict v = frame->feed(c);
    if (v == Verdict::bad) {
      fail_block();
      return byte(c);
    }
    if (is_text) {
      delta.content += c;
    } else {
      raw += c;
      if (calls.doomed) {
        give_text();
      } else if (!calls.calls.empty()) {
        const Calls::Call& last = calls.calls.back();
        streaming |= !last.name.empty() && last.arguments.size() > output::kHeldArguments;
        if (streaming || v == Verdict::end) give_calls(v == Verdict::end);
      }
    }
    if (v == Verdict::end) end_block();
  }

  void end_block() {
    state = State::text;
    at_start = !is_text;
    after_call = !is_text && !is_header;
    if (!is_text) space.clear();
    if (is_header && frame->begins_thought() && !form.think_begin.empty()) begin_thought();
  }

  void fail_block() {
    state = State::text;
    if (is_header) {  // a text without one: a mark may have begun in what was taken for it
      for (char c : std::exchange(raw, {})) byte(c);
      return;
    }
    if (!is_text) give_text();
    at_start = after_call = false;
  }

  // The block is content.
  void give_text() {
    is_text = true;
    drop_newlines = false;
    delta.content += space;
    delta.content += raw;
    space.clear();
    raw.clear();
  }

  // Hands over the calls that are complete, and what there is of one that is longer than is held.
  void give_calls(bool complete) {
    for (; given < calls.calls.size(); ++given, begun = false) {
      const Calls::Call& call = calls.calls[given];
      bool whole = complete || given + 1 < calls.calls.size();
      if (!whole && (call.name.empty() || call.arguments.size() <= output::kHeldArguments)) return;
      if (!begun) {
        delta.calls.push_back({n_calls, ids(n_calls), call.name, ""});
        ++n_calls;
        begun = true;
        given_arguments = 0;
      } else if (delta.calls.empty()) {
        delta.calls.push_back({n_calls - 1, "", "", ""});
      }
      delta.calls.back().arguments.append(call.arguments, given_arguments);
      given_arguments = call.arguments.size();
      if (!whole) return;
    }
  }

  void go_on_from(std::string_view text) {
    for (char c : text) byte(c);
    delta = {};
    raw.clear();
    space.clear();
    not_own = held.size();
    n_calls = 0;
    given = given_arguments = 0;
    begun = false;
  }

  OutputDelta finish() {
    while (state == State::block) fail_block();
    while (!held.empty()) drop_held();
    if (state == State::text && !after_call) delta.content += space;
    space.clear();
    return std::exchange(delta, {});
  }

  OutputForm form;
  Json tools;
  std::set<std::string, std::less<>> names;
  std::function<std::string(uint32_t)> ids;
  std::vector<Mark> marks, thought_marks;
  std::array<bool, 256> first{}, thought_first{};  // bytes that marks begin with

  State state = State::text;
  OutputDelta delta;
  uint32_t n_calls = 0;
  std::string held;            // the beginning of a mark, perhaps
  size_t not_own = 0;          // bytes of it that the prompt has
  std::string space;           // white space whose fate depends on what comes next
  bool at_start = true;        // nothing but white space since the answer, a thought or a call
  bool after_call = false;     // nothing but white space since a call
  bool drop_newlines = false;  // a thought has just begun or ended

  std::unique_ptr<Frame> frame;
  Calls calls;
  std::string raw;                          // the block so far
  bool is_header = false, is_text = false;  // is_text: given as content, and so is the rest of it
  bool streaming = false;                   // calls are given before the block is complete
  size_t given = 0;                         // calls of the block that are out as a whole
  bool begun = false;                       // the next one is out in part
  size_t given_arguments = 0;               // bytes of it
};

OutputParser::OutputParser(const OutputForm& form, const Json& tools, std::function<std::string(uint32_t)> ids)
    : impl_(std::make_unique<Impl>(form, tools, std::move(ids))) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;

void OutputParser::go_on_from(std::string_view text) { impl_->go_on_from(text); }

OutputDelta OutputParser::push(std::string_view text) {
  for (char c : text) impl_->byte(c);
  return std::exchange(impl_->delta, {});
}

OutputDelta OutputParser::finish() { return impl_->finish(); }

uint32_t OutputParser::n_calls() const { return impl_->n_calls; }

}  // namespace argent
