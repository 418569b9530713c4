#include "base/system_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace argent {
namespace {

// The number a one-line file holds, or nothing that limits ("max").
uint64_t read_number(const char* path, uint64_t otherwise) {
  std::ifstream in(path);
  uint64_t n = 0;
  return in >> n ? n : otherwise;
}

// Pages of files that a cgroup counts as used and gives up when memory is asked for: a model that was just read or
// downloaded would seem to fill it.
uint64_t file_pages(const char* stat_path, bool v1) {
  std::ifstream in(stat_path);
  std::string key;
  uint64_t value = 0, sum = 0;
  while (in >> key >> value)
    if (key == (v1 ? "total_inactive_file" : "inactive_file") || key == (v1 ? "total_active_file" : "active_file"))
      sum += value;
  return sum;
}

uint64_t left_of(const std::string& limit_path, const std::string& used_path, uint64_t reclaimable) {
  const uint64_t limit = read_number(limit_path.c_str(), UINT64_MAX), used = read_number(used_path.c_str(), 0);
  const uint64_t held = used - std::min(used, reclaimable);
  return limit > held ? limit - held : 0;
}

}  // namespace

uint64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0, available = 0;
  while (in >> key >> kib && std::getline(in, unit))
    if (key == "MemAvailable:") available = kib * 1024;
  const std::string root = "/sys/fs/cgroup/", root_v1 = root + "memory/memory.";
  const uint64_t v2 =
      left_of(root + "memory.max", root + "memory.current", file_pages("/sys/fs/cgroup/memory.stat", false));
  const uint64_t v1 = left_of(root_v1 + "limit_in_bytes", root_v1 + "usage_in_bytes",
                              file_pages("/sys/fs/cgroup/memory/memory.stat", true));
  return std::min({available, v2, v1});
}

}  // namespace argent
