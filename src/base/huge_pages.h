// Anonymous memory for weights, KV and activations: zeroed, aligned to 2 MiB and backed by huge pages where the system
// grants them (a 4 KiB page table costs a streaming read a miss every 64 lines).
#pragma once

#include <cstdint>

#include "base/result.h"

namespace argent {

class HugePages {
 public:
  // `bytes` of zeroed memory, or out_of_memory. Zero bytes give an empty arena. Pages are committed when first touched.
  static Result<HugePages> allocate(uint64_t bytes);

  HugePages() = default;
  HugePages(HugePages&& other) noexcept;
  HugePages& operator=(HugePages&& other) noexcept;
  ~HugePages();

  uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;      // as asked for
  uint64_t reserved_ = 0;  // as mapped, from data_
};

}  // namespace argent
