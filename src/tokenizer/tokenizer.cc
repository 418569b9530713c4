#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "tokenizer/bpe.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/specials.h"
#include "tokenizer/spm.h"
#include "tokenizer/unicode.h"

namespace argent {
namespace {

// Texts that end a generation whatever type the file gives them.
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<|return|>",
                                          "<|call|>",
                                          "<|flush|>",
                                          "<|calls|>",
                                          "<end_of_turn>",
                                          "<|endoftext|>",
                                          "<|eom_id|>",
                                          "<EOT>",
                                          "_<EOT>",
                                          "[EOT]",
                                          "[EOS]",
                                          "<|end_of_text|>",
                                          "<end_of_utterance>",
                                          "<eos>",
                                          "<turn|>",
                                          "<|tool_response>",
                                          "<｜end▁of▁sentence｜>",
                                          "[e~["};

// Texts that do so where the file has them as control tokens. In Gemma 3 "</s>" is an HTML tag.
constexpr std::string_view kEndTextsOfControl[] = {"</s>", "<|eot|>", "<|end_of_turn|>"};

// Texts of the fill-in-the-middle tokens: of each row, the one with the lowest id counts where the file has no key. The
// last three rows also end a generation.
constexpr std::array<std::string_view, 8> kFimTexts[] = {
    {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
     "<|prefix|>"},
    {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
     "<|suffix|>"},
    {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
     "<|middle|>"},
    {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
    {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
    {"<|file_sep|>"},
};
constexpr size_t kFirstFimEnd = 3;

// Positions are 32-bit. Longer text is encoded in pieces of this size, as if it had been given in that many calls.
constexpr size_t kMaxText = size_t(1) << 30;

}  // namespace

struct Tokenizer::Impl {
  std::string model, pre;
  TextPool texts;
  TextIndex index;
  std::vector<TokenType> types;
  std::optional<int32_t> bos, eos, eot;
  Fim fim;
  bool bpe = false, add_bos = false, add_eos = false, add_space_prefix = false;
  std::vector<int32_t> end_ids;
  std::vector<bool> strips_right;  // by id, empty if no token does: white space behind it is not tokenized

  Specials specials;
  Pretokenizer pretokenizer;
  Bpe merges;
  Spm spm;

  void find_special_ids(const Vocab& vocab);
  void find_strips_right(const Vocab& vocab);
  void build_specials(const std::vector<bool>& plain_hidden);
  void build_bpe(const Vocab& vocab);
  void build_spm(const Vocab& vocab);

  struct Scratch {
    std::vector<uint32_t> ends;
    MergeScratch merge;
  };
  std::vector<int32_t> encode(std::string_view text, std::span<const std::pair<uint32_t, uint32_t>> plain,
                              bool add_bos_eos) const;
  void encode_raw(std::string_view text, bool after_special, std::vector<int32_t>& ids, Scratch& scratch) const;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const gguf::File& file) {
  ARGENT_LET(auto vocab, Vocab::load(file));
  if (!vocab) return std::shared_ptr<const Tokenizer>();
  return make(*vocab);
}

std::shared_ptr<const Tokenizer> Tokenizer::make(const Vocab& vocab) {
  auto impl = std::make_unique<Impl>();
  impl->model = vocab.model;
  impl->bpe = vocab.model == "gpt2";
  size_t n_bytes = 0;
  for (const auto text : vocab.tokens) n_bytes += text.size();
  impl->texts.reserve(vocab.tokens.size(), n_bytes);
  for (const auto text : vocab.tokens) impl->texts.add(text);
  impl->index.build(impl->texts);
  impl->types = vocab.types;
  if (impl->bpe) {
    impl->pre = vocab.pre;
    impl->pretokenizer = Pretokenizer::find(vocab.pre).value_or(Pretokenizer{});
  }
  impl->add_bos = vocab.add_bos.value_or(impl->bpe ? impl->pretokenizer.add_bos : true) && vocab.bos;
  impl->add_eos = vocab.add_eos.value_or(false) && vocab.eos;
  impl->add_space_prefix = !impl->bpe && vocab.add_space_prefix.value_or(true);
  impl->find_special_ids(vocab);
  if (impl->bpe) {
    impl->build_bpe(vocab);
  } else {
    impl->build_spm(vocab);
  }
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

void Tokenizer::Impl::find_special_ids(const Vocab& vocab) {
  auto as_id = [](std::optional<uint32_t> id) { return id ? std::optional(int32_t(*id)) : std::nullopt; };
  bos = as_id(vocab.bos);
  eos = as_id(vocab.eos);
  eot = as_id(vocab.eot);
  auto end = [&](int32_t id) { end_ids.push_back(id); };
  for (const auto id : {vocab.eos, vocab.eot, vocab.eom})
    if (id) end(int32_t(*id));
  for (const auto text : kEndTexts) {
    const int32_t id = index.find(text);
    if (id < 0) continue;
    types[id] = TokenType::control;
    end(id);
  }
  const std::optional<uint32_t> fim_keys[] = {vocab.fim_pre, vocab.fim_suf, vocab.fim_mid,
                                              vocab.fim_pad, vocab.fim_rep, vocab.fim_sep};
  std::optional<int32_t>* const fim_ids[] = {&fim.prefix, &fim.suffix,     &fim.middle,
                                             &fim.pad,    &fim.repository, &fim.separator};
  for (size_t row = 0; row < std::size(kFimTexts); ++row) {
    std::optional<int32_t> id = as_id(fim_keys[row]);
    if (!id) {
      for (const auto text : kFimTexts[row])
        if (const int32_t found = index.find(text); found >= 0) id = std::min(id.value_or(found), found);
      if (id) types[*id] = TokenType::control;
    }
    *fim_ids[row] = id;
    if (id && row >= kFirstFimEnd) end(*id);
  }

  for (const auto text : kEndTextsOfControl)
    if (const int32_t id = index.find(text); id >= 0 && types[id] == TokenType::control) end(id);
  // llama.cpp keeps "</s>" from being recognised in plain text even where it is user-defined.
  std::vector<bool> hidden(types.size());
  if (const int32_t id = index.find("</s>"); id >= 0) hidden[id] = true;
  // With <|return|> and <|call|>, or <|calls|> and <|flush|>, <|end|> only ends a message of several.
  auto has = [&](std::string_view text) { return index.find(text) >= 0; };
  const bool many = (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>"));
  if (const int32_t id = index.find("<|end|>"); many && id >= 0 && eos != id && eot != id)
    end_ids.erase(std::remove(end_ids.begin(), end_ids.end(), id), end_ids.end());

  std::sort(end_ids.begin(), end_ids.end());
  end_ids.erase(std::unique(end_ids.begin(), end_ids.end()), end_ids.end());
  if (!eot)
    for (const auto text : {"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|eot|>", "<|end|>"})
      if (const int32_t id = index.find(text); id >= 0 && !eot) eot = id;
  build_specials(hidden);
  find_strips_right(vocab);
}

// Phi-3's tokenizer takes away white space behind its special tokens; the files do not say so, only the name does.
void Tokenizer::Impl::find_strips_right(const Vocab& vocab) {
  std::string name(vocab.model_name);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  if (name.find("phi-3") == std::string::npos && name.find("phi3") == std::string::npos) return;
  strips_right.resize(types.size());
  for (size_t id = 0; id < types.size(); ++id)
    strips_right[id] = types[id] == TokenType::control || types[id] == TokenType::user_defined;
  for (const auto text : {"<unk>", "<s>", "<|endoftext|>"})
    if (const int32_t id = index.find(text); id >= 0) strips_right[id] = false;
}

void Tokenizer::Impl::build_specials(const std::vector<bool>& plain_hidden) {
  std::vector<Specials::Token> tokens;
  for (size_t id = 0; id < types.size(); ++id) {
    const bool control = types[id] == TokenType::control || types[id] == TokenType::unknown;
    if ((control || types[id] == TokenType::user_defined) && !texts[id].empty())
      tokens.push_back({texts[id], int32_t(id), control || plain_hidden[id]});
  }
  specials.build(tokens);
}

void Tokenizer::Impl::build_bpe(const Vocab& vocab) {
  std::vector<Bpe::Merge> pairs;
  pairs.reserve(vocab.merges.size());
  for (const auto merge : vocab.merges) {
    const size_t space = merge.find(' ', 1);
    if (space != std::string_view::npos) pairs.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  merges.build(texts, index, pairs);
}

void Tokenizer::Impl::build_spm(const Vocab& vocab) {
  std::vector<bool> mergeable(types.size());
  for (size_t id = 0; id < types.size(); ++id)
    mergeable[id] = types[id] != TokenType::control && types[id] != TokenType::unknown && types[id] != TokenType::byte;
  spm.build(texts, index, vocab.scores, std::move(mergeable),
            vocab.unk ? std::optional(int32_t(*vocab.unk)) : std::nullopt);
}

std::vector<int32_t> Tokenizer::Impl::encode(std::string_view text,
                                             std::span<const std::pair<uint32_t, uint32_t>> plain,
                                             bool add_bos_eos) const {
  std::vector<int32_t> ids;
  Scratch scratch;
  if (add_bos_eos && add_bos) ids.push_back(*bos);
  size_t begin = 0;
  bool after_special = true;
  for (const Specials::Match& match : specials.find(text, plain)) {
    if (match.begin < begin) continue;  // white space that was stripped
    if (match.begin > begin) encode_raw(text.substr(begin, match.begin - begin), after_special, ids, scratch);
    ids.push_back(match.id);
    begin = match.end;
    if (!strips_right.empty() && strips_right[match.id])
      while (begin < text.size() && std::isspace(uint8_t(text[begin]))) ++begin;
    after_special = true;
  }
  if (begin < text.size()) encode_raw(text.substr(begin), after_special, ids, scratch);
  if (add_bos_eos && add_eos) ids.push_back(*eos);
  return ids;
}

// Text without special tokens.
void Tokenizer::Impl::encode_raw(std::string_view text, bool after_special, std::vector<int32_t>& ids,
                                 Scratch& scratch) const {
  if (!bpe) return spm.encode(text, add_space_prefix && after_special, ids, scratch.merge);

  std::string repaired;
  if (!is_valid_utf8(text)) {
    for (size_t i = 0; i < text.size();) {
      const Utf8Char c = decode_utf8(text.data() + i, text.size() - i);
      repaired += c.valid ? text.substr(i, c.length) : kReplacementCharacter;
      i += c.valid ? c.length : 1;
    }
    text = repaired;
  }
  scratch.ends.clear();
  pretokenizer.split(text, scratch.ends);
  std::string spelled;
  uint32_t begin = 0;
  for (const uint32_t end : scratch.ends) {
    const std::string_view word = text.substr(begin, end - begin);
    begin = end;
    if (pretokenizer.whole_words_first) {
      spelled.clear();
      for (const char c : word) append_utf8(byte_to_char(uint8_t(c)), spelled);
      const int32_t id = index.find(spelled);
      if (id >= 0 && types[id] != TokenType::control && types[id] != TokenType::unknown) {
        ids.push_back(id);
        continue;
      }
    }
    merges.encode_word(word, ids, scratch.merge);
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const std::pair<uint32_t, uint32_t> all[] = {{0, UINT32_MAX}};
  const std::span<const std::pair<uint32_t, uint32_t>> plain(all, options.parse_special ? 0 : 1);
  if (text.size() <= kMaxText) return impl_->encode(text, plain, options.add_bos);
  std::vector<int32_t> ids;
  if (options.add_bos && add_bos()) ids.push_back(*bos());
  for (size_t i = 0; i < text.size(); i += kMaxText) {
    const auto piece = impl_->encode(text.substr(i, kMaxText), plain, false);
    ids.insert(ids.end(), piece.begin(), piece.end());
  }
  if (options.add_bos && add_eos()) ids.push_back(*eos());
  return ids;
}

std::vector<int32_t> Tokenizer::encode(std::span<const Segment> segments, bool add_bos) const {
  std::string text;
  std::vector<std::pair<uint32_t, uint32_t>> plain;
  for (const Segment& segment : segments) {
    // What a template renders is far from this; the bound only keeps the positions right.
    const std::string_view part = segment.text.substr(0, kMaxText - std::min(kMaxText, text.size()));
    if (!segment.special && !part.empty()) {
      const uint32_t begin = uint32_t(text.size()), end = uint32_t(begin + part.size());
      if (!plain.empty() && plain.back().second == begin) {
        plain.back().second = end;
      } else {
        plain.push_back({begin, end});
      }
    }
    text += part;
  }
  return impl_->encode(text, plain, add_bos);
}

int Tokenizer::n_vocab() const { return int(impl_->types.size()); }
std::string_view Tokenizer::text(int32_t id) const {
  return id >= 0 && id < n_vocab() ? impl_->texts[id] : std::string_view();
}
TokenType Tokenizer::type(int32_t id) const {
  return id >= 0 && id < n_vocab() ? impl_->types[id] : TokenType::undefined;
}
bool Tokenizer::is_control(int32_t id) const {
  return type(id) == TokenType::control || type(id) == TokenType::unknown;
}
std::optional<int32_t> Tokenizer::find(std::string_view text) const {
  const int32_t id = text.empty() ? -1 : impl_->index.find(text);
  return id < 0 ? std::nullopt : std::optional(id);
}

void Tokenizer::append_bytes(int32_t id, std::string& out, bool render_control) const {
  const std::string_view t = text(id);
  auto hex = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
  switch (type(id)) {
    case TokenType::control:
    case TokenType::unknown:
      if (render_control) out += t;
      break;
    case TokenType::user_defined:
      out += t;
      break;
    case TokenType::byte:  // "<0x0A>"
      if (t.size() == 6 && t.substr(0, 3) == "<0x" && hex(t[3]) >= 0 && hex(t[4]) >= 0)
        out += char(hex(t[3]) * 16 + hex(t[4]));
      break;
    case TokenType::normal:
      for (size_t i = 0; i < t.size();) {
        size_t plain = i;  // both families write these as they are
        while (plain < t.size() && t[plain] > ' ' && t[plain] < 0x7f) ++plain;
        out.append(t, i, plain - i);
        if ((i = plain) == t.size()) break;
        const Utf8Char c = decode_utf8(t.data() + i, t.size() - i);
        const int byte = impl_->bpe ? char_to_byte(c.cp) : c.cp == 0x2581 ? ' ' : -1;
        if (byte >= 0 && c.valid) {
          out += char(byte);
        } else {
          out += t.substr(i, c.length);
        }
        i += c.length;
      }
      break;
    case TokenType::unused:
    case TokenType::undefined:
      break;
  }
}

std::optional<int32_t> Tokenizer::bos() const { return impl_->bos; }
std::optional<int32_t> Tokenizer::eos() const { return impl_->eos; }
std::optional<int32_t> Tokenizer::eot() const { return impl_->eot; }
const Tokenizer::Fim& Tokenizer::fim() const { return impl_->fim; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }
bool Tokenizer::add_eos() const { return impl_->add_eos; }
bool Tokenizer::add_space_prefix() const { return impl_->add_space_prefix; }
std::string_view Tokenizer::model() const { return impl_->model; }
std::string_view Tokenizer::pre() const { return impl_->pre; }
std::span<const int32_t> Tokenizer::end_ids() const { return impl_->end_ids; }
bool Tokenizer::is_end(int32_t id) const { return std::binary_search(end_ids().begin(), end_ids().end(), id); }

}  // namespace argent
