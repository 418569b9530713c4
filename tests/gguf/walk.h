// Reads everything that an opened file offers, as a check that what was accepted can be used.
#pragma once

#include <cstdint>

#include "gguf/gguf.h"

namespace argent::gguf {

// A sum that depends on every byte read, so that no read is optimised away.
inline uint64_t walk(const File& file) {
  uint64_t sum = file.version() + file.alignment() + file.tensor_bytes();
  const auto add = [&](std::span<const uint8_t> bytes) {
    for (const uint8_t b : bytes) sum = sum * 31 + b;
  };
  const auto add_text = [&](std::string_view text) {
    add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  for (const Entry& entry : file.entries()) {
    const Value& v = entry.value;
    add_text(entry.key);
    add_text(v.type_name());
    add_text(v.describe());
    add(v.raw());
    sum += v.as_uint().value_or(1) + uint64_t(v.as_int().value_or(2)) + (v.as_float().value_or(3) > 0) +
           v.as_bool().value_or(false);
    add_text(v.as_string().value_or(""));
    for (uint64_t i = 0; i < v.size(); ++i) {
      sum += uint64_t(v.int_at(i)) + (v.float_at(i) > 0);
      add_text(v.string_at(i));
    }
    sum += file.find(entry.key) == &v;
    if (auto x = file.find_u32(entry.key, 1, 100)) sum += x->value_or(0);
    if (auto x = file.find_f32(entry.key)) sum += x->value_or(0) > 0;
    if (auto x = file.require_ints(entry.key, File::kAnySize, -5, 1 << 20)) sum += x->size();
    if (auto x = file.require_floats(entry.key, File::kAnySize)) sum += x->size();
    if (auto x = file.require_bools(entry.key, File::kAnySize)) sum += x->size();
    if (auto x = file.require_u32_each(entry.key, 4)) sum += x->size();
  }
  for (const Tensor& t : file.tensors()) {
    add_text(t.name);
    add({t.data, size_t(t.n_bytes)});
    sum += t.offset + t.n_elements + (file.find_tensor(t.name) == &t);
  }
  return sum;
}

}  // namespace argent::gguf
