// argent gguf split|merge: models in one file and in several.
#include <unistd.h>

#include <charconv>
#include <filesystem>

#include "base/json.h"
#include "cli/command.h"
#include "gguf/split.h"
#include "hub/hub.h"

namespace argent::cli {
namespace {

namespace fs = std::filesystem;

// "500M", "2G", "100000": a number of bytes, with decimal or binary (Mi, Gi) multiples.
Result<uint64_t> parse_size(std::string_view text) {
  const auto bad = [&] {
    return fail(Code::invalid, "--max-size {}: wanted a size such as 500M or 2G", text.substr(0, 64));
  };
  uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || n == 0) return bad();
  std::string_view unit(end, size_t(text.data() + text.size() - end));
  if (unit.ends_with('B') || unit.ends_with('b')) unit.remove_suffix(1);
  const uint64_t base = unit.ends_with('i') ? 1024 : 1000;
  if (unit.ends_with('i')) unit.remove_suffix(1);
  if (unit.empty() && base == 1000) return n;
  const size_t power = unit.size() == 1 ? std::string_view("KMGTkmgt").find(unit[0]) : std::string_view::npos;
  if (power == std::string_view::npos) return bad();
  for (size_t i = 0; i <= power % 4; ++i) {
    if (n > UINT64_MAX / base) return bad();
    n *= base;
  }
  return n;
}

// Progress of writing, on stderr where somebody looks; Ctrl-C stops it and leaves no file.
gguf::Progress show_progress(std::string_view what) {
  return [what, shown = uint64_t(0), terminal = stderr_is_terminal()](uint64_t done, uint64_t total) mutable {
    const uint64_t percent = total ? done * 100 / total : 100;
    if (terminal && percent != shown) {
      shown = percent;
      to_stderr("\r{}: {:.1f} of {:.1f} MB ({} %)", what, double(done) / 1e6, double(total) / 1e6, percent);
      std::fflush(stderr);
    }
    return !interrupted();
  };
}

void end_progress() {
  if (stderr_is_terminal()) to_stderr("\r\033[K");
}

struct GgufCommand {
  ModelOptions model;
  std::vector<std::string> words;
  uint64_t max_tensors = 0;
  std::string max_size;
  bool force = false;

  // The words are MODEL and the output; beside -m the output alone.
  Result<std::string> settle(std::string_view output) {
    const size_t wanted = model.model.empty() ? 2 : 1;
    if (words.size() != wanted)
      return fail(Code::invalid, "{} arguments given, wanted {}{}", words.size(), wanted == 2 ? "MODEL " : "", output);
    if (wanted == 2) model.model = words[0];
    return words.back();
  }
  Status check_free(const std::string& path) const {
    std::error_code error;
    if (!force && fs::exists(path, error)) return fail(Code::invalid, "{} exists; --force replaces it", path);
    return {};
  }
  Status report(const std::vector<std::string>& paths) const;
  Status split();
  Status merge();
};

Status GgufCommand::report(const std::vector<std::string>& paths) const {
  std::string text;
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const std::string& path : paths) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    text += fmt::format("{}  {:.1f} MB\n", path, double(bytes) / 1e6);
    files.push_back({{"path", path}, {"bytes", bytes}});
  }
  return write_stdout(model.json ? nlohmann::ordered_json{{"files", files}}.dump(
                                       2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                                       "\n"
                                 : text);
}

Status GgufCommand::split() {
  ARGENT_TRY(model.check_names());
  ARGENT_LET(std::string prefix, settle("OUT_PREFIX"));
  if (prefix.ends_with(".gguf")) prefix.resize(prefix.size() - 5);
  gguf::SplitOptions options{max_tensors, 0};
  if (!max_size.empty()) {
    ARGENT_LET(options.max_bytes, parse_size(max_size));
  }
  if (!options.max_tensors && !options.max_bytes)
    return fail(Code::invalid, "how large are the shards to be? give --max-size 2G or --max-tensors 128");
  ARGENT_LET(const std::string path, find_model(model.model));
  ARGENT_LET(const gguf::File file, gguf::File::open(path));
  // How many shards it becomes is known only afterwards, so any shard of the prefix counts as in the way.
  std::error_code error;
  const fs::path parent = fs::path(prefix).parent_path();
  for (fs::directory_iterator it(parent.empty() ? "." : parent, error), end; !error && it != end; it.increment(error)) {
    const auto shard = gguf::ShardName::parse(it->path().filename().string());
    if (shard && shard->prefix == fs::path(prefix).filename().string()) ARGENT_TRY(check_free(it->path().string()));
  }
  const Result<std::vector<std::string>> paths = gguf::split(file, options, prefix, show_progress("split"));
  end_progress();
  if (!paths) return paths.error();
  return report(*paths);
}

Status GgufCommand::merge() {
  ARGENT_TRY(model.check_names());
  ARGENT_LET(const std::string out, settle("OUT.gguf"));
  ARGENT_LET(const std::string path, find_model(model.model));
  ARGENT_LET(const gguf::File file, gguf::File::open(path));
  ARGENT_TRY(check_free(out));
  const Status status = gguf::merge(file, out, show_progress("merge"));
  end_progress();
  ARGENT_TRY(status);
  return report({out});
}

}  // namespace

void add_gguf(CLI::App& root) {
  CLI::App* app = root.add_subcommand("gguf", "split a model file into shards, or merge them");
  app->require_subcommand(1);
  app->footer("See argent gguf split --help and argent gguf merge --help.");

  auto split = std::make_shared<GgufCommand>();
  CLI::App* split_app = add_command(
      *app, "split", "write a model as shards PREFIX-00001-of-0000N.gguf",
      "The layout is llama.cpp's: every program that reads split models reads these. A shard's limit counts tensor "
      "data; a\n"
      "tensor that is larger has a shard of its own. All shards appear together when the last is written.\n\n"
      "Examples:\n"
      "  argent gguf split model.gguf parts/model --max-size 500M\n"
      "  argent gguf split -m model.gguf model --max-tensors 64",
      [split] { return split->split(); });
  split_app->add_option("OUT_PREFIX", split->words, "MODEL OUT_PREFIX: the model, and how the shards' names begin")
      ->type_name("")
      ->expected(1, 2);
  split_app->add_option("--max-tensors", split->max_tensors, "most tensors of a shard")
      ->check(CLI::Range(uint64_t(1), uint64_t(1) << 32));
  split_app->add_option("--max-size", split->max_size, "most bytes of a shard: 500M, 2G, 2GiB");

  auto merge = std::make_shared<GgufCommand>();
  CLI::App* merge_app =
      add_command(*app, "merge", "write a split model as one file",
                  "MODEL is any of the shards; the others are found beside it, and missing ones are named.\n\n"
                  "Example:\n  argent gguf merge parts/model-00001-of-00003.gguf model.gguf",
                  [merge] { return merge->merge(); });
  merge_app->add_option("OUT.gguf", merge->words, "MODEL OUT.gguf: any shard of the model, and the file to write")
      ->type_name("")
      ->expected(1, 2);

  for (const auto& [sub, command] : {std::pair{split_app, split}, std::pair{merge_app, merge}}) {
    command->model.add(*sub, false);
    sub->add_flag("--force", command->force, "replace files that are there");
  }
}

}  // namespace argent::cli
