// Rows of tables of every format, by ids.
#include <fmt/format.h>

#include "backends/metal/kernels/args.h"
#include "metal/cases.h"
#include "metal/weights.h"

namespace argent::metal {

namespace {

struct Shape {
  uint32_t rows, cols, gap;
  std::vector<uint32_t> ids;
};

std::string run(Device& device, const std::string& kernel, Format format, const Shape& shape) {
  Numbers numbers(shape.rows * 1000003 + shape.cols);
  const auto table = random_rows(format, shape.rows, shape.cols, numbers);
  const uint32_t stride = shape.cols + shape.gap;
  std::vector<double> want;
  std::vector<float> row(shape.cols);
  for (uint32_t id : shape.ids) {
    const uint32_t read = std::min(id, shape.rows - 1);
    decode_row(format, table.data() + read * row_bytes(format, shape.cols), row.data(), shape.cols);
    want.insert(want.end(), row.begin(), row.end());
  }
  Bench bench(device);
  const Buffer& y = bench.upload(std::vector<float>((shape.ids.size() - 1) * stride + shape.cols, kUntouched));
  const uint32_t groups = (shape.cols / 8 + 63) / 64;
  Dispatch d = bench.dispatch(kernel, {}, {groups, uint32_t(shape.ids.size())}, {64});
  d.value(0, GetRowsArgs{shape.rows, shape.cols, stride});
  d.bind(1, bench.upload(table)).bind(2, bench.upload(shape.ids)).bind(3, y);
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  // Exact: every product of a decoder is.
  return compare(bench.floats(y), want, std::vector<double>(want.size()), shape.ids.size(), shape.cols, stride, 1);
}

std::vector<Case> rows_cases() {
  std::vector<Case> cases;
  for (const FormatInfo& f : kFormats) {
    if (!f.format) continue;
    const uint32_t block = std::max(f.block, 8u);
    const std::string kernel = "get_rows_" + name_of(*f.format);
    // A threadgroup of 64 threads has more than there are pieces of a row. The last has an id outside of the table,
    // which reads the last row.
    for (const Shape& s : {Shape{1, block, 0, {0}},
                           {5, 3 * block, 4, {4, 0, 2, 4, 1}},
                           {3, f.block == 256 ? 256 : 37 * block, 0, {2, 0xffffffff, 3}}}) {
      cases.push_back({kernel, fmt::format("{}_{}x{}_ids_{}", kernel, s.rows, s.cols, s.ids.size()),
                       [=](Device& device) { return run(device, kernel, *f.format, s); }});
    }
  }
  return cases;
}

const CaseSet known(rows_cases);

}  // namespace

}  // namespace argent::metal
