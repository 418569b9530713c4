// What the subcommands share: options that every command takes, finding and loading the model, results and errors.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace argent::cli {

// Options of every command that names a model.
struct ModelOptions {
  std::string model;        // -m; empty: the default model
  std::string device, isa;  // empty: the switches
  std::string gpu_layers = "auto";
  uint32_t threads = 0;
  uint32_t ctx = 0;
  std::string cache_type = "f16", cache_type_k, cache_type_v;  // empty: as cache_type says
  std::string activations = "native";
  std::string weights = "auto";
  bool json = false;

  void add(CLI::App& app, bool computes);
  // For commands that only read the file, which never come to engine_options(): the same errors of --device, --isa and
  // --weights that the others give.
  Status check_names() const;
  Result<EngineOptions> engine_options() const;
};

// The KV cache's types as --cache-type takes them: "f16", "q8_0,f16".
std::string cache_text(const BackendOptions& options);

// MODEL and TEXT as positionals, as `argent --help` explains them: of two the first is MODEL; a single one is TEXT, or
// MODEL when --stdin gives the text or the command takes no text. -m takes MODEL's place.
struct Positionals {
  std::vector<std::string> words;
  void add(CLI::App& app, bool takes_text);
  // Moves the words to where they belong. invalid: too many.
  Status settle(std::string& model, std::string* text, bool* has_text, bool text_elsewhere) const;
  // The same for commands that must have a text: the positional one, or standard input's bytes. invalid: neither.
  Result<std::string> settle_text(std::string& model, bool from_stdin) const;
};

struct SamplingOptions {
  SampleParams params;
  std::vector<std::pair<std::string, std::string>> given;  // name, text
  void add(CLI::App& app);
  Result<SampleParams> settle(const SampleParams& defaults) const;
  bool sets(std::string_view name) const {
    return std::any_of(given.begin(), given.end(), [&](const auto& g) { return g.first == name; });
  }
};

// Opens the model and, when `load`, brings it to the device, with progress on stderr when that is a terminal.
Result<std::unique_ptr<Engine>> open_engine(const ModelOptions& options,
                                            const std::function<void(EngineOptions&)>& adjust = {}, bool load = true);

// invalid: `path`, which an option names as the place to write, is the model or one of its shards.
Status not_the_model(std::string_view option, const std::string& path, const Engine& engine);

// Adds a command: `run` is called when it was chosen; its error becomes one line on stderr and the exit code. An error
// without a message has been told already, or has nobody to tell it to.
CLI::App* add_command(CLI::App& root, const std::string& name, const std::string& summary, const std::string& footer,
                      std::function<Status()> run);

// Writes to stderr; that nobody reads it, or that its disk is full, is no error (fmt::print would throw).
template <class... Args>
void to_stderr(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

// Text for one line of a terminal: control characters as \xNN. What a file or a template says stands in messages.
std::string one_line(std::string_view text);

bool stdout_is_terminal();
bool stderr_is_terminal();
Result<std::string> read_stdin();
Result<std::string> read_file(const std::string& path);
// A number of bytes as options take it: "1073741824", "512MiB", "1.5 GB". Units are powers of 1000 (kB, MB, GB, TB) or
// of 1024 (KiB, MiB, GiB, TiB), in any case. invalid: `option` is named, with what was wanted.
Result<uint64_t> parse_bytes(std::string_view option, std::string_view text);
// Writes all of it to stdout and flushes; io: the disk is full, or nobody reads any more (then without a message).
Status write_stdout(std::string_view text);

// True after Ctrl-C; the first one asks, the `fatal`-th without a clear_interrupt() between them ends the process.
bool interrupted();
void watch_interrupt(int fatal = 2);
void clear_interrupt();

void add_ask(CLI::App& root);
void add_bench(CLI::App& root);
void add_bench_serve(CLI::App& bench);
void add_chat(CLI::App& root);
void add_check(CLI::App& root);
void add_complete(CLI::App& root);
void add_devices(CLI::App& root);
void add_gguf(CLI::App& root);
void add_graph(CLI::App& root);
void add_inspect(CLI::App& root);
void add_logits(CLI::App& root);
void add_perplexity(CLI::App& root);
void add_template(CLI::App& root);
void add_serve(CLI::App& root);
void add_tokenize(CLI::App& root);

}  // namespace argent::cli
