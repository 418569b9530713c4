#include "hub/hub.h"

#include <algorithm>
#include <filesystem>

#include "base/switches.h"

namespace argent {
namespace fs = std::filesystem;

namespace {

// NAME-00002-of-00003.gguf and on
bool later_shard(const std::string& name) {
  static constexpr std::string_view kForm = "-00000-of-00000.gguf";
  if (name.size() < kForm.size()) return false;
  const std::string_view end = std::string_view(name).substr(name.size() - kForm.size());
  for (size_t i = 0; i < kForm.size(); ++i)
    if (kForm[i] == '0' ? end[i] < '0' || end[i] > '9' : end[i] != kForm[i]) return false;
  return !end.starts_with("-00001-");
}

}  // namespace

std::string models_folder() {
  if (std::string folder = switch_text(Switch::models); !folder.empty()) return folder;
  std::string cache = environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = environment("HOME") + "/.cache";
  return cache + "/argent/models";
}

std::vector<std::string> list_models() {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(models_folder(), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.ends_with(".gguf")) continue;
    if (later_shard(name)) continue;
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::string> find_model(std::string_view name) {
  std::error_code error;
  const std::string wanted(name.empty() ? kDefaultModel : name);
  if (!name.empty() && fs::exists(wanted, error)) return wanted;
  const fs::path folder = models_folder();
  for (const std::string& file : {wanted, wanted + ".gguf"})
    if (fs::path path = folder / file; wanted.find('\0') == std::string::npos && fs::exists(path, error))
      return path.string();
  if (name.empty())
    return fail(Code::not_found, "the default model {} is not in {}; ./quickstart fetches it, -m MODEL names another",
                kDefaultModel, folder.string());
  std::string there;
  for (const std::string& model : list_models()) there += (there.empty() ? "" : ", ") + model;
  return fail(Code::not_found, "no file '{}', and no such model in {} (there: {})", wanted.substr(0, 512),
              folder.string(), there.empty() ? "none" : there);
}

}  // namespace argent
