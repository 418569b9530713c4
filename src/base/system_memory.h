// Memory that this process could still take: what the system calls available, no more than its cgroups leave.
#pragma once

#include <cstdint>

namespace argent {

uint64_t available_memory();  // bytes; 0 when the system does not say

}  // namespace argent
