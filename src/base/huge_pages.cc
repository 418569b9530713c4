#include "base/huge_pages.h"

#include <sys/mman.h>

#include <utility>

#include "base/checked.h"

namespace argent {
namespace {
constexpr uint64_t kHuge = uint64_t(2) << 20;
}

Result<HugePages> HugePages::allocate(uint64_t bytes) {
  HugePages pages;
  if (bytes == 0) return pages;
  const auto length = checked_align(bytes, kHuge);
  const auto padded = length ? checked_add(*length, kHuge) : std::nullopt;
  void* map = MAP_FAILED;
  if (padded) map = mmap(nullptr, *padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return fail(Code::out_of_memory, "cannot map {} bytes of memory", bytes);
  // mmap aligns to 4 KiB: give back what lies before and behind the aligned part.
  const uint64_t base = reinterpret_cast<uint64_t>(map), aligned = (base + kHuge - 1) / kHuge * kHuge;
  if (aligned != base) munmap(map, aligned - base);
  if (const uint64_t tail = base + *padded - (aligned + *length))
    munmap(reinterpret_cast<void*>(aligned + *length), tail);
  pages.data_ = reinterpret_cast<uint8_t*>(aligned);
  pages.size_ = bytes;
  pages.reserved_ = *length;
#ifdef MADV_HUGEPAGE
  madvise(pages.data_, pages.reserved_, MADV_HUGEPAGE);  // a refusal only costs speed
#endif
  return pages;
}

HugePages::HugePages(HugePages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      reserved_(std::exchange(other.reserved_, 0)) {}

HugePages& HugePages::operator=(HugePages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(reserved_, other.reserved_);
  return *this;
}

HugePages::~HugePages() {
  if (data_) munmap(data_, reserved_);
}

}  // namespace argent
