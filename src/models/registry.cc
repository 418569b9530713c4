#include <algorithm>

#include "models/arch.h"

namespace argent {
namespace {

constexpr Arch kArchitectures[] = {
    {"gemma3", build_gemma3}, {"llama", build_llama}, {"muse-glimmer", build_muse_glimmer},
    {"qwen2", build_qwen2},   {"qwen3", build_qwen3},
};

}  // namespace

std::vector<std::string_view> architectures() {
  std::vector<std::string_view> names;
  for (const Arch& arch : kArchitectures) names.push_back(arch.name);
  return names;
}

Result<Model> build_model(const gguf::File& file) {
  ARGENT_LET(const std::string_view name, file.require_string("general.architecture"));
  for (const Arch& arch : kArchitectures) {
    if (arch.name != name) continue;
    ModelReader reader(file, std::string(name));
    const Hparams h = reader.hparams();
    if (reader.ops().failed()) return reader.finish(h, kNone);
    const ValueId logits = arch.build(reader, h);
    return reader.finish(h, logits);
  }
  std::string known;
  for (const Arch& arch : kArchitectures) known += fmt::format("{}{}", known.empty() ? "" : ", ", arch.name);
  return fail(Code::unsupported, "{}: key 'general.architecture' is {}, this build knows {}", file.path(),
              gguf::quote(name, 64), known);
}

}  // namespace argent
