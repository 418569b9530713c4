#include "cli/profile.h"

#include <algorithm>
#include <vector>

namespace argent::cli {
namespace {

struct Row {
  Op op;
  uint64_t count = 0;
  double seconds = 0;
  double bytes = 0, flops = 0;
  std::vector<const OpTime*> layers;

  double rate(double amount) const { return seconds > 0 ? amount / seconds : 0; }
};

std::vector<Row> rows_by_op(std::span<const OpTime> times) {
  std::vector<Row> rows;
  for (const OpTime& time : times) {
    auto it = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.op == time.op; });
    if (it == rows.end()) it = rows.insert(it, Row{time.op, 0, 0, 0, 0, {}});
    it->count += time.count;
    it->seconds += double(time.nanoseconds) * 1e-9;
    it->bytes += double(time.cost.bytes);
    it->flops += double(time.cost.flops);
    it->layers.push_back(&time);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return rows;
}

}  // namespace

std::string profile_text(std::span<const OpTime> times) {
  const std::vector<Row> rows = rows_by_op(times);
  double total = 0;
  for (const Row& row : rows) total += row.seconds;
  std::string out =
      fmt::format("{:<28} {:>8} {:>10} {:>6} {:>10} {:>8} {:>9}\n", "op", "calls", "ms", "%", "MB", "GB/s", "GFLOP/s");
  for (const Row& row : rows)
    out += fmt::format("{:<28} {:>8} {:>10.2f} {:>6.1f} {:>10.1f} {:>8.2f} {:>9.2f}\n", info(row.op).name, row.count,
                       row.seconds * 1e3, total > 0 ? 100 * row.seconds / total : 0, row.bytes / 1e6,
                       row.rate(row.bytes) / 1e9, row.rate(row.flops) / 1e9);
  return out + fmt::format("{:<28} {:>8} {:>10.2f}\n", "all", "", total * 1e3);
}

nlohmann::ordered_json profile_json(std::span<const OpTime> times) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Row& row : rows_by_op(times)) {
    nlohmann::ordered_json layers = nlohmann::ordered_json::array();
    for (const OpTime* time : row.layers)
      layers.push_back({{"layer", time->layer}, {"count", time->count}, {"seconds", double(time->nanoseconds) * 1e-9}});
    all.push_back({{"op", info(row.op).name},
                   {"count", row.count},
                   {"seconds", row.seconds},
                   {"bytes", uint64_t(row.bytes)},
                   {"flops", uint64_t(row.flops)},
                   {"bytes_per_second", row.rate(row.bytes)},
                   {"flops_per_second", row.rate(row.flops)},
                   {"layers", std::move(layers)}});
  }
  return all;
}

}  // namespace argent::cli
