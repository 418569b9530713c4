#include "metal/kv_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/half.h"

namespace argent::metal {

KvStep::KvStep(const std::vector<std::pair<uint32_t, uint32_t>>& lengths_and_rows, Numbers& numbers) {
  for (const auto& [length, n_rows] : lengths_and_rows) {
    sequences.push_back({uint32_t(positions.size()), n_rows, length, uint32_t(tables.size())});
    for (uint32_t r = 0; r < n_rows; r++) {
      positions.push_back(int32_t(length + r));
      row_sequence.push_back(uint32_t(sequences.size() - 1));
    }
    for (uint32_t b = 0; b < (length + n_rows + kKvPositions - 1) / kKvPositions; b++)
      tables.push_back(b < length / kKvPositions ? -1 : int32_t(n_blocks++));
  }
  // A pool of one block more than there are, taken in a random order.
  std::vector<int32_t> order(++n_blocks);
  for (uint32_t i = 0; i < n_blocks; i++) order[i] = int32_t(i);
  for (uint32_t i = n_blocks - 1; i > 0; i--) std::swap(order[i], order[numbers.bits() % (i + 1)]);
  for (int32_t& b : tables) b = b < 0 ? b : order[size_t(b)];
}

KvPool::KvPool(const KvShape& shape, const KvStep& step) : shape_(shape), step_(step) {
  const uint64_t k_bytes = kv_bytes_of(shape.type_k, uint64_t(kKvPositions) * shape.n_head_kv * shape.d_head);
  const uint64_t v_bytes = kv_bytes_of(shape.type_v, uint64_t(kKvPositions) * shape.n_head_kv * shape.d_value);
  offset_v_ = kGap + k_bytes + kGap;
  block_bytes_ = uint32_t(offset_v_ + v_bytes + kGap);
  bytes_.resize(size_t(step.n_blocks) * block_bytes_);
  for (size_t i = 0; i < bytes_.size(); i++) bytes_[i] = uint8_t(0xa5 + i % 7);
  stored_.resize(bytes_.size());
  for (uint32_t t = 0; t < step.positions.size(); t++) {
    const uint32_t position = uint32_t(step.positions[t]);
    const int32_t block = step.tables[step.sequences[step.row_sequence[t]].table + position / kKvPositions];
    for (const bool is_v : {false, true}) {
      for (uint32_t h = 0; h < shape.n_head_kv; h++)
        rows_.push_back({is_v, t, h, position, size_t(block) * block_bytes_ + (is_v ? offset_v_ : kGap)});
    }
  }
}

size_t KvPool::element(const Row& r, uint32_t i) const {
  const size_t size = type(r) == KvType::f32 ? 4 : type(r) == KvType::q8_0 ? 1 : 2;
  return r.block + size * ((size_t(r.head) * kKvPositions + r.position % kKvPositions) * d(r) + i);
}

size_t KvPool::scale_at(const Row& r, uint32_t i) const {
  const size_t quants = size_t(shape_.n_head_kv) * kKvPositions * d(r);
  return r.block + quants +
         2 * ((size_t(r.head) * kKvPositions + r.position % kKvPositions) * (d(r) / kKvGroup) + i / kKvGroup);
}

void KvPool::store_row(const Row& r, const float* x) {
  auto put = [&](size_t at, const void* data, size_t size) {
    std::memcpy(&bytes_[at], data, size);
    std::fill_n(stored_.begin() + ptrdiff_t(at), size, true);
  };
  for (uint32_t i = 0; i < d(r); i++) {
    if (type(r) == KvType::f32) {
      put(element(r, i), x + i, 4);
    } else if (type(r) != KvType::q8_0) {
      const uint16_t bits = type(r) == KvType::f16 ? float_to_half(x[i]) : float_to_bf16(x[i]);
      put(element(r, i), &bits, 2);
    } else if (i % kKvGroup == 0) {
      float amax = 0;
      bool finite = true;
      for (uint32_t j = i; j < i + kKvGroup; j++) {
        finite = finite && std::isfinite(x[j]);
        amax = std::max(amax, std::fabs(x[j]));
      }
      const uint16_t scale = finite ? float_to_half(amax / 127) : float_to_half(NAN);
      put(scale_at(r, i), &scale, 2);
      const float inverse = 127 / amax;
      for (uint32_t j = i; j < i + kKvGroup; j++) {
        const int8_t quant = !finite || scale == 0 ? int8_t(0) : int8_t(std::nearbyint(x[j] * inverse));
        put(element(r, j), &quant, 1);
      }
    }
  }
}

void KvPool::store(const std::vector<float>& k, const std::vector<float>& v) {
  for (const Row& r : rows_) store_row(r, &(r.is_v ? v : k)[index(r, 0)]);
}

double KvPool::scale(const uint8_t* pool, const Row& r, uint32_t i) const {
  uint16_t bits;
  std::memcpy(&bits, pool + scale_at(r, i), 2);
  return half_to_float(bits);
}

double KvPool::value(const uint8_t* pool, const Row& r, uint32_t i) const {
  const uint8_t* at = pool + element(r, i);
  if (type(r) == KvType::q8_0) return scale(pool, r, i) * int8_t(*at);
  if (type(r) == KvType::f32) {
    float x;
    std::memcpy(&x, at, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return type(r) == KvType::f16 ? half_to_float(bits) : bf16_to_float(bits);
}

std::string KvPool::compare(std::span<const std::byte> got) const {
  for (size_t i = 0; i < bytes_.size(); i++) {
    if (uint8_t(got[i]) != bytes_[i]) {
      return fmt::format("row {} column {} is {:#x}, wanted {:#x}{} (a block of the cache and a byte of it)",
                         i / block_bytes_, i % block_bytes_, uint8_t(got[i]), bytes_[i],
                         stored_[i] ? "" : ", as it was");
    }
  }
  return "";
}

std::string KvPool::compare_values(std::span<const std::byte> got, const std::vector<double>& error_k,
                                   const std::vector<double>& error_v) const {
  for (size_t i = 0; i < bytes_.size(); i++) {
    if (!stored_[i] && uint8_t(got[i]) != bytes_[i])
      return fmt::format("row {} column {} is written (a block of the cache and a byte of it)", i / block_bytes_,
                         i % block_bytes_);
  }
  const uint8_t* pool = reinterpret_cast<const uint8_t*>(got.data());
  for (const Row& r : rows_) {
    for (uint32_t i = 0; i < d(r); i++) {
      const double want = value(bytes_.data(), r, i);
      // Both were rounded, each by half a unit: at the edge between two they are a whole one apart.
      const double unit = type(r) == KvType::f16    ? std::fabs(want) * 0x1p-10
                          : type(r) == KvType::bf16 ? std::fabs(want) * 0x1p-7
                          : type(r) == KvType::q8_0 ? scale(bytes_.data(), r, i) + std::fabs(want) * 0x1p-10
                                                    : 0;
      const double error = std::fabs(value(pool, r, i) - want),
                   allowed = unit + (r.is_v ? error_v : error_k)[index(r, i)];
      if (!(error <= allowed)) {
        return fmt::format("row {} column {} is {}, wanted {}: off by {:.2g}, allowed {:.2g} ({} of a token, head {})",
                           r.token, i, value(pool, r, i), want, error, allowed, r.is_v ? "V" : "K", r.head);
      }
    }
  }
  return "";
}

}  // namespace argent::metal
