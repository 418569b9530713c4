// Which dispatches of a command list must wait for earlier ones: pure, from what each reads and writes.
#pragma once

#include "backends/metal/device.h"

namespace argent::metal {

// Sets Dispatch::barrier of every dispatch: where it reads what one since the last barrier writes, or writes what one
// since then reads or writes, and nowhere else. Ranges that overlap are the same memory, unless Bound::parts says not.
// Returns the number of levels: runs of dispatches without a barrier.
uint32_t set_barriers(CommandList& list);

}  // namespace argent::metal
