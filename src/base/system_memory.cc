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

uint64_t left_of(const char* limit_path, const char* used_path) {
  const uint64_t limit = read_number(limit_path, UINT64_MAX), used = read_number(used_path, 0);
  return limit > used ? limit - used : 0;
}

}  // namespace

uint64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0, available = 0;
  while (in >> key >> kib && std::getline(in, unit))
    if (key == "MemAvailable:") available = kib * 1024;
  const uint64_t v2 = left_of("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
  const uint64_t v1 = left_of("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes");
  return std::min({available, v2, v1});
}

}  // namespace argent
