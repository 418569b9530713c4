// argent check: would it run? Memory to the byte, and what is not supported, before anything is loaded.
#include <map>

#include "base/json.h"
#include "cli/command.h"
#include "engine/chat_format.h"
#include "hub/hub.h"

namespace argent::cli {
namespace {

struct CheckCommand {
  ModelOptions model;
  Positionals positionals;
  std::string chat_template;
  uint32_t n_sequences = 1;

  Status run();
};

// Everything that the file asks for and this build does not do, not only the first.
std::vector<std::string> unsupported_parts(const gguf::File& file, const std::string& chat_template) {
  std::vector<std::string> out;
  const auto note = [&](const Error& error) {
    if (std::find(out.begin(), out.end(), error.message) == out.end()) out.push_back(error.message);
  };
  std::map<std::string_view, uint64_t> formats;
  for (const gguf::Tensor& tensor : file.tensors())
    if (!tensor.format->format) ++formats[tensor.format->name];
  for (const auto& [name, count] : formats)
    out.push_back(fmt::format("tensor type {} ({} tensor{})", name, count, count == 1 ? "" : "s"));
  // The tensor types are said; what else is wrong with a model is asked when they are not the reason.
  if (formats.empty())
    if (const Result<Model> built = build_model(file); !built && built.error().code == Code::unsupported)
      note(built.error());
  if (const auto tokenizer = Tokenizer::load(file); !tokenizer && tokenizer.error().code == Code::unsupported)
    note(tokenizer.error());
  if (!chat_template.empty() || file.find("tokenizer.chat_template"))
    if (const auto format = load_chat_format(file, chat_template); !format)
      out.push_back("chat template: " + format.error().message);
  return out;
}

Status CheckCommand::run() {
  ARGENT_TRY(positionals.settle(model.model, nullptr, nullptr, false));
  ARGENT_LET(const std::string path, find_model(model.model));
  ARGENT_LET(const gguf::File file, gguf::File::open(path));
  std::vector<std::string> unsupported = unsupported_parts(file, chat_template);

  std::string cache_type;
  const auto adjust = [&](EngineOptions& options) {
    options.n_sequences = n_sequences;
    cache_type = cache_text(options.backend);
  };
  const Result<std::unique_ptr<Engine>> opened = open_engine(model, adjust, false);
  if (!opened && opened.error().code != Code::unsupported) return opened.error();
  if (!opened && unsupported.empty()) unsupported.push_back(opened.error().message);

  const gguf::Value* arch = file.find("general.architecture");
  const std::string architecture(arch ? arch->as_string().value_or("") : "");
  const Engine* engine = opened ? opened->get() : nullptr;
  const MemoryReport memory = engine ? engine->memory() : MemoryReport{};
  const bool enough = engine && memory.fits();
  const bool fits = enough && unsupported.empty();

  nlohmann::ordered_json json = {
      {"model", path}, {"architecture", architecture}, {"fits", fits}, {"unsupported", unsupported}};
  std::string text = fmt::format("{}: {}\n", path, architecture.empty() ? "no architecture" : one_line(architecture));
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  if (engine) {
    json["n_ctx"] = engine->n_ctx();
    json["n_ctx_train"] = engine->model().n_ctx_train;
    json["n_sequences"] = n_sequences;
    json["cache_type"] = cache_type;
    const std::string layers = engine->layers_text();
    if (!layers.empty()) {
      json["layers"] = layers;
      text += layers + "\n";
    }
    const std::vector<Backend*> parts = (*opened)->backend().parts();
    for (size_t d = 0; d < parts.size(); ++d) {
      const BackendCaps caps = parts[d]->caps();
      const MemoryUse& use = memory.devices[d];
      devices.push_back({{"name", caps.name},
                         {"description", caps.description},
                         {"layers", use.n_layers},
                         {"weights", use.weights == WeightStorage::resident ? "resident" : "mapped"},
                         {"weights_bytes", use.weights_bytes},
                         {"kv_bytes", use.kv_bytes},
                         {"workspace_bytes", use.workspace_bytes},
                         {"total_bytes", use.total_bytes()},
                         {"free_bytes", use.free_bytes}});
      std::string where = "resident, in the device's layout";
      if (use.weights == WeightStorage::mapped)
        where = fmt::format("mapped: used where they lie in the file{}",
                            caps.mapped_count ? ", which the device keeps in its memory" : "");
      if (d == 0 && memory.resident_needed_bytes)
        where += fmt::format("; a copy of them wants {} free", bytes_text(memory.resident_needed_bytes));
      const std::string share =
          parts.size() > 1 ? fmt::format(", {} layer{}", use.n_layers, use.n_layers == 1 ? "" : "s") : "";
      text += fmt::format("device {}: {}{}\n", caps.name, caps.description, share);
      text += fmt::format(
          "  {:<12}{:>12}  {}\n  {:<12}{:>12}  {} position{} of the context{}, {}\n  {:<12}{:>12}\n  {:<12}{:>12}\n  "
          "{:<12}{:>12}\n",
          "weights", bytes_text(use.weights_bytes), where, "KV cache", bytes_text(use.kv_bytes), engine->n_ctx(),
          engine->n_ctx() == 1 ? "" : "s", n_sequences > 1 ? fmt::format(" for each of {} sequences", n_sequences) : "",
          cache_type, "workspace", bytes_text(use.workspace_bytes), "in all", bytes_text(use.total_bytes()), "free",
          bytes_text(use.free_bytes));
    }
    if (engine->n_ctx() > engine->model().n_ctx_train)
      text += fmt::format("the model was trained for {} positions; beyond them its answers get worse\n",
                          engine->model().n_ctx_train);
  }
  json["devices"] = std::move(devices);
  for (const std::string& part : unsupported) text += fmt::format("not supported: {}\n", part);
  text += fits ? "fits\n" : unsupported.empty() ? "does not fit\n" : "does not run\n";
  ARGENT_TRY(write_stdout(model.json ? json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"
                                     : text));
  if (!unsupported.empty()) return fail(Code::unsupported, "{}", unsupported.front());
  if (const MemoryUse* use = engine ? memory.misfit() : nullptr)
    return fail(Code::out_of_memory, "{} needs {}{}, {} of it in reserve; {} are free{}", path,
                bytes_text(use->needed_bytes()), memory.devices.size() > 1 ? " on " + use->device : "",
                bytes_text(MemoryUse::kReserve), bytes_text(use->free_bytes),
                use->kv_bytes > use->weights_bytes ? "; a smaller --ctx may fit" : "");
  return {};
}

}  // namespace

void add_check(CLI::App& root) {
  auto command = std::make_shared<CheckCommand>();
  CLI::App* app = add_command(
      root, "check", "say whether a model would run here, and in how much memory",
      "Nothing is loaded: the sizes are those that a run with the same options allocates. Exit code 0: it would run,\n"
      "3: something is not supported, 6: it does not fit. Where a GPU has no room for the whole model, a line says\n"
      "which layers it gets (--gpu-layers).\n\n"
      "Examples:\n"
      "  argent check model.gguf\n"
      "  argent check model.gguf --ctx 32768 --cache-type f32\n"
      "  argent check -m model.gguf --json | jq .fits",
      [command] { return command->run(); });
  command->positionals.add(*app, false);
  command->model.add(*app, true);
  app->add_option("--chat-template", command->chat_template, "check this template instead of the file's");
  app->add_option("--activations", command->model.activations, "native or f32")->capture_default_str();
  app->add_option("--sequences", command->n_sequences, "sequences at once, each of --ctx positions")
      ->check(CLI::Range(1u, 65536u))
      ->capture_default_str();
}

}  // namespace argent::cli
