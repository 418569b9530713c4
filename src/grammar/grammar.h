// Structured output: which tokens may come next so that the text keeps to a JSON schema, a regular expression, a GBNF
// grammar, a list of choices, or the shape of a tool call. Compiled by xgrammar, which no header names.
//
// A Compiler belongs to a tokenizer; a Compiled is immutable; a Matcher belongs to one sequence. Nothing throws.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace argent {
class Tokenizer;
}

namespace argent::grammar {

// A grammar compiled for one vocabulary. Any number of threads may make matchers of one.
class Compiled {
 public:
  ~Compiled();
  size_t size_bytes() const;  // about

 private:
  friend class Compiler;
  friend class Matcher;
  struct Impl;
  explicit Compiled(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct SchemaOptions {
  // Between the parts of JSON stands nothing, one space, or a line end and up to this many spaces or tabs: models that
  // like white space would else write it for ever. 0: none anywhere.
  int max_indent = 32;
};

// How a model writes tool calls. A mark opens a block of them, which is written in one of several forms: open, one call
// or several with `between` between them, close. A call is name_begin, the tool's name, one of the texts of name_end,
// the arguments as JSON (or as tags), end. In all of these texts a line end stands for white space that may be there
// (as between the parts of JSON), and the texts of control tokens for these tokens.
struct ToolCallStyle {
  // Each argument on its own: begin, its name, middle, its value, end. What the tool's schema says is (or may be) a
  // string stands as it is, up to the first `end`; other values are JSON.
  struct Tags {
    std::string begin, middle, end;
  };
  struct Form {
    std::string open = {};
    std::string name_begin = "\n{\n\"name\"\n:\n\"";
    std::vector<std::string> name_end = {"\"\n,\n\"arguments\"\n:\n"};
    std::string end = "\n}";
    std::string between = {};  // empty: a block has one call
    std::string close = {};
    std::optional<Tags> tags = {};
  };
  std::string mark;
  std::vector<Form> forms;
  std::string between;  // between two blocks
  // What stands before the first mark where an answer has to be calls: these two around the name of a tool.
  std::string lead_begin = {}, lead_end = {};
};

struct Tool {
  std::string name;        // [A-Za-z0-9_.-]+
  std::string parameters;  // a JSON schema; empty: any object
  bool strict = true;      // false: parameters that can not be enforced are any object
};

class Compiler {
 public:
  struct Limits {
    size_t cache_bytes = 256u << 20;
    int cache_count = 256;
  };
  // n_vocab: how many logits the model has; ids that the tokenizer has no token for are never allowed. At least the
  // tokenizer's. About 20 ms for 50,000 tokens.
  static Result<std::shared_ptr<Compiler>> make(const Tokenizer& tokenizer, int n_vocab, Limits limits);
  static Result<std::shared_ptr<Compiler>> make(const Tokenizer& tokenizer, int n_vocab) {
    return make(tokenizer, n_vocab, Limits{});
  }
  // From the bytes of each token (empty: never allowed, but for the end ids) and the ids that end a text.
  static Result<std::shared_ptr<Compiler>> make(const std::vector<std::string>& tokens,
                                                std::span<const int32_t> end_ids, int n_vocab, Limits limits);
  ~Compiler();

  // All of these compile on the calling thread, once for each text while it stays in the cache; two threads that want
  // the same at once may both compile. Code::invalid for what is malformed or can not be satisfied, Code::unsupported
  // for what is legal and can not be enforced: the message then begins with the path or the place ("#/properties/x:
  // ...", "line 2, column 7: ...", "regular expression, character 3: ..."). schema.h lists what schemas may have.
  using Answer = Result<std::shared_ptr<const Compiled>>;
  Answer json_schema(std::string_view schema, const SchemaOptions& options = {});  // 1 MB, nested 64 deep
  Answer json_object(const SchemaOptions& options = {});                           // {"type": "json_object"}
  Answer regex(std::string_view pattern);                                          // the whole text matches; regex.h
  Answer gbnf(std::string_view grammar);                                           // 256 kB; gbnf.h
  Answer choice(std::span<const std::string> choices);                             // one of these texts
  // 1 to max_calls calls and nothing else, from the first mark on.
  Answer tool_calls(std::span<const Tool> tools, const ToolCallStyle& style, int max_calls,
                    const SchemaOptions& options = {});
  // What may stand behind a mark that was written: the rest of the block. White space may follow, so that a token may
  // have the block's end and some of that in it: is_complete() from the block's end on.
  Answer tool_block(std::span<const Tool> tools, const ToolCallStyle& style, int max_calls,
                    const SchemaOptions& options = {});

  int n_vocab() const;
  size_t cached_bytes() const;
  int cached_count() const;

 private:
  Answer calls(std::span<const Tool> tools, const ToolCallStyle& style, int max_calls, const SchemaOptions& options,
               bool behind_mark);
  struct Impl;
  explicit Compiler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Where one sequence stands in its grammar. Not for several threads at once.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Compiled> compiled);
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;
  ~Matcher();

  // Words of 32 ids, the lowest bit first, (n_vocab + 31) / 32 of them; 1: may come next. All of them are written. An
  // end id is allowed where the text is complete. False when nothing may come: after an end id, or where the vocabulary
  // lacks the bytes to go on.
  bool fill_mask(std::span<uint32_t> mask);
  static size_t mask_words(int n_vocab) { return (static_cast<size_t>(n_vocab) + 31) / 32; }

  bool accept(int32_t token);  // false, and nothing changes, if the token may not come here
  // The same of a text that came without being a token: one step of rollback.
  bool accept_text(std::string_view text);
  // Takes back the last n accepted tokens or texts; at most n_accepted.
  bool rollback(int n);
  int n_accepted() const;
  Matcher fork() const;
  bool is_complete() const;   // the text so far is one of the grammar's (more may be too)
  bool is_ended() const;      // an end id was accepted
  std::string forced_text();  // what must come next whatever the model says; often empty

 private:
  struct Impl;
  explicit Matcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace argent::grammar
