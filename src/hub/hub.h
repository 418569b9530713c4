// Model names to files. A name is a path, or the name of a file (with or without .gguf) in the folder of models.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace argent {

inline constexpr std::string_view kDefaultModel = "smollm2-135m-instruct-q4_1.gguf";

// ARGENT_MODELS, or argent/models in the XDG cache folder.
std::string models_folder();

// The file of a model; "" is the default model. not_found: where it was looked for and what is there.
Result<std::string> find_model(std::string_view name);

// The GGUF files of the folder, sorted; later shards of split files are left out.
std::vector<std::string> list_models();

}  // namespace argent
