// The loop that ask, chat and complete share: a prompt goes in, pieces of text come out, with what it cost.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"

namespace argent::cli {

enum class Stop {
  end,          // the model ended its text
  limit,        // max_tokens
  context,      // the context is full
  interrupted,  // Ctrl-C
};
std::string_view stop_name(Stop stop);  // "stop", "length", "context", "interrupted"

struct GenerateOptions {
  uint32_t max_tokens = 0;             // 0: until the context is full
  std::vector<int32_t> also_end = {};  // ids that end the text beside the vocabulary's own
  bool ignore_end = false;             // goes on after the model's end
  bool begins_text = false;            // what is generated is a text of its own: SentencePiece's first space goes
  bool render_control = false;         // shows the texts of control tokens
};

struct Generation {
  std::string text;             // all pieces
  std::vector<int32_t> tokens;  // generated; the one that ended the text is not among them
  Stop stop = Stop::end;
  uint32_t n_prompt = 0;      // tokens of the prompt
  uint32_t n_reused = 0;      // of those, found computed
  uint32_t n_decode = 0;      // steps after the first token
  double prompt_seconds = 0;  // until the first token was there
  double decode_seconds = 0;
  uint64_t seed = 0;

  double prompt_rate() const { return prompt_seconds > 0 ? (n_prompt - n_reused) / prompt_seconds : 0; }  // tokens/s
  double decode_rate() const { return decode_seconds > 0 ? n_decode / decode_seconds : 0; }
};

// Makes `prompt` the text of the sequence, of which only what is not computed yet is computed, and lets the model go
// on. The sequence is paused afterwards; its tokens are the prompt and what was generated. sink gets valid UTF-8 as
// soon as it is complete; its error ends the generation. invalid: the prompt does not fit the context; internal: logits
// not finite.
Result<Generation> generate(Engine& engine, SequenceId sequence, std::span<const int32_t> prompt,
                            const SampleParams& params, const GenerateOptions& options,
                            const std::function<Status(std::string_view)>& sink);

// Text for a terminal: control characters other than line breaks and tabs become U+FFFD, so that no model moves the
// cursor.
std::string terminal_text(std::string_view text);

// A seed where the user gave none.
uint64_t random_seed();

// One line for stderr: "prompt 34 tokens (12 reused) in 0.12 s, 183.3 tokens/s; answer ...".
std::string statistics_line(const Generation& generation);
// {"usage": {...}, "timings": {...}, "stop": ..., "seed": ...} added to an object.
void add_statistics(Json& object, const Generation& generation);

}  // namespace argent::cli
