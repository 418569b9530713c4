// Where the limits of this process's control groups stand (Linux, versions 1 and 2).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace argent {

struct CgroupFolder {
  std::string path;
  bool v2;
};

// The folders of the process's group and of all its parents for a controller ("cpu", "memory"): a limit counts wherever
// it is set on the way up. Folders need not exist, as in a container that sees its own group as the root.
std::vector<CgroupFolder> cgroup_folders(std::string_view controller);

}  // namespace argent
