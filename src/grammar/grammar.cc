#include "grammar/grammar.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <unordered_map>

#include "grammar/gbnf.h"
#include "grammar/regex.h"
#include "grammar/schema.h"
#include "grammar/tool_calls.h"
#include "tokenizer/tokenizer.h"

namespace argent::grammar {

namespace {

// What every token of a vocabulary may be to a matcher.
enum class Role : uint8_t { none, text, end };

constexpr size_t kMaxMessage = 400;
// What control tokens are to xgrammar: bytes that no text has. It takes tokens without bytes nowhere, not even where a
// grammar asks for them by id.
constexpr const char* kNoText = "\xff";

// xgrammar reports errors by exceptions; none leaves this file. The message is its last line without the place in its
// source.
std::string one_line(const char* what) {
  std::string text = what;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (const size_t line = text.rfind('\n'); line != std::string::npos) text = text.substr(line + 1);
  return text;
}

struct Vocabulary {
  xgrammar::TokenizerInfo info{xgrammar::NullObj{}};
  std::vector<Role> roles;
  ControlTokens control;
  int n_vocab = 0;
};

}  // namespace

struct Compiled::Impl {
  xgrammar::CompiledGrammar grammar;
  std::shared_ptr<const Vocabulary> vocabulary;
  size_t bytes;
};

Compiled::Compiled(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Compiled::~Compiled() = default;
size_t Compiled::size_bytes() const { return impl_->bytes; }

struct Compiler::Impl {
  std::shared_ptr<const Vocabulary> vocabulary;
  xgrammar::GrammarCompiler compiler{xgrammar::NullObj{}};
  Limits limits;

  using Entry = std::pair<std::string, std::shared_ptr<const Compiled>>;
  mutable std::mutex mutex;                                                 // of what follows
  std::list<Entry> recent;                                                  // the last used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key;  // keys are the list's
  size_t bytes = 0;

  std::shared_ptr<const Compiled> find(const std::string& key) {
    const std::lock_guard lock(mutex);
    const auto it = by_key.find(key);
    if (it == by_key.end()) return nullptr;
    recent.splice(recent.begin(), recent, it->second);
    return it->second->second;
  }

  void keep(std::string key, std::shared_ptr<const Compiled> compiled) {
    const std::lock_guard lock(mutex);
    const size_t size = compiled->size_bytes() + key.size();
    if (size > limits.cache_bytes || limits.cache_count <= 0 || by_key.contains(key)) return;
    recent.emplace_front(std::move(key), std::move(compiled));
    by_key[recent.front().first] = recent.begin();
    bytes += size;
    while (bytes > limits.cache_bytes || static_cast<int>(recent.size()) > limits.cache_count) {
      const Entry& last = recent.back();
      bytes -= last.second->size_bytes() + last.first.size();
      by_key.erase(last.first);
      recent.pop_back();
    }
  }

  // What is cached under `key`, or else what `write` gives: rules and their root. Names of the input stand in messages,
  // so these are cut and made one line here.
  template <class Write>
  Answer compiled(std::string key, Write write) {
    if (auto known = find(key)) return known;
    Answer out = compile(std::move(key), write);
    if (out) return out;
    std::string message = out.error().message.substr(0, kMaxMessage);
    for (char& c : message)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    std::string whole;
    take_complete_utf8(message, whole);
    return Error{out.error().code, std::move(whole)};
  }

  template <class Write>
  Answer compile(std::string key, Write write) {
    try {
      Rules rules;
      ARGENT_LET(const RuleId root, write(rules));
      ARGENT_LET(const std::string text, rules.text(root));
      auto grammar = compiler.CompileGrammar(text);
      const size_t size = grammar.MemorySizeBytes();
      auto out = std::shared_ptr<const Compiled>(
          new Compiled(std::make_unique<Compiled::Impl>(Compiled::Impl{std::move(grammar), vocabulary, size})));
      keep(std::move(key), out);
      return out;
    } catch (const std::bad_alloc&) {
      return fail(Code::out_of_memory, "the grammar does not fit into memory");
    } catch (const std::exception& e) {
      return fail(Code::invalid, "the grammar does not compile: {}", one_line(e.what()));
    }
  }
};

Compiler::Compiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Compiler::~Compiler() = default;
int Compiler::n_vocab() const { return impl_->vocabulary->n_vocab; }

size_t Compiler::cached_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->bytes;
}

int Compiler::cached_count() const {
  const std::lock_guard lock(impl_->mutex);
  return static_cast<int>(impl_->recent.size());
}

namespace {

Result<std::shared_ptr<Vocabulary>> make_vocabulary(std::vector<std::string> tokens, std::span<const int32_t> end_ids,
                                                    int n_vocab) {
  if (n_vocab < static_cast<int>(tokens.size()))
    return fail(Code::invalid, "the model has {} logits, its tokenizer {} tokens", n_vocab, tokens.size());
  auto out = std::make_shared<Vocabulary>();
  out->n_vocab = n_vocab;
  out->roles.assign(n_vocab, Role::none);
  for (size_t i = 0; i < tokens.size(); i++)
    if (!tokens[i].empty()) out->roles[i] = Role::text;
  std::vector<int32_t> ends;
  for (int32_t id : end_ids) {
    if (id < 0 || id >= static_cast<int>(tokens.size())) continue;
    out->roles[id] = Role::end;
    tokens[id].clear();
    ends.push_back(id);
  }
  try {
    out->info = xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, n_vocab, ends, false);
  } catch (const std::exception& e) {
    return fail(Code::internal, "the vocabulary is not usable for grammars: {}", one_line(e.what()));
  }
  return out;
}

}  // namespace

Result<std::shared_ptr<Compiler>> Compiler::make(const std::vector<std::string>& tokens,
                                                 std::span<const int32_t> end_ids, int n_vocab, Limits limits) {
  ARGENT_LET(std::shared_ptr<Vocabulary> vocabulary, make_vocabulary(tokens, end_ids, n_vocab));
  auto impl = std::make_unique<Impl>();
  impl->compiler = xgrammar::GrammarCompiler(vocabulary->info, /*max_threads=*/1, /*cache_enabled=*/false);
  impl->vocabulary = std::move(vocabulary);
  impl->limits = limits;
  return std::shared_ptr<Compiler>(new Compiler(std::move(impl)));
}

Result<std::shared_ptr<Compiler>> Compiler::make(const Tokenizer& tokenizer, int n_vocab, Limits limits) {
  std::vector<std::string> tokens(tokenizer.n_vocab());
  ControlTokens control;
  for (int id = 0; id < tokenizer.n_vocab(); id++) {
    if (tokenizer.is_control(id)) {
      if (tokenizer.is_end(id)) continue;
      std::string text;
      tokenizer.append_bytes(id, text, true);
      if (!text.empty()) control.emplace(std::move(text), id);
      tokens[id] = kNoText;
    } else if (tokenizer.type(id) != TokenType::unused) {
      tokenizer.append_bytes(id, tokens[id], false);
    }
  }
  ARGENT_LET(std::shared_ptr<Compiler> out, make(tokens, tokenizer.end_ids(), n_vocab, limits));
  std::const_pointer_cast<Vocabulary>(out->impl_->vocabulary)->control = std::move(control);
  return out;
}

Compiler::Answer Compiler::json_schema(std::string_view schema, const SchemaOptions& options) {
  return impl_->compiled(fmt::format("schema {} {}", options.max_indent, schema), [&](Rules& rules) -> Result<RuleId> {
    ARGENT_LET(const Json document, parse_schema(schema));
    ARGENT_LET(const Expr e, SchemaRules(rules, document, options).lower());
    return rules.add("#", e);
  });
}

Compiler::Answer Compiler::json_object(const SchemaOptions& options) {
  return json_schema(R"({"type":"object"})", options);
}

Compiler::Answer Compiler::regex(std::string_view pattern) {
  return impl_->compiled(fmt::format("regex {}", pattern), [&](Rules& rules) -> Result<RuleId> {
    ARGENT_LET(const Regex regex, Regex::parse(pattern));
    return rules.add("regular expression", regex.full(rules, Regex::Spelling::text));
  });
}

Compiler::Answer Compiler::gbnf(std::string_view grammar) {
  return impl_->compiled(fmt::format("gbnf {}", grammar), [&](Rules& rules) { return parse_gbnf(grammar, rules); });
}

Compiler::Answer Compiler::choice(std::span<const std::string> choices) {
  std::string key = "choice";
  for (const std::string& c : choices) key += fmt::format(" {} {}", c.size(), c);
  return impl_->compiled(std::move(key), [&](Rules& rules) -> Result<RuleId> {
    if (choices.empty()) return fail(Code::invalid, "a choice wants at least one text");
    std::vector<Expr> texts;
    for (size_t i = 0; i < choices.size(); i++) {
      std::vector<uint32_t> chars;
      if (choices[i].empty() || !decode_utf8(choices[i], chars) || choices[i].find('\0') != std::string::npos)
        return fail(Code::invalid, "choice {} is empty, not UTF-8, or has a NUL in it", i);
      texts.push_back(rules.literal(choices[i]));
    }
    return rules.add("choice", rules.alt(std::move(texts)));
  });
}

Compiler::Answer Compiler::tool_calls(std::span<const Tool> tools, const ToolCallStyle& style, int max_calls,
                                      const SchemaOptions& options) {
  return calls(tools, style, max_calls, options, false);
}

Compiler::Answer Compiler::tool_block(std::span<const Tool> tools, const ToolCallStyle& style, int max_calls,
                                      const SchemaOptions& options) {
  return calls(tools, style, max_calls, options, true);
}

Compiler::Answer Compiler::calls(std::span<const Tool> tools, const ToolCallStyle& style, int max_calls,
                                 const SchemaOptions& options, bool behind_mark) {
  std::string key = fmt::format("tools {} {} {}", options.max_indent, max_calls, behind_mark);
  const auto add_key = [&](const std::string& text) { key += fmt::format(" {} {}", text.size(), text); };
  if (!behind_mark)
    for (const std::string* text : {&style.mark, &style.between, &style.lead_begin, &style.lead_end}) add_key(*text);
  for (const ToolCallStyle::Form& form : style.forms) {
    for (const std::string* text : {&form.open, &form.name_begin, &form.end, &form.between, &form.close})
      add_key(*text);
    key += fmt::format(" {}", form.name_end.size());
    for (const std::string& text : form.name_end) add_key(text);
    if (form.tags)
      for (const std::string* text : {&form.tags->begin, &form.tags->middle, &form.tags->end}) add_key(*text);
  }
  for (const Tool& tool : tools) add_key(tool.name), add_key(tool.parameters), key += tool.strict ? '!' : '?';
  return impl_->compiled(std::move(key), [&](Rules& rules) -> Result<RuleId> {
    if (tools.empty()) return fail(Code::invalid, "a tool call wants at least one tool");
    if (max_calls < 1 || max_calls > kMaxRepeat) return fail(Code::invalid, "{} tool calls", max_calls);
    return ToolCallRules(rules, style, impl_->vocabulary->control, options).lower(tools, max_calls, behind_mark);
  });
}

struct Matcher::Impl {
  std::shared_ptr<const Compiled> compiled;
  xgrammar::GrammarMatcher matcher;
  int n_accepted = 0;

  const Vocabulary& vocabulary() const { return *compiled->impl_->vocabulary; }
};

Matcher::Matcher(std::shared_ptr<const Compiled> compiled) {
  xgrammar::GrammarMatcher matcher(compiled->impl_->grammar);
  impl_ = std::make_unique<Impl>(Impl{std::move(compiled), std::move(matcher)});
}
Matcher::Matcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

bool Matcher::fill_mask(std::span<uint32_t> mask) {
  const int n_vocab = impl_->vocabulary().n_vocab;
  const size_t words = mask_words(n_vocab);
  if (mask.size() < words) return false;
  mask = mask.first(words);
  std::fill(mask.begin(), mask.end(), 0);
  if (is_ended()) return false;
  int64_t shape[1] = {static_cast<int64_t>(words)}, strides[1] = {1};
  DLTensor tensor{};
  tensor.data = mask.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = {kDLInt, 32, 1};
  tensor.shape = shape;
  tensor.strides = strides;
  try {
    if (!impl_->matcher.FillNextTokenBitmask(&tensor)) std::fill(mask.begin(), mask.end(), ~0u);  // all of them
  } catch (const std::exception&) {
    std::fill(mask.begin(), mask.end(), 0);
    return false;
  }
  if (n_vocab % 32 != 0) mask.back() &= (1u << (n_vocab % 32)) - 1;
  return std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
}

bool Matcher::accept(int32_t token) {
  // What xgrammar would complain of on stderr is answered here.
  if (token < 0 || token >= impl_->vocabulary().n_vocab || is_ended()) return false;
  if (impl_->vocabulary().roles[token] == Role::none) return false;
  try {
    if (!impl_->matcher.AcceptToken(token)) return false;
  } catch (const std::exception&) {
    return false;
  }
  impl_->n_accepted++;
  return true;
}

bool Matcher::accept_text(std::string_view text) {
  if (is_ended()) return false;
  try {
    if (!impl_->matcher.AcceptString(std::string(text))) return false;
  } catch (const std::exception&) {
    return false;
  }
  impl_->n_accepted++;
  return true;
}

bool Matcher::rollback(int n) {
  if (n < 0 || n > impl_->n_accepted) return false;
  if (n == 0) return true;
  try {
    impl_->matcher.Rollback(n);
  } catch (const std::exception&) {
    return false;
  }
  impl_->n_accepted -= n;
  return true;
}

int Matcher::n_accepted() const { return impl_->n_accepted; }

Matcher Matcher::fork() const {
  return Matcher(std::make_unique<Impl>(Impl{impl_->compiled, impl_->matcher.Fork(), impl_->n_accepted}));
}

bool Matcher::is_complete() const { return impl_->matcher.IsCompleted() || impl_->matcher.IsTerminated(); }
bool Matcher::is_ended() const { return impl_->matcher.IsTerminated(); }

std::string Matcher::forced_text() {
  if (is_ended()) return {};
  try {
    return impl_->matcher.FindJumpForwardString();
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace argent::grammar
