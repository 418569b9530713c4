#include "tokenizer/vocab.h"

#include <cmath>

#include "gguf/gguf.h"
#include "tokenizer/pretokenizer.h"

namespace argent {
namespace {

using gguf::File;
using gguf::Value;

constexpr std::string_view kPrefix = "tokenizer.ggml.";

Error wrong(const File& file, std::string_view key, const Value* seen, std::string_view wanted) {
  return fail(Code::invalid, "{}: key '{}{}' is {}, wanted {}", file.path(), kPrefix, key,
              seen ? seen->describe() : "missing", wanted);
}

const Value* find(const File& file, std::string_view key) { return file.find(std::string(kPrefix).append(key)); }

Status read_strings(const File& file, std::string_view key, std::vector<std::string_view>& out) {
  const Value* value = find(file, key);
  if (!value || !value->is_array_of(gguf::Type::string)) return wrong(file, key, value, "an array of strings");
  out.resize(value->size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = value->string_at(i);
  return {};
}

Status read_types(const File& file, Vocab& vocab) {
  vocab.types.assign(vocab.tokens.size(), TokenType::normal);
  const Value* value = find(file, "token_type");
  if (!value) return {};
  if (!value->is_array() || !gguf::is_integer(value->element_type()) || value->size() != vocab.tokens.size())
    return wrong(file, "token_type", value, fmt::format("an array of {} integers", vocab.tokens.size()));
  for (size_t i = 0; i < vocab.types.size(); ++i) {
    const int64_t type = value->int_at(i);
    vocab.types[i] = type >= 0 && type <= int64_t(TokenType::byte) ? TokenType(type) : TokenType::undefined;
  }
  return {};
}

// SentencePiece without scores is a broken file: all merges would tie.
Status read_scores(const File& file, Vocab& vocab) {
  const Value* value = find(file, "scores");
  if (!value || !value->is_array() ||
      !(gguf::is_float(value->element_type()) || gguf::is_integer(value->element_type())) ||
      value->size() != vocab.tokens.size())
    return wrong(file, "scores", value, fmt::format("an array of {} floats", vocab.tokens.size()));
  vocab.scores.resize(vocab.tokens.size());
  for (size_t i = 0; i < vocab.scores.size(); ++i) {
    vocab.scores[i] = float(value->float_at(i));
    if (!std::isfinite(vocab.scores[i]))
      return fail(Code::invalid, "{}: key '{}scores'[{}] is {}, wanted a finite number", file.path(), kPrefix, i,
                  vocab.scores[i]);
  }
  return {};
}

Status read_merges(const File& file, Vocab& vocab) {
  ARGENT_TRY(read_strings(file, "merges", vocab.merges));
  for (size_t i = 0; i < vocab.merges.size(); ++i) {
    // A part may be a space of its own only where the vocabulary is not byte-level, so the first space divides.
    const size_t space = vocab.merges[i].find(' ', 1);
    if (space == std::string_view::npos || space + 1 == vocab.merges[i].size())
      return fail(Code::invalid, "{}: key '{}merges'[{}] is {}, wanted two tokens with a space between", file.path(),
                  kPrefix, i, gguf::quote(vocab.merges[i]));
  }
  return {};
}

Status read_id(const File& file, std::string_view key, size_t n_vocab, std::optional<uint32_t>& out) {
  const Value* value = find(file, key);
  if (!value) return {};
  const auto id = value->as_int();
  // -1 is how some converters write "none".
  if (id == -1) return {};
  const auto unsigned_none = value->as_uint();
  if (unsigned_none == UINT32_MAX) return {};
  if (!id || *id < 0 || *id >= int64_t(n_vocab))
    return wrong(file, key, value, fmt::format("the id of one of {} tokens", n_vocab));
  out = uint32_t(*id);
  return {};
}

Status read_flag(const File& file, std::string_view key, std::optional<bool>& out) {
  const Value* value = find(file, key);
  if (!value) return {};
  out = value->as_bool();
  if (!out) return wrong(file, key, value, "a bool");
  return {};
}

}  // namespace

Result<std::optional<Vocab>> Vocab::load(const File& file) {
  Vocab vocab;
  const Value* model = find(file, "model");
  if (!model && !find(file, "tokens")) return std::optional<Vocab>();
  if (!model || !model->as_string()) return wrong(file, "model", model, "a string");
  vocab.model = *model->as_string();
  if (vocab.model == "none" || vocab.model == "no_vocab") return std::optional<Vocab>();
  const bool bpe = vocab.model == "gpt2";
  if (!bpe && vocab.model != "llama")
    return fail(Code::unsupported, "{}: tokenizer model {} is not supported; supported are 'gpt2', 'llama' and 'none'",
                file.path(), gguf::quote(vocab.model));

  const Value* pre = find(file, "pre");
  if (pre && !pre->as_string()) return wrong(file, "pre", pre, "a string");
  vocab.pre = pre && !pre->as_string()->empty() ? *pre->as_string() : "default";
  if (bpe && !Pretokenizer::find(vocab.pre))
    return fail(Code::unsupported, "{}: pre-tokenizer {} is not supported; supported are {}", file.path(),
                gguf::quote(vocab.pre), Pretokenizer::names());

  if (const Value* name = file.find("general.name")) vocab.model_name = name->as_string().value_or("");
  ARGENT_TRY(read_strings(file, "tokens", vocab.tokens));
  const size_t n = vocab.tokens.size();
  if (n == 0) return wrong(file, "tokens", find(file, "tokens"), "at least one token");
  ARGENT_TRY(read_types(file, vocab));
  if (bpe) {
    ARGENT_TRY(read_merges(file, vocab));
  } else {
    ARGENT_TRY(read_scores(file, vocab));
  }
  const std::pair<std::string_view, std::optional<uint32_t>*> ids[] = {
      {"bos_token_id", &vocab.bos},         {"eos_token_id", &vocab.eos},         {"eot_token_id", &vocab.eot},
      {"eom_token_id", &vocab.eom},         {"unknown_token_id", &vocab.unk},     {"prefix_token_id", &vocab.fim_pre},
      {"suffix_token_id", &vocab.fim_suf},  {"middle_token_id", &vocab.fim_mid},  {"fim_pre_token_id", &vocab.fim_pre},
      {"fim_suf_token_id", &vocab.fim_suf}, {"fim_mid_token_id", &vocab.fim_mid}, {"fim_pad_token_id", &vocab.fim_pad},
      {"fim_rep_token_id", &vocab.fim_rep}, {"fim_sep_token_id", &vocab.fim_sep}};
  for (const auto& [key, id] : ids) ARGENT_TRY(read_id(file, key, n, *id));
  ARGENT_TRY(read_flag(file, "add_bos_token", vocab.add_bos));
  ARGENT_TRY(read_flag(file, "add_eos_token", vocab.add_eos));
  ARGENT_TRY(read_flag(file, "add_space_prefix", vocab.add_space_prefix));

  // Old SentencePiece files do not carry what was the same in all of them.
  if (!bpe) {
    if (!vocab.unk && vocab.types[0] == TokenType::unknown) vocab.unk = 0;
    if (!vocab.bos && n > 1 && vocab.types[1] == TokenType::control) vocab.bos = 1;
    if (!vocab.eos && n > 2 && vocab.types[2] == TokenType::control) vocab.eos = 2;
  }
  if (vocab.add_bos == true && !vocab.bos)
    return wrong(file, "bos_token_id", nullptr, "an id, as add_bos_token is true");
  if (vocab.add_eos == true && !vocab.eos)
    return wrong(file, "eos_token_id", nullptr, "an id, as add_eos_token is true");
  return std::optional<Vocab>(std::move(vocab));
}

}  // namespace argent
