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
  llama3,    // {"name": ..., "parameters": {...}} as the whole answer, perhaps behind <|python_tag|>
  mistral,   // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], and [TOOL_CALLS]name[ARGS]{...}
  gemma,     // ```tool_code or ```json fences, and <start_function_call>call:name{...}<end_function_call>
  deepseek,  // <|tool calls begin|> ... in full-width bars
  llama4,    // <|python_start|>[name(a=1), ...]<|python_end|> and the bare list (Llama 4, Muse Glimmer)
  json,      // any JSON object or array of objects with a name and arguments or parameters
};

struct OutputForm {
  ToolStyle tools = ToolStyle::none;
  std::string think_begin, think_end;  // "<think>", "</think>"; empty: no reasoning
  bool starts_in_thought = false;      // the prompt ended with think_begin
};

// What form a model's answers have, from its chat template's source and the texts of its control tokens.
OutputForm detect_output_form(std::string_view template_source,
                              const std::function<bool(std::string_view)>& has_token);

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
class OutputParser {
 public:
  // tools: the request's, in OpenAI's form; a call of any other name is text. ids: makes the id of call i.
  OutputParser(const OutputForm& form, const Json& tools, std::function<std::string(uint32_t)> ids);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;

  OutputDelta push(std::string_view text);
  OutputDelta finish();  // the answer has ended: what was held back
  uint32_t n_calls() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace argent
