// Jinja templates as chat templates use them: the language, filters, tests and methods of jinja2 in the environment
// that Hugging Face transformers sets up (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, the generation
// tag, a plain tojson). What renders here renders to the same bytes there; what is not supported is an error when the
// template is parsed, never a silent difference.
//
// Every byte of the result knows where it came from: written by the template, or taken from the input (messages, tools,
// variables). Only the template's bytes may become control tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace argent {

// What one template may use. A template comes with a model file, so it is as hostile as the file.
struct TemplateLimits {
  size_t source_bytes = 1 << 20;  // length of the template itself
  uint32_t nesting = 100;         // parser: blocks in blocks, parentheses in parentheses, and chains of operators
  uint64_t steps = 20'000'000;    // nodes evaluated, items visited, and one more for each 64 bytes copied
  uint32_t depth = 400;        // evaluator: nodes inside nodes, through macro calls too (each takes < 1 KiB of stack)
  uint32_t value_depth = 200;  // lists in lists, dicts in dicts
  size_t memory_bytes = 256u << 20;  // strings and containers alive at one time
  size_t output_bytes = 64u << 20;   // the rendered text
  int64_t range_items = 100'000;     // range(): the bound of jinja2's sandbox
};

// Bytes [begin, end) of the text. Spans cover the text without gaps and neighbours differ in from_template.
struct Span {
  size_t begin = 0;
  size_t end = 0;
  bool from_template = false;
  bool operator==(const Span&) const = default;
};

struct Rendered {
  std::string text;
  std::vector<Span> spans;
};

struct RenderOptions {
  TemplateLimits limits;
  // Names of context variables whose strings count as the template's own (the engine sets them, not the user).
  std::vector<std::string> trusted_variables = {"bos_token", "eos_token", "unk_token", "pad_token",
                                                "sep_token", "cls_token", "mask_token"};
  // `messages[i].role` counts as the template's own when it is one of these: '<|' + role + '|>' is a usual way to write
  // a control token. Any other role is input.
  std::vector<std::string> trusted_roles = {"system",    "user",     "assistant", "tool",
                                            "developer", "function", "ipython",   "model"};
  std::function<std::tm()> now;  // for strftime_now; empty: local time
};

class Template {
 public:
  // Errors read "name:line:column: what"; lines and columns count from 1, columns in code points.
  static Result<Template> parse(std::string source, std::string name, const TemplateLimits& limits = {});

  // context is an object of top-level variables. Code::invalid for everything the template or the context causes; the
  // message carries the position, and the template's own words where it calls raise_exception.
  Result<Rendered> render(const Json& context, const RenderOptions& options = {}) const;

  // Whether the text of the template reads this top-level variable anywhere ("tools", "enable_thinking", ...).
  bool reads(std::string_view variable) const;
  const std::string& source() const;
  const std::string& name() const;

  struct Parsed;

 private:
  explicit Template(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace argent
