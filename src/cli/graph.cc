// argent graph: the graph that a model computes, after any of the passes.
#include <array>
#include <filesystem>
#include <fstream>

#include "cli/command.h"

namespace argent::cli {
namespace {

constexpr std::array<std::pair<std::string_view, Stage>, 6> kStages = {{{"built", Stage::built},
                                                                        {"rows", Stage::rows},
                                                                        {"placed", Stage::placed},
                                                                        {"fused", Stage::fused},
                                                                        {"aliased", Stage::aliased},
                                                                        {"planned", Stage::planned}}};
constexpr std::array<std::pair<std::string_view, DumpFormat>, 3> kDumpFormats = {
    {{"text", DumpFormat::text}, {"json", DumpFormat::json}, {"dot", DumpFormat::dot}}};
constexpr std::array<std::pair<std::string_view, Tail>, 5> kTails = {{{"logits", Tail::logits},
                                                                      {"greedy", Tail::greedy},
                                                                      {"sample", Tail::sample},
                                                                      {"sample_logits", Tail::sample_logits},
                                                                      {"hidden", Tail::hidden}}};

template <class T, size_t N>
Result<T> named(std::string_view flag, std::string_view name,
                const std::array<std::pair<std::string_view, T>, N>& table) {
  std::string all;
  for (const auto& [text, value] : table) {
    if (text == name) return value;
    all += fmt::format("{}{}", all.empty() ? "" : ", ", text);
  }
  return fail(Code::invalid, "{} {}: wanted one of {}", flag, name, all);
}

struct GraphCommand {
  ModelOptions model;
  Positionals positionals;
  std::string stage = "planned", format = "text", tail = "sample", out;
  uint32_t n_tokens = 1, n_outputs = 1, depth = 0;

  Status run();
};

Status GraphCommand::run() {
  ARGENT_TRY(positionals.settle(model.model, nullptr, nullptr, false));
  ARGENT_LET(const Stage last, named("--stage", stage, kStages));
  ARGENT_LET(const DumpFormat dump_format, named("--format", model.json ? "json" : format, kDumpFormats));
  ARGENT_LET(const Tail plan_tail, named("--tail", tail, kTails));
  if (n_outputs > n_tokens) return fail(Code::invalid, "--outputs {}: at most the {} of --tokens", n_outputs, n_tokens);
  const auto adjust = [&](EngineOptions& options) {
    options.budget.max_tokens = std::max(options.budget.max_tokens, n_tokens);
    options.budget.max_outputs = std::max(options.budget.max_outputs, n_outputs);
  };
  ARGENT_LET(const std::unique_ptr<Engine> engine, open_engine(model, adjust, false));
  ARGENT_LET(const EngineOptions options, model.engine_options());
  ARGENT_LET(const Plan plan, engine->plan_for(n_tokens, n_outputs, plan_tail, last));
  const uint64_t n_kv = depth;
  std::string text = dump(plan, dump_format, {n_tokens, n_outputs, n_kv, options.backend.kv_k, options.backend.kv_v});
  if (!text.ends_with('\n')) text += '\n';
  if (out.empty() || out == "-") return write_stdout(text);
  ARGENT_TRY(not_the_model("--out", out, *engine));
  std::ofstream file(out, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return fail(Code::io, "cannot write {}", out);
  return {};
}

}  // namespace

void add_graph(CLI::App& root) {
  auto command = std::make_shared<GraphCommand>();
  CLI::App* app = add_command(
      root, "graph", "print what a model computes, after any of the passes",
      "Stages: built (as the architecture composes it), rows (only rows that want logits pass the last layer), placed\n"
      "(devices), fused, aliased (in place), planned (offsets in the arena; what runs). The cost of each op is that of "
      "a\n"
      "step of --tokens tokens, --outputs logits rows and --depth positions in the cache.\n\n"
      "Examples:\n"
      "  argent graph --stage built                          the default model, one decoding step\n"
      "  argent graph -m model.gguf --tokens 512             a prompt chunk of 512 tokens\n"
      "  argent graph --stage fused --format dot -o g.dot    a picture: dot -Tsvg g.dot > g.svg",
      [command] { return command->run(); });
  command->positionals.add(*app, false);
  command->model.add(*app, true);
  app->add_option("--stage", command->stage, "built, rows, placed, fused, aliased or planned")->capture_default_str();
  app->add_option("--format", command->format, "text, json or dot (--json is --format json)")->capture_default_str();
  app->add_option("--tail", command->tail,
                  "what becomes of the logits: logits, greedy, sample, sample_logits or hidden")
      ->capture_default_str();
  app->add_option("--tokens", command->n_tokens, "tokens of the step")
      ->check(CLI::Range(1u, 65536u))
      ->capture_default_str();
  app->add_option("--outputs", command->n_outputs, "logits rows of the step")
      ->check(CLI::Range(1u, 65536u))
      ->capture_default_str();
  app->add_option("--depth", command->depth, "positions in the KV cache before the step")
      ->check(CLI::Range(0u, 1u << 30))
      ->capture_default_str();
  app->add_option("-o,--out", command->out, "file to write instead of stdout");
}

}  // namespace argent::cli
