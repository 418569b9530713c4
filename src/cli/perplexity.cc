// argent perplexity: how well the model predicts a text, counted exactly as llama-perplexity counts: the text, with BOS
// in front where the model wants it, is cut into windows of n_ctx tokens; each begins with BOS in place of its first
// token, and only the tokens of its second half are counted.
#include <chrono>
#include <cmath>

#include "base/json.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/profile.h"

namespace argent::cli {
namespace {

constexpr uint32_t kLogitsRows = 128;  // of a step: 128 rows of a vocabulary of 262,144 are 134 MB

struct PerplexityCommand {
  ModelOptions model;
  Positionals positionals;
  std::string file;
  uint32_t n_chunks = 0;
  ProfileOptions profile;

  Status run();
};

// -log p(token) under the softmax of a row of logits.
double surprise(std::span<const float> logits, int32_t token) {
  float most = logits[0];
  for (float x : logits) most = std::max(most, x);
  double sum = 0;
  for (float x : logits) sum += std::exp(x - most);
  return std::log(sum) - double(logits[size_t(token)] - most);
}

struct Estimate {
  double sum = 0, squares = 0;
  uint64_t count = 0;

  void add(double x) { sum += x, squares += x * x, ++count; }
  double ppl() const { return std::exp(sum / double(count)); }
  double error() const {
    const double mean = sum / double(count), variance = squares / double(count) - mean * mean;
    return variance > 0 && count > 1 ? std::sqrt(variance / double(count - 1)) * ppl() : 0;
  }
};

// Computes the window's tokens from `first` on with logits; those before without. One token less than the window: the
// last has nothing to predict.
class Windows {
 public:
  Windows(Engine& engine, uint32_t n_threads)
      : engine_(engine), pool_({.n_threads = n_threads}), sequence_(engine.open_sequence()) {}

  Status add(std::span<const int32_t> window, uint32_t first, Estimate& estimate) {
    engine_.set_all_logits(sequence_, false);
    if (first > 0) {
      ARGENT_LET(const uint32_t reused, engine_.set_tokens(sequence_, window.first(first)));
      static_cast<void>(reused);
      ARGENT_TRY(compute([](std::span<const StepOutput>) {}));
    }
    engine_.set_all_logits(sequence_, true);
    for (size_t i = first; i + 1 < window.size(); ++i) {
      if (i == 0) {
        ARGENT_LET(const uint32_t reused, engine_.set_tokens(sequence_, window.first(1)));
        static_cast<void>(reused);
        continue;
      }
      ARGENT_LET(const uint32_t n, engine_.append_token(sequence_, window[i]));
      static_cast<void>(n);
    }
    std::vector<double> values;
    ARGENT_TRY(compute([&](std::span<const StepOutput> rows) {
      values.resize(rows.size());
      pool_.run([&](uint32_t thread) {
        const ThreadPool::Range range = pool_.share(uint32_t(rows.size()), thread);
        for (uint32_t i = range.begin; i < range.end; ++i)
          values[i] = surprise(rows[i].logits, window[rows[i].position + 1]);
      });
      for (double value : values) estimate.add(value);
    }));
    return {};
  }

 private:
  Status compute(const std::function<void(std::span<const StepOutput>)>& sink) {
    std::vector<StepOutput> rows;
    for (;;) {
      rows.clear();
      ARGENT_LET(const bool more, engine_.step([&](const StepOutput& row) { rows.push_back(row); }));
      if (!more) return {};
      sink(rows);
      if (interrupted()) return fail(Code::cancelled, "stopped");
    }
  }

  Engine& engine_;
  ThreadPool pool_;
  SequenceId sequence_;
};

Status PerplexityCommand::run() {
  ARGENT_TRY(positionals.settle(model.model, nullptr, nullptr, false));
  if (file.empty()) return fail(Code::invalid, "-f FILE is missing: the text to predict");
  const auto read = [&] { return file == "-" ? read_stdin() : read_file(file); };
  ARGENT_LET(std::string text, read());
  if (text.ends_with('\n')) text.pop_back();  // as llama.cpp reads a prompt's file
  if (!model.ctx) model.ctx = 512;
  const uint32_t n_ctx = model.ctx, first = n_ctx / 2;
  if (n_ctx < 4) return fail(Code::invalid, "--ctx {}: wanted at least 4", n_ctx);
  const auto adjust = [](EngineOptions& options) {
    options.prefix_cache = false;
    options.budget.max_outputs = kLogitsRows;
  };
  ARGENT_LET(const std::unique_ptr<Engine> engine, open_engine(model, adjust));
  const Tokenizer* tokenizer = engine->tokenizer();
  if (!tokenizer) return fail(Code::unsupported, "{}: the file has no tokenizer", engine->file().path());
  std::vector<int32_t> tokens = tokenizer->encode(text, {.add_bos = true, .parse_special = false});
  if (tokens.size() < 2 * size_t(n_ctx))
    return fail(Code::invalid, "{} has {} tokens: a context of {} needs at least {}", file, tokens.size(), n_ctx,
                2 * size_t(n_ctx));
  uint32_t chunks = uint32_t(tokens.size() / n_ctx);
  if (n_chunks) chunks = std::min(chunks, n_chunks);
  Profiler profiler;
  ARGENT_TRY(profiler.start(*engine, profile));

  ARGENT_LET(const EngineOptions options, model.engine_options());
  Windows windows(*engine, options.backend.n_threads);
  Estimate estimate;
  const auto start = std::chrono::steady_clock::now();
  const bool terminal = stderr_is_terminal();
  double seconds = 0;
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    const std::span<int32_t> window = std::span(tokens).subspan(size_t(chunk) * n_ctx, n_ctx);
    if (tokenizer->add_bos() && tokenizer->bos()) window[0] = *tokenizer->bos();
    ARGENT_TRY(windows.add(window, first, estimate));
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (terminal)
      to_stderr("\r[{}/{}] PPL {:.4f}, {:.0f} s left \033[K", chunk + 1, chunks, estimate.ppl(),
                seconds / (chunk + 1) * (chunks - chunk - 1));
    else
      to_stderr("[{}/{}] {:.4f}\n", chunk + 1, chunks, estimate.ppl());
    std::fflush(stderr);
  }
  if (terminal) to_stderr("\n");
  if (!std::isfinite(estimate.ppl())) return fail(Code::internal, "the perplexity is not finite");
  to_stderr("{} windows of {} tokens in {:.1f} s, {:.1f} tokens/s\n", chunks, n_ctx, seconds,
            double(chunks) * n_ctx / seconds);
  if (!model.json) profiler.print();
  ARGENT_TRY(profiler.finish());
  if (model.json) {
    nlohmann::ordered_json json = {{"ppl", estimate.ppl()},
                                   {"error", estimate.error()},
                                   {"n_ctx", n_ctx},
                                   {"chunks", chunks},
                                   {"counted_tokens", estimate.count},
                                   {"mean_nll", estimate.sum / double(estimate.count)},
                                   {"seconds", seconds}};
    if (profiler.on()) json["profile"] = profiler.json();
    return write_stdout(json.dump(2) + "\n");
  }
  return write_stdout(fmt::format("PPL = {:.4f} +/- {:.4f}\n", estimate.ppl(), estimate.error()));
}

}  // namespace

void add_perplexity(CLI::App& root) {
  auto command = std::make_shared<PerplexityCommand>();
  CLI::App* app = add_command(root, "perplexity", "measure how well a model predicts a text",
                              "Counted as llama-perplexity counts, so that the numbers compare: windows of --ctx "
                              "tokens (512), BOS first where the\n"
                              "model wants one, the second half of each window counted. The last line of stdout is PPL "
                              "= 12.3456 +/- 0.1234.\n\n"
                              "Examples:\n"
                              "  argent perplexity model.gguf -f wiki.test.raw\n"
                              "  argent perplexity -f text.txt -c 1024 --chunks 8 --activations f32 --cache-type f32",
                              [command] { return command->run(); });
  command->positionals.add(*app, false);
  command->model.add(*app, true);
  app->add_option("-f,--file", command->file, "the text; - is stdin");
  app->add_option("--chunks", command->n_chunks, "windows to count (default: all)")->check(CLI::Range(1u, 1u << 30));
  app->add_option("--activations", command->model.activations, "native (int8, as the kernels) or f32")
      ->capture_default_str();
  command->profile.add(*app);
}

}  // namespace argent::cli
