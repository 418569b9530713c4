#include "base/system_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/cgroup.h"

namespace argent {
namespace {

// The number a one-line file holds, or nothing that limits ("max").
uint64_t read_number(const std::string& path, uint64_t otherwise) {
  std::ifstream in(path);
  uint64_t n = 0;
  return in >> n ? n : otherwise;
}

// Pages of files that a cgroup counts as used and gives up when memory is asked for: a model that was just read or
// downloaded would seem to fill it.
uint64_t file_pages(const CgroupFolder& folder) {
  const std::string prefix = folder.v2 ? "" : "total_";
  std::ifstream in(folder.path + "/memory.stat");
  std::string key;
  uint64_t value = 0, sum = 0;
  while (in >> key >> value)
    if (key == prefix + "inactive_file" || key == prefix + "active_file") sum += value;
  return sum;
}

uint64_t left_of(const CgroupFolder& folder) {
  uint64_t limit = read_number(folder.path + (folder.v2 ? "/memory.max" : "/memory.limit_in_bytes"), UINT64_MAX);
  // Above it nothing is killed, but every allocation waits for pages to be given up.
  if (folder.v2) limit = std::min(limit, read_number(folder.path + "/memory.high", UINT64_MAX));
  const uint64_t used = read_number(folder.path + (folder.v2 ? "/memory.current" : "/memory.usage_in_bytes"), 0);
  const uint64_t held = used - std::min(used, file_pages(folder));
  return limit > held ? limit - held : 1;  // not 0, which means that nobody knows
}

// What a limit of this process leaves, beside what /proc says is used of it.
uint64_t left_of_limit(__rlimit_resource which, std::string_view used_key) {
  rlimit limit{};
  if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  std::ifstream in("/proc/self/status");
  std::string line;
  uint64_t used = 0;
  while (std::getline(in, line))
    if (line.starts_with(used_key)) used = std::strtoull(line.c_str() + used_key.size(), nullptr, 10) * 1024;
  return limit.rlim_cur > used ? limit.rlim_cur - used : 1;
}

}  // namespace

uint64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0, available = 0;
  while (in >> key >> kib && std::getline(in, unit))
    if (key == "MemAvailable:") available = kib * 1024;
  available = std::min({available, left_of_limit(RLIMIT_AS, "VmSize:"), left_of_limit(RLIMIT_DATA, "VmData:")});
  for (const CgroupFolder& folder : cgroup_folders("memory")) available = std::min(available, left_of(folder));
  return available;
}

}  // namespace argent
