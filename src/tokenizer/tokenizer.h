// Text to token ids and back, for the two families of vocabulary that GGUF files carry: byte-level BPE
// (tokenizer.ggml.model = "gpt2") and SentencePiece with scores and byte fall-back ("llama"). Ids equal those of
// llama.cpp's llama_tokenize on the same file, for all valid UTF-8.
//
// Text is bytes, and nothing here fails on them, on NUL or on invalid UTF-8: byte-level BPE sees each ill-formed byte
// as U+FFFD, SentencePiece turns it into its byte token. Encoding takes time linear in the text (n log n within one
// word) and a stack that does not depend on it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/vocab.h"

namespace argent {

// Immutable after it is made, so any number of threads may use one. Keeps no view of the file.
class Tokenizer {
 public:
  // Reads the tokenizer.* keys. Null when the file has no vocabulary (no tokenizer keys, or model "none"). Errors name
  // the key, what was seen and what was wanted; a model or pre-tokenizer that is not known here is Code::unsupported.
  static Result<std::shared_ptr<const Tokenizer>> load(const gguf::File& file);
  // From a vocabulary that satisfies what vocab.h says of its fields.
  static std::shared_ptr<const Tokenizer> make(const Vocab& vocab);
  ~Tokenizer();

  struct EncodeOptions {
    bool add_bos = true;        // begin with BOS, where the model wants one (and end with EOS, where it wants that)
    bool parse_special = true;  // the texts of control tokens become those tokens; user-defined tokens always do
  };
  // The ids of any bytes.
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options) const;
  std::vector<int32_t> encode(std::string_view text) const { return encode(text, EncodeOptions{}); }

  // A rendered chat template: `special` says that the template made this text, so the texts of control tokens in it are
  // those tokens; text that a message made is plain, whatever it spells. Runs of plain text that meet across segments
  // are tokenized as one text, so the ids are the same however the template cut it. A control token is recognised only
  // if all of it lies in special segments.
  struct Segment {
    std::string_view text;
    bool special = false;
  };
  std::vector<int32_t> encode(std::span<const Segment> segments, bool add_bos) const;

  int n_vocab() const;
  std::string_view text(int32_t id) const;  // as the file has it ("Ġthe", "▁the", "<0x0A>"); "" for an id out of range
  // As in the file, but tokens that llama.cpp knows for control tokens by their text are that whatever the file says.
  // undefined for an id out of range.
  TokenType type(int32_t id) const;
  bool is_control(int32_t id) const;                         // control or unknown: text that is not shown to a user
  std::optional<int32_t> find(std::string_view text) const;  // by the file's text; the first of duplicates

  // The bytes an id stands for: " the", "\n". Control tokens give their text when render_control, else nothing; an id
  // out of range gives nothing. A SentencePiece token keeps its leading space (the Detokenizer drops the first one).
  void append_bytes(int32_t id, std::string& out, bool render_control) const;

  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  std::optional<int32_t> eot() const;
  // The tokens of fill-in-the-middle prompts, by the file's keys or well-known texts.
  struct Fim {
    std::optional<int32_t> prefix, suffix, middle, pad, repository, separator;
  };
  const Fim& fim() const;
  bool add_bos() const;            // the model wants BOS before a text
  bool add_eos() const;            // the model wants EOS after a text
  bool add_space_prefix() const;   // SentencePiece: a text is tokenized as if it began with one more space
  std::string_view model() const;  // "gpt2" or "llama"
  std::string_view pre() const;    // the pre-tokenizer's name as the file has it; "" for SentencePiece

  // The ids that end a generation: those of the eos, eot and eom keys and of well-known texts such as <|im_end|>.
  // Sorted. It is llama.cpp's set, but for a "</s>" that the file has as user-defined: in Gemma 3 that is an HTML tag.
  std::span<const int32_t> end_ids() const;
  bool is_end(int32_t id) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Ids to text as they come, for one sequence. What push returns is always valid UTF-8: an incomplete character waits
// for its other bytes, and bytes that can not become one turn into U+FFFD, one for each maximal subpart (as WHATWG and
// Unicode chapter 3.9 recommend). The concatenation of all results does not depend on how the ids were divided.
class Detokenizer {
 public:
  // strip_prefix: drop the first space, which a model with add_space_prefix put before the text. Set it for a sequence
  // that begins a text, not for one that continues a prompt.
  explicit Detokenizer(const Tokenizer& tokenizer, bool render_control = false, bool strip_prefix = false);

  std::string push(int32_t id);
  std::string flush();  // the U+FFFD of an incomplete rest, if any; the detokenizer is then as new

 private:
  const Tokenizer* tokenizer_;
  bool render_control_;
  bool strip_prefix_;
  bool at_start_ = true;
  std::string pending_;  // a prefix of one character, at most 3 bytes between calls
};

// Appends bytes to `out` as valid UTF-8 by the rule above; an incomplete character at the end stays in `bytes`.
void take_complete_utf8(std::string& bytes, std::string& out);

}  // namespace argent
