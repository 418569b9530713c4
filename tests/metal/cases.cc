#include "metal/cases.h"

#include <fmt/format.h>

namespace argent::metal {

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto make : CaseSet::all())
    for (Case& c : make()) all.push_back(std::move(c));
  return all;
}

const Buffer& Bench::alloc(size_t size) {
  auto made = device_.alloc(size);
  if (!made) {
    error_ = made.error().message;
    throw std::runtime_error(error_);  // nothing in a test can go on without memory
  }
  buffers_.push_back(std::move(*made));
  return *buffers_.back();
}

Dispatch Bench::dispatch(const std::string& kernel, std::vector<FunctionConstant> constants, Size grid, Size threads) {
  auto made = device_.pipeline(kernel, constants);
  if (!made && error_.empty()) error_ = made.error().message;
  Dispatch d;
  d.pipeline = made ? *made : nullptr;
  d.grid = grid;
  d.threads = threads;
  return d;
}

void Bench::run(std::vector<Dispatch> dispatches) {
  if (!error_.empty()) return;
  const CommandList list{std::move(dispatches)};
  Status status = device_.submit(list);
  if (status) status = device_.wait();
  if (!status) error_ = status.error().message;
}

std::vector<float> Bench::floats(const Buffer& buffer) const {
  std::vector<float> v(buffer.bytes().size() / sizeof(float));
  std::memcpy(v.data(), buffer.bytes().data(), v.size() * sizeof(float));
  return v;
}

std::string compare(const std::vector<float>& got, const std::vector<double>& want, const std::vector<double>& scale,
                    size_t rows, size_t cols, size_t stride, double tolerance) {
  for (size_t r = 0; r < rows; r++) {
    for (size_t c = 0; c < stride && r * stride + c < got.size(); c++) {
      const float g = got[r * stride + c];
      if (c >= cols) {
        if (g != kUntouched) return fmt::format("row {} column {} is past the row's end, and became {}", r, c, g);
        continue;
      }
      const double error = std::fabs(double(g) - want[r * cols + c]);
      if (!(error <= tolerance * scale[r * cols + c])) {
        return fmt::format("row {} column {} is {}, wanted {}: off by {:.2g}, allowed {:.2g}", r, c, g,
                           want[r * cols + c], error, tolerance * scale[r * cols + c]);
      }
    }
  }
  return "";
}

}  // namespace argent::metal
