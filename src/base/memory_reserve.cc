#include "base/memory_reserve.h"

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <new>

namespace argent {
namespace {

// Never touched, so it costs nothing but address space. Not of malloc's: a large block that is freed there raises the
// threshold above which it maps others.
constexpr size_t kBytes = 8u << 20;
std::atomic<void*> reserve = nullptr;
std::atomic<bool> kept = false;

// Not to look again: whoever found nothing would use it up, and unwind without.
[[noreturn]] void give_back() {
  if (void* const memory = reserve.exchange(nullptr)) ::munmap(memory, kBytes);
  throw std::bad_alloc();
}

}  // namespace

bool memory_reserve_is_gone() {
  return kept.load(std::memory_order_relaxed) && !reserve.load(std::memory_order_relaxed);
}

void refill_memory_reserve() {
  if (!memory_reserve_is_gone()) return;
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  void* none = nullptr;
  if (!reserve.compare_exchange_strong(none, memory)) ::munmap(memory, kBytes);
}

void keep_memory_reserve() {
  kept = true;
  refill_memory_reserve();
  std::set_new_handler(give_back);
}

}  // namespace argent
