// Finds the id of a token by its text: open addressing over texts that lie one behind the other in one string.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace argent {

// The texts of ids 0 to size() - 1.
class TextPool {
 public:
  void reserve(size_t n_texts, size_t n_bytes) {
    ends_.reserve(n_texts + 1);
    bytes_.reserve(n_bytes);
  }
  void add(std::string_view text) {
    bytes_ += text;
    ends_.push_back(bytes_.size());
  }
  size_t size() const { return ends_.size() - 1; }
  std::string_view operator[](size_t id) const { return {bytes_.data() + ends_[id], ends_[id + 1] - ends_[id]}; }

 private:
  std::string bytes_;
  std::vector<size_t> ends_ = {0};
};

// Hashes with a key drawn at start, so that a file can not be made to collide.
class TextHash {
 public:
  TextHash() {
    std::random_device random;
    key_ = (uint64_t(random()) << 32 | random()) | 1;
  }
  uint64_t operator()(std::string_view text) const {
    const char* p = text.data();
    size_t n = text.size();
    uint64_t h = key_ ^ n;
    for (; n > 8; p += 8, n -= 8) h = mix(h ^ load<uint64_t>(p));
    uint64_t tail = 0;  // loads of a fixed width, which overlap
    if (n >= 4) {
      tail = uint64_t(load<uint32_t>(p)) << 32 | load<uint32_t>(p + n - 4);
    } else if (n > 0) {
      tail = uint64_t(uint8_t(p[0])) << 16 | uint64_t(uint8_t(p[n / 2])) << 8 | uint8_t(p[n - 1]);
    }
    return mix(h ^ tail);
  }
  uint64_t operator()(uint64_t value) const { return mix(value ^ key_); }

 private:
  template <class T>
  static T load(const char* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  // The two halves of a 128-bit product folded together: every bit of the input reaches every bit of the result.
  uint64_t mix(uint64_t v) const {
    const auto product = static_cast<unsigned __int128>(v ^ 0x9E3779B97F4A7C15u) * (key_ ^ 0xD6E8FEB86659FD93u);
    return uint64_t(product) ^ uint64_t(product >> 64);
  }

  uint64_t key_;
};

class TextIndex {
 public:
  // Indexes all texts of the pool but empty ones, which no lookup finds. Of equal texts the lowest id is found.
  void build(const TextPool& pool) {
    pool_ = &pool;
    size_t capacity = 16;
    while (capacity < pool.size() * 2) capacity *= 2;
    slots_.assign(capacity, {});
    for (size_t id = 0; id < pool.size(); ++id) {
      if (pool[id].empty()) continue;
      Slot& slot = probe(pool[id]);
      if (slot.id_plus_1 == 0) slot = {uint32_t(hash_(pool[id]) >> 32), uint32_t(id) + 1};
    }
  }
  // -1 if there is none.
  int32_t find(std::string_view text) const { return int32_t(const_cast<TextIndex*>(this)->probe(text).id_plus_1) - 1; }

 private:
  struct Slot {
    uint32_t hash = 0;
    uint32_t id_plus_1 = 0;  // 0 for an empty slot
  };
  Slot& probe(std::string_view text) {
    const uint64_t h = hash_(text);
    for (size_t i = h & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      Slot& slot = slots_[i];
      if (slot.id_plus_1 == 0 || (slot.hash == h >> 32 && (*pool_)[slot.id_plus_1 - 1] == text)) return slot;
    }
  }

  const TextPool* pool_ = nullptr;
  TextHash hash_;
  std::vector<Slot> slots_;
};

}  // namespace argent
