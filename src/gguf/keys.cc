// The checked readers of File: one key, a kind, a range, one clear error.
#include <cmath>

#include "gguf/gguf.h"

namespace argent::gguf {

namespace {

std::string any_of(uint64_t size) { return size == File::kAnySize ? std::string() : fmt::format(" of {}", size); }

bool size_fits(const Value& value, uint64_t size) {
  return value.is_array() && (size == File::kAnySize || value.size() == size);
}

// Turns the result of find_x into that of require_x and x_or.
template <class T>
Result<T> or_value(Result<std::optional<T>> found, T fallback) {
  if (!found) return found.error();
  return *found ? **found : fallback;
}

std::string u32_wanted(uint32_t min, uint32_t max) { return fmt::format("an integer from {} to {}", min, max); }

std::string f32_wanted(float min, float max) {
  if (min == -File::kAnyF32 && max == File::kAnyF32) return "a finite number";
  return fmt::format("a finite number from {} to {}", min, max);
}

}  // namespace

Error File::wrong(std::string_view key, const Value* seen, std::string_view wanted) const {
  if (!seen) return fail(Code::invalid, "{}: key {} is missing, wanted {}", path_, quote(key), wanted);
  return fail(Code::invalid, "{}: key {} is {}, wanted {}", path_, quote(key), seen->describe(), wanted);
}

Result<std::optional<uint32_t>> File::find_u32(std::string_view key, uint32_t min, uint32_t max) const {
  const Value* value = find(key);
  if (!value) return std::optional<uint32_t>();
  const auto n = value->as_uint();
  if (!n || *n < min || *n > max) return wrong(key, value, u32_wanted(min, max));
  return std::optional<uint32_t>(uint32_t(*n));
}

Result<std::optional<float>> File::find_f32(std::string_view key, float min, float max) const {
  const Value* value = find(key);
  if (!value) return std::optional<float>();
  const auto x = value->as_float();
  if (!x || !std::isfinite(*x) || *x < min || *x > max) return wrong(key, value, f32_wanted(min, max));
  return std::optional<float>(float(*x));
}

Result<std::optional<bool>> File::find_bool(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::optional<bool>();
  const auto b = value->as_bool();
  if (!b) return wrong(key, value, "a bool");
  return b;
}

Result<std::optional<std::string_view>> File::find_string(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::optional<std::string_view>();
  const auto text = value->as_string();
  if (!text) return wrong(key, value, "a string");
  return text;
}

Result<uint32_t> File::require_u32(std::string_view key, uint32_t min, uint32_t max) const {
  if (!find(key)) return wrong(key, nullptr, u32_wanted(min, max));
  return u32_or(key, 0, min, max);
}

Result<float> File::require_f32(std::string_view key, float min, float max) const {
  if (!find(key)) return wrong(key, nullptr, f32_wanted(min, max));
  return f32_or(key, 0, min, max);
}

Result<bool> File::require_bool(std::string_view key) const {
  if (!find(key)) return wrong(key, nullptr, "a bool");
  return bool_or(key, false);
}

Result<std::string_view> File::require_string(std::string_view key) const {
  if (!find(key)) return wrong(key, nullptr, "a string");
  return string_or(key, {});
}

Result<uint32_t> File::u32_or(std::string_view key, uint32_t fallback, uint32_t min, uint32_t max) const {
  return or_value(find_u32(key, min, max), fallback);
}
Result<float> File::f32_or(std::string_view key, float fallback, float min, float max) const {
  return or_value(find_f32(key, min, max), fallback);
}
Result<bool> File::bool_or(std::string_view key, bool fallback) const { return or_value(find_bool(key), fallback); }
Result<std::string_view> File::string_or(std::string_view key, std::string_view fallback) const {
  return or_value(find_string(key), fallback);
}

Result<std::vector<int64_t>> File::require_ints(std::string_view key, uint64_t size, int64_t min, int64_t max) const {
  const Value* value = find(key);
  if (!value || !size_fits(*value, size) || !is_integer(value->element_type()))
    return wrong(key, value, fmt::format("an array{} of integers from {} to {}", any_of(size), min, max));
  std::vector<int64_t> out(value->size());
  for (uint64_t i = 0; i < out.size(); ++i) {
    out[i] = value->int_at(i);
    if (out[i] < min || out[i] > max)
      return fail(Code::invalid, "{}: key {} has {} at [{}], wanted an integer from {} to {}", path_, quote(key),
                  out[i], i, min, max);
  }
  return out;
}

Result<std::vector<float>> File::require_floats(std::string_view key, uint64_t size) const {
  const Value* value = find(key);
  if (!value || !size_fits(*value, size) || !is_float(value->element_type()))
    return wrong(key, value, fmt::format("an array{} of f32", any_of(size)));
  std::vector<float> out(value->size());
  for (uint64_t i = 0; i < out.size(); ++i) {
    out[i] = float(value->float_at(i));
    if (!std::isfinite(out[i]))
      return fail(Code::invalid, "{}: key {} has {} at [{}], wanted a finite f32", path_, quote(key),
                  value->float_at(i), i);
  }
  return out;
}

Result<std::vector<bool>> File::require_bools(std::string_view key, uint64_t size) const {
  const Value* value = find(key);
  if (!value || !size_fits(*value, size) ||
      (value->element_type() != Type::boolean && !is_integer(value->element_type())))
    return wrong(key, value, fmt::format("an array{} of bools", any_of(size)));
  std::vector<bool> out(value->size());
  for (uint64_t i = 0; i < out.size(); ++i) {
    const int64_t b = value->int_at(i);
    if (b != 0 && b != 1)
      return fail(Code::invalid, "{}: key {} has {} at [{}], wanted 0 or 1", path_, quote(key), b, i);
    out[i] = b != 0;
  }
  return out;
}

Result<const Value*> File::require_strings(std::string_view key, uint64_t size) const {
  const Value* value = find(key);
  if (!value || !size_fits(*value, size) || value->element_type() != Type::string)
    return wrong(key, value, fmt::format("an array{} of strings", any_of(size)));
  return value;
}

Result<std::vector<uint32_t>> File::require_u32_each(std::string_view key, uint64_t n, uint32_t min,
                                                     uint32_t max) const {
  const Value* value = find(key);
  if (value && !value->is_array()) {
    ARGENT_LET(const uint32_t all, require_u32(key, min, max));
    return std::vector<uint32_t>(n, all);
  }
  if (!value) return wrong(key, nullptr, fmt::format("{}, or an array of {}", u32_wanted(min, max), n));
  ARGENT_LET(const auto ints, require_ints(key, n, min, max));
  return std::vector<uint32_t>(ints.begin(), ints.end());
}

}  // namespace argent::gguf
