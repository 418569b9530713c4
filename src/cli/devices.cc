// argent devices: what --device can name on this machine, and why there is no GPU.
#include <unistd.h>

#include "base/json.h"
#include "cli/command.h"

namespace argent::cli {
namespace {

struct Missing {
  std::string name, why;
};

DeviceListing listing_of(const BackendCaps& caps) {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  const uint64_t total = pages > 0 && page > 0 ? uint64_t(pages) * uint64_t(page) : 0;
  return {caps.name, caps.description, total, caps.memory_free};
}

std::string gib(uint64_t bytes) { return bytes ? fmt::format("{:.1f} GiB", double(bytes) / 0x1p30) : "unknown"; }

Status run(bool as_json) {
  ARGENT_LET(const EngineOptions options, ModelOptions().engine_options());
  std::vector<DeviceListing> devices;
  std::vector<Missing> missing;
  ARGENT_LET(const std::unique_ptr<Backend> cpu, make_cpu_backend(options.backend));
  devices.push_back(listing_of(cpu->caps()));
  if (const auto cuda = list_cuda_devices())
    devices.insert(devices.end(), cuda->begin(), cuda->end());
  else
    missing.push_back({"cuda", cuda.error().message});
#ifdef __APPLE__
  if (const auto metal = make_metal_backend(options.backend))
    devices.push_back(listing_of((*metal)->caps()));
  else
    missing.push_back({"metal", metal.error().message});
#endif

  if (as_json) {
    nlohmann::ordered_json json = {{"devices", nlohmann::ordered_json::array()},
                                   {"missing", nlohmann::ordered_json::array()}};
    for (const DeviceListing& d : devices)
      json["devices"].push_back({{"name", d.name},
                                 {"description", d.description},
                                 {"memory_bytes", d.memory_total},
                                 {"free_bytes", d.memory_free}});
    for (const Missing& m : missing) json["missing"].push_back({{"name", m.name}, {"why", m.why}});
    return write_stdout(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  size_t name = 0, description = 0;
  for (const DeviceListing& d : devices)
    name = std::max(name, d.name.size()), description = std::max(description, d.description.size());
  for (const Missing& m : missing) name = std::max(name, m.name.size());
  std::string text;
  for (const DeviceListing& d : devices)
    text += fmt::format("{:<{}}  {:<{}}  {:>10}, {:>10} free\n", d.name, name, one_line(d.description), description,
                        gib(d.memory_total), gib(d.memory_free));
  for (const Missing& m : missing) text += fmt::format("{:<{}}  none: {}\n", m.name, name, one_line(m.why));
  return write_stdout(text);
}

}  // namespace

void add_devices(CLI::App& root) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* app = add_command(root, "devices", "list the devices of this machine",
                              "Names are those that --device takes, with memory in all and free. A kind of device that "
                              "is not there is one\nline that says why, and no error.\n\n"
                              "Examples:\n"
                              "  argent devices\n"
                              "  argent devices --json | jq -r '.devices[].name'",
                              [json] { return run(*json); });
  app->add_flag("--json", *json, "print JSON");
}

}  // namespace argent::cli
