// Memory that is kept for what must not fail for want of any.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>

namespace argent::server {

// One block of it, for one piece at a time; whoever comes while it is taken gets memory like everybody else. From any
// thread.
class Reserved {
 public:
  void* take(size_t bytes) {
    if (bytes <= sizeof bytes_ && !taken_.test_and_set(std::memory_order_acquire)) return bytes_;
    return ::operator new(bytes);
  }
  void give(void* memory) {
    if (memory == bytes_)
      taken_.clear(std::memory_order_release);
    else
      ::operator delete(memory);
  }

 private:
  alignas(std::max_align_t) std::byte bytes_[256];
  std::atomic_flag taken_;
};

// For handlers of Asio, which asks the allocator of a handler for what it posts.
template <class T>
struct ReservedAllocator {
  using value_type = T;
  explicit ReservedAllocator(Reserved& r) : reserved(&r) {}
  template <class U>
  ReservedAllocator(const ReservedAllocator<U>& other) : reserved(other.reserved) {}
  T* allocate(size_t n) { return static_cast<T*>(reserved->take(n * sizeof(T))); }
  void deallocate(T* memory, size_t) { reserved->give(memory); }
  template <class U>
  bool operator==(const ReservedAllocator<U>& other) const {
    return reserved == other.reserved;
  }
  Reserved* reserved;
};

}  // namespace argent::server
