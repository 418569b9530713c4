// What one render has used so far, against its limits.
#pragma once

#include "base/result.h"
#include "chat/template.h"

namespace argent::jinja {

class Meter {
 public:
  explicit Meter(const TemplateLimits& limits) : limits_(limits), steps_left_(limits.steps) {}
  Meter(const Meter&) = delete;

  const TemplateLimits& limits() const { return limits_; }

  Status step(uint64_t n = 1) {
    if (n > steps_left_) {
      steps_left_ = 0;
      return fail(Code::invalid, "the template takes more than {} steps", limits_.steps);
    }
    steps_left_ -= n;
    return {};
  }
  // The steps of copying or comparing this many bytes.
  Status step_bytes(size_t bytes) { return step(1 + bytes / 64); }

  // Whether `bytes` more would fit, for a result about to be built.
  Status room(size_t bytes) const {
    if (bytes > limits_.memory_bytes || used_ > limits_.memory_bytes - bytes) {
      return fail(Code::invalid, "the template needs more than {} bytes of memory", limits_.memory_bytes);
    }
    return {};
  }
  Status reserve(size_t bytes) {
    ARGENT_TRY(room(bytes));
    used_ += bytes;
    return {};
  }
  void release(size_t bytes) { used_ -= bytes; }

 private:
  TemplateLimits limits_;
  uint64_t steps_left_;
  size_t used_ = 0;
};

}  // namespace argent::jinja
