#include "base/cgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace argent {

std::vector<CgroupFolder> cgroup_folders(std::string_view controller) {
  std::vector<CgroupFolder> folders;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && fmt::format(",{},", controllers).find(fmt::format(",{},", controller)) == std::string::npos) continue;
    for (std::string path = line.substr(second + 1);; path.erase(std::min(path.size(), path.rfind('/')))) {
      if (path == "/") path.clear();
      if (v2)
        folders.push_back({"/sys/fs/cgroup" + path, true});
      else
        for (const std::string& mount : {std::string(controller), controllers})
          folders.push_back({fmt::format("/sys/fs/cgroup/{}{}", mount, path), false});
      if (path.empty()) break;
    }
  }
  return folders;
}

}  // namespace argent
