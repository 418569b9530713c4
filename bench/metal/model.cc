// Predicts what a step of a model takes on an Apple GPU, from the command lists that the Metal backend records for it.
// Nothing is run, and no weight is read: docs/metal-predictions.md.
#include <CLI/CLI.hpp>

#include "base/json.h"
#include "metal/record.h"
#include "metal/shapes.h"
#include "metal/work_model.h"
#include "models/model.h"

namespace argent::metal {
namespace {

struct Options {
  std::string file, shape, device = "m4-pro", without;
  uint32_t depth = 0, prompt = 0;
  bool json = false;
};

// Weights that are too large to matter to plans are never touched: address space stands for them.
Result<AddressSpace> detach(Graph& graph) {
  constexpr uint64_t kRead = 1 << 20;  // below, tables that plans look into
  uint64_t total = 0;
  for (const Value& v : graph.values)
    if (v.kind == ValueKind::weight && v.file_bytes() > kRead) total += v.file_bytes() + 64;
  ARGENT_LET(AddressSpace space, AddressSpace::make(total + 64));
  const auto* at = reinterpret_cast<const uint8_t*>(space.bytes().data());
  for (Value& v : graph.values)
    if (v.kind == ValueKind::weight && v.file_bytes() > kRead) {
      v.data = at;
      at += (v.file_bytes() + 63) / 64 * 64;
    }
  return space;
}

Json as_json(const Prediction& p, const GpuDescription& gpu, const Options& o, const std::string& model, uint32_t n) {
  Json families = Json::array();
  for (const FamilyTime& f : p.families)
    families.push_back({{"family", f.family},
                        {"dispatches", f.dispatches},
                        {"seconds", f.seconds},
                        {"bytes", f.bytes},
                        {"flops", f.flops},
                        {"threadgroups_per_core", f.threadgroups_per_core},
                        {"occupancy", f.occupancy},
                        {"limit", name_of(f.limit)}});
  return {{"what", "prediction by a model; nothing was run on this GPU"},
          {"model", model},
          {"device", gpu.name},
          {"rows", n},
          {"depth", o.depth},
          {"tokens_per_second", n / p.seconds},
          {"seconds", p.seconds},
          {"launches", p.launches},
          {"barriers", p.barriers},
          {"submit", p.submit},
          {"bytes", p.bytes},
          {"dispatches", p.dispatches},
          {"levels", p.levels},
          {"families", std::move(families)}};
}

void print(const Prediction& p, const GpuDescription& gpu, const Options& o, const std::string& model, uint32_t n) {
  fmt::print("PREDICTION, not a measurement. {}, {} row{} at depth {}, {}\n", model, n, n == 1 ? "" : "s", o.depth,
             gpu.description);
  fmt::print("{:<20}{:>6}{:>10}{:>8}{:>9}{:>8}{:>9}{:>9}  {}\n", "family", "n", "us", "share", "GB/s", "% bw",
             "tg/core", "% full", "limit");
  for (const FamilyTime& f : p.families)
    fmt::print("{:<20}{:>6}{:>10.1f}{:>7.1f}%{:>9.0f}{:>7.0f}%{:>9.1f}{:>8.0f}%  {}\n", f.family, f.dispatches,
               f.seconds * 1e6, 100 * f.seconds / p.seconds, f.bytes / f.seconds / 1e9,
               100 * f.bytes / f.seconds / gpu.bandwidth, f.threadgroups_per_core, 100 * f.occupancy, name_of(f.limit));
  for (const auto& [name, times, seconds] : {std::tuple{"launches", p.dispatches, p.launches},
                                             {"barriers", p.levels, p.barriers},
                                             {"between steps", 1u, p.submit}})
    fmt::print("{:<20}{:>6}{:>10.1f}{:>7.1f}%\n", name, times, seconds * 1e6, 100 * seconds / p.seconds);
  fmt::print("{} dispatches in {} levels, {:.3f} GB, {:.3f} ms: {:.1f} tokens/s predicted, {:.0f} % of the bandwidth\n",
             p.dispatches, p.levels, p.bytes / 1e9, p.seconds * 1e3, n / p.seconds,
             100 * p.bytes / p.seconds / gpu.bandwidth);
}

Status run(const Options& options) {
  const GpuDescription* gpu = nullptr;
  std::vector<std::string_view> known;
  for (const GpuDescription& g : gpus()) {
    known.push_back(g.name);
    if (g.name == options.device) gpu = &g;
  }
  if (!gpu)
    return fail(Code::invalid, "--device: there is no '{}', there are {}", options.device, fmt::join(known, ", "));
  if (options.file.empty() == options.shape.empty())
    return fail(Code::invalid, "one of a file and --shape is wanted; shapes: {}", fmt::join(shape_names(), ", "));
  ShapedFile shaped;
  if (!options.shape.empty()) {
    ARGENT_LET(shaped, make_shape(options.shape));
  } else {
    ARGENT_LET(gguf::File file, gguf::File::open(options.file));
    shaped.file = std::make_unique<gguf::File>(std::move(file));
  }
  ARGENT_LET(Model model, build_model(*shaped.file));
  if (uint64_t(options.depth) + std::max(1u, options.prompt) + 1 > model.n_ctx_train)
    return fail(Code::invalid, "{} rows at depth {}: the model has {} positions", std::max(1u, options.prompt),
                options.depth, model.n_ctx_train);
  ARGENT_LET(const AddressSpace weights, detach(model.graph));
  const uint32_t n = std::max(1u, options.prompt);
  Recording recording;
  ARGENT_TRY(record_step(model.graph,
                         {.depth = options.depth, .rows = n, .decode = options.prompt == 0, .without = options.without},
                         recording));
  const Prediction p = predict(recording.lists.back(), *gpu);
  const std::string name = options.shape.empty() ? options.file : options.shape;
  if (options.json)
    fmt::print("{}\n", as_json(p, *gpu, options, name, n).dump(2));
  else
    print(p, *gpu, options, name, n);
  return {};
}

}  // namespace
}  // namespace argent::metal

int main(int argc, char** argv) {
  argent::metal::Options options;
  CLI::App app("Predicts what a step of a model takes on an Apple GPU, from the Metal backend's command lists.");
  app.add_option("file", options.file, "a GGUF file; of its tensors only the header is read");
  app.add_option("--shape", options.shape, "a known model's shape in place of a file");
  app.add_option("--device", options.device, "m4-pro or m4-max")->capture_default_str();
  app.add_option("--depth", options.depth, "positions before the step")->capture_default_str();
  app.add_option("--prompt", options.prompt, "rows of a prompt; 0: a step of decode")->check(CLI::Range(0, 4096));
  app.add_option("--without", options.without, "kernel families and fused ops to leave out, as ARGENT_METAL_WITHOUT");
  app.add_flag("--json", options.json, "for programs");
  CLI11_PARSE(app, argc, argv);
  const argent::metal::Status status = argent::metal::run(options);
  if (status) return 0;
  fmt::print(stderr, "error: {}\n", status.error().message);
  return 1;
}
