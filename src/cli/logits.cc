// argent logits: what the model says of given ids, as little-endian floats.
#include <charconv>
#include <cstdio>

#include "cli/command.h"

namespace argent::cli {
namespace {

struct LogitsOptions {
  ModelOptions model;
  Positionals words;
  std::string tokens, passes, out;
  bool all = false;
};

// "1,2,3" or "@FILE" with such a list.
Result<std::vector<int32_t>> parse_list(std::string text, std::string_view what, int32_t least) {
  if (text.starts_with("@")) {
    ARGENT_LET(text, read_file(text.substr(1)));
  }
  std::vector<int32_t> list;
  const char *at = text.data(), *end = at + text.size();
  const auto space = [&] {
    while (at < end && (*at == ',' || *at == ' ' || *at == '\n' || *at == '\r')) ++at;
  };
  for (space(); at < end; space()) {
    int32_t n = 0;
    const auto [next, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < least)
      return fail(Code::invalid, "{}: '{}' is no number from {} on", what, std::string_view(at, std::min<size_t>(16, size_t(end - at))), least);
    list.push_back(n);
    at = next;
  }
  if (list.empty()) return fail(Code::invalid, "{}: no numbers", what);
  return list;
}

class OutFile {
 public:
  explicit OutFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "wb")) {}
  ~OutFile() {
    if (file_) std::fclose(file_);
  }
  Status write(std::span<const float> row) {
    if (!file_ || std::fwrite(row.data(), sizeof(float), row.size(), file_) != row.size()) return fail(Code::io, "cannot write {}: {}", path_, std::strerror(errno));
    return {};
  }
  Status close() {
    std::FILE* file = std::exchange(file_, nullptr);
    if (!file || std::fclose(file) != 0) return fail(Code::io, "cannot write {}: {}", path_, std::strerror(errno));
    return {};
  }

 private:
  std::string path_;
  std::FILE* file_;
};

Status run(LogitsOptions& o) {
  ARGENT_TRY(o.words.settle(o.model.model, nullptr, nullptr, false));
  ARGENT_LET(const std::vector<int32_t> tokens, parse_list(o.tokens, "--tokens", 0));
  std::vector<uint32_t> passes;
  if (!o.passes.empty()) {
    ARGENT_LET(const std::vector<int32_t> sizes, parse_list(o.passes, "--passes", 1));
    passes.assign(sizes.begin(), sizes.end());
  }
  if (!o.model.ctx) o.model.ctx = uint32_t(tokens.size());
  ARGENT_LET(std::unique_ptr<Engine> engine, open_engine(o.model, [&](EngineOptions& e) {
               e.passes = passes;
               for (uint32_t p : passes) e.budget.max_tokens = std::max(e.budget.max_tokens, std::min(p, uint32_t(tokens.size())));
               if (o.all) e.budget.max_outputs = passes.empty() ? 64 : e.budget.max_tokens;
             }));
  ARGENT_TRY(not_the_model("--out", o.out, *engine));
  const SequenceId id = engine->open_sequence();
  engine->set_all_logits(id, o.all);
  ARGENT_LET(const uint32_t reused, engine->set_tokens(id, tokens));
  (void)reused;
  OutFile out(o.out);
  Status status;
  for (;;) {
    ARGENT_LET(const bool more, engine->step([&](const StepOutput& row) {
                 const bool wanted = o.all || row.position + 1 == tokens.size();
                 if (status && wanted) status = out.write(row.logits);
               }));
    if (!status || !more) break;
    if (interrupted()) return fail(Code::cancelled, "stopped");
  }
  ARGENT_TRY(status);
  return out.close();
}

}  // namespace

void add_logits(CLI::App& root) {
  auto o = std::make_shared<LogitsOptions>();
  CLI::App* app = add_command(root, "logits", "write the logits of given token ids to a file",
                              "  argent logits MODEL --tokens 1,2,3 --out last.f32          the last position's row\n"
                              "  argent logits MODEL --tokens @ids.txt --all --out all.f32  a row for each position\n"
                              "  --passes 7,1,13 computes the tokens in passes of these sizes, the last repeating; 1 is decode.\n"
                              "  Rows are little-endian 32-bit floats, one for each entry of the vocabulary.",
                              [o] { return run(*o); });
  o->words.add(*app, false);
  o->model.add(*app, true);
  app->add_option("--tokens", o->tokens, "ids, separated by commas, or @FILE")->required();
  app->add_option("--out", o->out, "file to write")->required();
  app->add_flag("--all", o->all, "every position, not only the last");
  app->add_option("--passes", o->passes, "sizes of the passes");
  app->add_option("--activations", o->model.activations, "native (as the kernels do it) or f32")->capture_default_str();
}

}  // namespace argent::cli
