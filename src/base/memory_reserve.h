// Memory that is given back to the system when there is none left, so that what std::bad_alloc unwinds, and whoever
// then tells of it, finds the little that this takes.
#pragma once

namespace argent {

// Takes the reserve. From now on operator new gives it back before it throws.
void keep_memory_reserve();

// Whether it was given back: memory was out a moment ago.
bool memory_reserve_is_gone();

// Takes it again where it was given back; does nothing when there is no memory for it yet. From any thread.
void refill_memory_reserve();

}  // namespace argent
