#include "cli/generate.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "cli/command.h"

namespace argent::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr double kProgressSeconds = 0.5;  // a prompt that takes longer shows how far it is

}  // namespace

std::string_view stop_name(Stop stop) {
  switch (stop) {
    case Stop::end:
      return "stop";
    case Stop::limit:
      return "length";
    case Stop::context:
      return "context";
    case Stop::interrupted:
      return "interrupted";
  }
  return "";
}

Result<Generation> generate(Engine& engine, SequenceId sequence, std::span<const int32_t> prompt,
                            const SampleParams& params, const GenerateOptions& options,
                            const std::function<Status(std::string_view)>& sink) {
  const Tokenizer* tokenizer = engine.tokenizer();
  if (!tokenizer)
    return fail(Code::unsupported,
                "{}: the file has no tokenizer, so there is no text to generate; logits and bench take it",
                engine.file().path());
  const auto ends = [&](int32_t id) {
    return !options.ignore_end && (tokenizer->is_end(id) || std::find(options.also_end.begin(), options.also_end.end(),
                                                                      id) != options.also_end.end());
  };

  Generation out;
  out.seed = params.seed;
  out.n_prompt = uint32_t(prompt.size());
  const auto start = Clock::now();
  auto first_token = start;
  ARGENT_LET(out.n_reused, engine.set_tokens(sequence, prompt));
  engine.set_all_logits(sequence, false);
  engine.set_sampling(sequence, params);
  engine.pause(sequence, false);

  Detokenizer detokenizer(*tokenizer, options.render_control, options.begins_text);
  const auto emit = [&](const std::string& piece) -> Status {
    out.text += piece;
    return piece.empty() ? Status() : sink(piece);
  };
  bool done = false, shows_progress = false;
  const bool terminal = stderr_is_terminal();
  const uint64_t tokens_before = engine.counters().tokens;
  Status status;
  while (!done && status) {
    if (interrupted()) {
      out.stop = Stop::interrupted;
      break;
    }
    int32_t token = -1;
    bool sampled = false;
    const Result<bool> stepped = engine.step([&](const StepOutput& output) {
      if (output.sequence == sequence) token = output.token, sampled = true;
    });
    if (!stepped)
      status = stepped.error();
    else if (!*stepped)
      status = fail(Code::internal, "nothing to compute before the text was complete");
    if (shows_progress && (sampled || !status)) to_stderr("\r\033[K"), shows_progress = false;
    if (status && !sampled && terminal && seconds_since(start) > kProgressSeconds) {
      to_stderr("\rprompt: {} of {} tokens\033[K", out.n_reused + engine.counters().tokens - tokens_before,
                 prompt.size());
      std::fflush(stderr);
      shows_progress = true;
    }
    if (!status || !sampled) continue;  // a chunk of the prompt
    if (token < 0) {
      status = fail(Code::internal, "the logits are not finite after {} tokens", engine.tokens(sequence).size());
      break;
    }
    if (out.prompt_seconds == 0) {
      first_token = Clock::now();
      out.prompt_seconds = std::chrono::duration<double>(first_token - start).count();
    } else {
      ++out.n_decode;
    }
    if (ends(token)) break;
    out.tokens.push_back(token);
    status = emit(detokenizer.push(token));
    if (options.max_tokens && out.tokens.size() >= options.max_tokens)
      out.stop = Stop::limit, done = true;
    else if (prompt.size() + out.tokens.size() >= engine.n_ctx() + 1)
      out.stop = Stop::context, done = true;
  }
  engine.pause(sequence, true);
  if (shows_progress) to_stderr("\r\033[K");
  if (out.prompt_seconds == 0)
    out.prompt_seconds = seconds_since(start);
  else
    out.decode_seconds = seconds_since(first_token);
  if (status) status = emit(detokenizer.flush());
  if (!status) return status.error();
  return out;
}

std::string terminal_text(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t c = uint8_t(text[i]);
    const bool c1 = c == 0xc2 && i + 1 < text.size() && uint8_t(text[i + 1]) < 0xa0;
    if (c1 || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
      out += "\xef\xbf\xbd", i += c1;
    else
      out += text[i];
  }
  return out;
}

uint64_t random_seed() {
  std::random_device device;
  return uint64_t(device()) & 0xffffffffu;
}

std::string statistics_line(const Generation& g) {
  std::string line = fmt::format("prompt {} tokens ({} reused) in {:.2f} s", g.n_prompt, g.n_reused, g.prompt_seconds);
  if (g.prompt_rate() > 0) line += fmt::format(", {:.1f} tokens/s", g.prompt_rate());
  line += fmt::format("; answer {} tokens", g.tokens.size());
  if (g.n_decode) line += fmt::format(" in {:.2f} s, {:.1f} tokens/s", g.decode_seconds, g.decode_rate());
  return line + fmt::format("; seed {}", g.seed);
}

void add_statistics(Json& object, const Generation& g) {
  object["stop"] = stop_name(g.stop);
  object["seed"] = g.seed;
  object["usage"] = {{"prompt_tokens", g.n_prompt},
                     {"reused_tokens", g.n_reused},
                     {"completion_tokens", g.tokens.size()},
                     {"total_tokens", g.n_prompt + g.tokens.size()}};
  object["timings"] = {{"prompt_seconds", g.prompt_seconds},
                       {"prompt_tokens_per_second", g.prompt_rate()},
                       {"decode_tokens", g.n_decode},
                       {"decode_seconds", g.decode_seconds},
                       {"decode_tokens_per_second", g.decode_rate()}};
}

}  // namespace argent::cli
