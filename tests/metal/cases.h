// Cases of the Metal kernels against plain C++ in double, through the device seam: the same on the emulator and,
// compiled as CUDA, on a GPU.
#pragma once

#include <cmath>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "backends/metal/device.h"
#include "base/rng.h"

namespace argent::metal {

struct Case {
  std::string kernel;
  std::string name;  // letters, digits and _ only
  // What is wrong, in one line; nothing when all is right.
  std::function<std::string(Device&)> run;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }  // for gtest
};

// The cases of a file: `static const CaseSet norms(norm_cases);` makes them known.
class CaseSet {
 public:
  explicit CaseSet(std::vector<Case> (*make)()) { all().push_back(make); }
  static std::vector<std::vector<Case> (*)()>& all() {
    static std::vector<std::vector<Case> (*)()> makers;
    return makers;
  }
};
std::vector<Case> all_cases();

// Uniform in [-1, 1), the same everywhere.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : rng_(seed) {}
  float next() { return float(int64_t(rng_.next() >> 40) - (1 << 23)) * 0x1p-23f; }
  uint64_t bits() { return rng_.next(); }
  std::vector<float> floats(size_t n, float scale = 1.0f) {
    std::vector<float> v(n);
    for (float& x : v) x = scale * next();
    return v;
  }

 private:
  Rng rng_;
};

// Makes buffers and runs one dispatch; keeps the first thing that went wrong.
class Bench {
 public:
  explicit Bench(Device& device) : device_(device) {}

  template <class T>
  const Buffer& upload(const std::vector<T>& data) {
    const Buffer& buffer = alloc(data.size() * sizeof(T));
    if (error_.empty())
      std::memcpy(buffers_.back()->fill(0, data.size() * sizeof(T)).data(), data.data(), data.size() * sizeof(T));
    return buffer;
  }
  const Buffer& alloc(size_t size);
  // A dispatch of the kernel, to be completed and given to run().
  Dispatch dispatch(const std::string& kernel, std::vector<FunctionConstant> constants, Size grid, Size threads);
  void run(std::vector<Dispatch> dispatches);
  std::vector<float> floats(const Buffer& buffer) const;
  const std::string& error() const { return error_; }

 private:
  Device& device_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::string error_;
};

// What outputs are filled with first, to see what a kernel wrote. No result of any case.
constexpr float kUntouched = -987654.0f;

// Compares rows of an output, stride apart, with what is wanted: |got - want| <= tolerance * scale, elements between
// rows untouched.
std::string compare(const std::vector<float>& got, const std::vector<double>& want, const std::vector<double>& scale,
                    size_t rows, size_t cols, size_t stride, double tolerance);

}  // namespace argent::metal
