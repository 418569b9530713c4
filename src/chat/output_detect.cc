#include "chat/output.h"

namespace argent {
namespace {

struct Sign {
  std::string_view text;
  ToolStyle style;
};

// In this order: templates borrow each other's marks less often than vocabularies keep those of their ancestors.
constexpr Sign kSigns[] = {
    {"<atem:function_calls>", ToolStyle::atem},  {"<｜tool▁calls▁begin｜>", ToolStyle::deepseek},
    {"<start_function_call>", ToolStyle::gemma}, {"<|tool_call>", ToolStyle::gemma},
    {"[TOOL_CALLS]", ToolStyle::mistral},        {"<tool_call>", ToolStyle::hermes},
    {"<|python_start|>", ToolStyle::llama4},     {"<|python_tag|>", ToolStyle::llama3},
    {"<start_of_turn>", ToolStyle::gemma},
};

// Llama 3.2's template has no mark, only these words.
constexpr std::string_view kLlamaWords = "Respond in the format {\"name\": function name, \"parameters\":";

struct Thought {
  std::string_view begin, end;
};
constexpr Thought kThoughts[] = {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"<|channel>thought", "<channel|>"}};

bool is_word_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool has_word(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    bool begins = at == 0 || !is_word_byte(text[at - 1]);
    bool ends = at + word.size() == text.size() || !is_word_byte(text[at + word.size()]);
    if (begins && ends) return true;
  }
  return false;
}

ToolStyle detect_style(std::string_view source, const std::function<bool(std::string_view)>& has_token) {
  auto in_source = [&](std::string_view s) { return source.find(s) != source.npos; };
  for (const Sign& s : kSigns) {
    if (in_source(s.text)) return s.style;
  }
  if (in_source(kLlamaWords)) return ToolStyle::llama3;
  for (const Sign& s : kSigns) {
    if (has_token(s.text)) return s.style;
  }
  return has_word(source, "tools") ? ToolStyle::json : ToolStyle::none;
}

}  // namespace

OutputForm detect_output_form(std::string_view template_source,
                              const std::function<bool(std::string_view)>& has_token) {
  OutputForm form;
  form.tools = detect_style(template_source, has_token);
  if (form.tools == ToolStyle::atem) {
    form.think_begin = " to=self<|message|>";
    form.think_end = "<|eom|>";
    return form;
  }
  for (const Thought& t : kThoughts) {
    // Templates that only cut thoughts out of the history name no more than the end.
    bool shown = template_source.find(t.end) != template_source.npos;
    if (!shown && !(has_token(t.begin) && has_token(t.end))) continue;
    form.think_begin = t.begin;
    form.think_end = t.end;
    break;
  }
  return form;
}

}  // namespace argent
