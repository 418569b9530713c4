// What a file says about its vocabulary, as plain data: the seam between GGUF and the tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace argent {

namespace gguf {
class File;
}

// tokenizer.ggml.token_type, with the numbers of the file.
enum class TokenType : uint8_t { undefined = 0, normal, unknown, control, user_defined, unused, byte };

struct Vocab {
  std::string_view model;       // "gpt2" or "llama"
  std::string_view pre;         // tokenizer.ggml.pre; "default" if absent
  std::string_view model_name;  // general.name
  std::vector<std::string_view> tokens;
  std::vector<TokenType> types;                     // as many as tokens
  std::vector<float> scores;                        // as many as tokens, finite; SentencePiece only, else empty
  std::vector<std::string_view> merges;             // "left right"; byte-level BPE only
  std::optional<uint32_t> bos, eos, eot, eom, unk;  // ids; below tokens.size()
  std::optional<uint32_t> fim_pre, fim_suf, fim_mid, fim_pad, fim_rep, fim_sep;
  std::optional<bool> add_bos, add_eos, add_space_prefix;

  // Reads and checks the tokenizer.* keys. The views are of the file's bytes. Nothing for a file without a vocabulary:
  // no tokenizer.ggml.model, or "none", or "no_vocab". An error names the key, what was seen and what was wanted.
  static Result<std::optional<Vocab>> load(const gguf::File& file);
};

}  // namespace argent
