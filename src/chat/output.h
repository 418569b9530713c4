// What a model's answer is made of: text to show, reasoning, tool calls. Parsers take the text in any pieces and give
// deltas; they never fail, and what is no well-formed call comes back as text.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "chat/template.h"

namespace argent {

// How a model writes its tool calls.
enum class ToolStyle {
  none,      // never: calls stay text
  hermes,    // <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Qwen 2.5 and 3, Hermes)
  llama3,    // {"name": ..., "parameters": {...}} at the start of the answer or behind <|python_tag|>
  mistral,   // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], and [TOOL_CALLS]name[ARGS]{...}
  gemma,     // ```tool_code or ```json fences, what is in them without a fence as the start of the answer, and
             // <start_function_call>call:name{...}<end_function_call>, which Gemma 4 marks with <|tool_call>
  deepseek,  // <｜tool▁calls▁begin｜> ... in full-width bars; arguments bare or in a ```json fence
  llama4,    // <|python_start|>[name(a=1), ...]<|python_end|> and the bare list; objects in their place
  json,      // any JSON object or array of objects with a name and arguments or parameters
  atem,      // Muse Glimmer: messages with recipients (" to=self<|message|>"), <atem:function_calls> with tags inside
};

struct OutputForm {
  ToolStyle tools = ToolStyle::none;
  std::string think_begin, think_end;  // "<think>", "</think>"; empty: no reasoning
  bool starts_in_thought = false;      // the prompt ended with think_begin
};

// What form a model's answers have, from its chat template's source and the texts of its control tokens.
OutputForm detect_output_form(std::string_view template_source, const std::function<bool(std::string_view)>& has_token);

struct ToolDelta {
  uint32_t index = 0;     // of the call in the answer
  std::string id, name;   // in the first delta of a call only
  std::string arguments;  // a piece of the arguments' JSON text
};

struct OutputDelta {
  std::string content, reasoning;
  std::vector<ToolDelta> calls;
  bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
};

// One answer. The concatenation of all deltas depends on the text only, not on how it was cut.
//
// Reasoning: a thought may begin where nothing but white space, another thought or a call came before; elsewhere
// think_begin is text. Newlines around a thought belong to neither side. A thought that is still open at the end of the
// answer is reasoning.
//
// The text has the texts of control tokens in it: most marks are such tokens. An <|eom|> of Muse Glimmer ends a
// message, not the answer.
//
// Calls: a block of calls (one pair of marks, one list) is held until it is complete; then it is calls, and its marks
// are gone. White space alone around calls is no content. A block that is malformed in any way - no JSON, a name that
// is no tool, wrong types, deeper than 64, not closed before the end of the answer - is content, byte for byte, up to
// where it went wrong; what follows is read on from there.
// Arguments that are JSON come through exactly as the model wrote them; other notations are turned into JSON.
// Holding ends early in one case: when the name is known and the arguments have grown beyond 1 KiB of JSON, the block's
// calls are given at once and the rest of the arguments as it comes. If such a block goes wrong after all, the client
// keeps the call with what it was given, perhaps no complete JSON, and gets the whole block as content too: no byte is
// lost.
class OutputParser {
 public:
  // tools: the request's, in OpenAI's form; a call of any other name is text. ids: makes the id of call i.
  OutputParser(const OutputForm& form, const Json& tools, std::function<std::string(uint32_t)> ids);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;

  // Before the first push(): the text that the prompt ends with and the answer goes on from. What begins in it goes on,
  // but it comes in no delta, other than the arguments of a call that is open.
  void go_on_from(std::string_view text);
  OutputDelta push(std::string_view text);
  OutputDelta finish();  // the answer has ended: what was held back
  uint32_t n_calls() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace argent
