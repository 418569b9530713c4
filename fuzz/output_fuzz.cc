// Any text as an answer, cut anywhere: the same deltas as in one piece; calls are of tools, their arguments JSON
// objects (or the beginning of one where the block is text as well), and no byte of the answer is lost.
#include <cstdlib>
#include <string>

#include "chat/output.h"
#include "chat/output_json.h"

using namespace argent;

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

struct Answer {
  std::string content, reasoning;
  std::vector<ToolDelta> calls;

  void add(const OutputDelta& d) {
    content += d.content;
    reasoning += d.reasoning;
    for (const ToolDelta& c : d.calls) {
      if (c.index == calls.size()) {
        check(!c.name.empty() && !c.id.empty());
        calls.push_back(c);
      } else {
        check(c.index + 1 == calls.size() && c.name.empty() && c.id.empty());
        calls.back().arguments += c.arguments;
      }
    }
  }
};

// Whether s is in text with other bytes between.
bool is_subsequence(const std::string& s, const std::string& text) {
  size_t at = 0;
  for (char c : text) at += at < s.size() && s[at] == c;
  return at == s.size();
}

// Frequent texts, so that short inputs come far.
constexpr const char* kWords[] = {
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "{\"name\":\"f\",\"arguments\":{",
    "}}",
    "[TOOL_CALLS]",
    "f[ARGS]{",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "[f(a='",
    "')]",
    "```json\n",
    "```tool_code\n",
    "```",
    "<start_function_call>call:f{a:<escape>",
    "<escape>}<end_function_call>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "f<｜tool▁sep｜>{",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<atem:function_calls><atem:invoke name=\"f\">",
    "<atem:parameter name=\"a\">",
    "</atem:parameter>",
    "</atem:invoke></atem:function_calls>",
    "<|start|>assistant to=self<|message|>",
    "<|eom|>",
    "\"a\":\"",
    "\\u00e9",
    "g[ARGS]{",
};
constexpr size_t kWordCount = sizeof(kWords) / sizeof(*kWords);
constexpr uint8_t kFirstWord = 0xff - kWordCount;  // bytes that UTF-8 does not need stand for words

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  OutputForm form;
  form.tools = static_cast<ToolStyle>(data[0] % 9);
  if (data[0] & 0x20) form.think_begin = "<think>", form.think_end = "</think>";
  form.starts_in_thought = (data[0] & 0x40) && (data[0] & 0x20);
  uint32_t random = data[1] + 1;
  std::string text;
  for (size_t i = 2; i < size; ++i) {
    if (data[i] >= kFirstWord && data[i] < kFirstWord + kWordCount) {
      text += kWords[data[i] - kFirstWord];
    } else if (data[i] == 0xff) {
      text.append(output::kHeldArguments, 'x');
    } else {
      text += static_cast<char>(data[i]);
    }
  }
  static const Json tools = Json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"properties":{
      "s":{"type":"string"},"n":{"type":"integer"}}}}},{"function":{"name":"get_time"}}])");
  auto id = [](uint32_t i) { return "call" + std::to_string(i); };

  Answer whole;
  OutputParser one(form, tools, id);
  whole.add(one.push(text));
  whole.add(one.finish());
  check(one.n_calls() == whole.calls.size());

  Answer cut;
  OutputParser many(form, tools, id);
  for (size_t at = 0; at < text.size();) {
    random = random * 1664525 + 1013904223;
    size_t n = std::min<size_t>(text.size() - at, (random >> 24) % 7);
    cut.add(many.push(std::string_view(text).substr(at, n)));
    at += n;
  }
  cut.add(many.finish());
  check(many.finish().empty());
  check(cut.content == whole.content && cut.reasoning == whole.reasoning && cut.calls.size() == whole.calls.size());
  for (size_t i = 0; i < cut.calls.size(); ++i) {
    const ToolDelta& c = whole.calls[i];
    check(c.id == cut.calls[i].id && c.name == cut.calls[i].name && c.arguments == cut.calls[i].arguments);
    check(c.name == "f" || c.name == "get_time");
    check(c.arguments.starts_with('{'));
    bool complete = output::is_json(c.arguments);
    check(complete || c.arguments.size() > output::kHeldArguments);
    if (!complete) continue;
    try {
      check(Json::parse(c.arguments).is_object());
    } catch (const Json::out_of_range&) {  // 1e999 is JSON, but no double
    }
  }
  check(is_subsequence(whole.content, text) && is_subsequence(whole.reasoning, text));
  // Without calls and thoughts nothing may be missing.
  bool structured = form.tools == ToolStyle::atem || !form.think_begin.empty();
  if (!structured && whole.calls.empty()) check(whole.content == text);
  return 0;
}
