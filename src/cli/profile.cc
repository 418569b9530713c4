#include "cli/profile.h"

#include <algorithm>
#include <vector>

#include "cli/command.h"

namespace argent::cli {
namespace {

struct Row {
  std::string name;
  int32_t layer = -1;
  OpTime time;
};

std::vector<Row> by_op(const Profile::Phase& phase) {
  std::vector<Row> rows;
  for (const auto& [key, time] : phase.times) {
    const std::string_view name = info(key.second).name;
    auto it = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.name == name; });
    if (it == rows.end()) it = rows.insert(it, {std::string(name), -1, {}});
    it->time += time;
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.time.nanoseconds > b.time.nanoseconds; });
  return rows;
}

std::vector<Row> by_layer(const Profile::Phase& phase) {
  std::vector<Row> rows;
  for (const auto& [key, time] : phase.times) {
    if (key.first < 0) continue;
    if (rows.empty() || rows.back().layer != key.first)
      rows.push_back({fmt::format("layer {}", key.first), key.first, {}});
    rows.back().time += time;
  }
  return rows;
}

// The ops that belong to no layer, slowest first.
std::vector<Row> outside(const Profile::Phase& phase) {
  Profile::Phase only;
  for (const auto& [key, time] : phase.times)
    if (key.first < 0) only.times[key] = time;
  return by_op(only);
}

double rate(uint64_t amount, const OpTime& time) { return time.nanoseconds ? double(amount) / time.seconds() : 0; }

class Table {
 public:
  Table(const Profile::Phase& phase, const DevicePeaks& peaks) : phase_(phase), peaks_(peaks) {
    for (const auto& [key, time] : phase.times) all_ += time;
  }
  const OpTime& all() const { return all_; }

  std::string head(std::string_view first) const {
    return fmt::format("{:<20} {:>8} {:>10} {:>6} {:>10} {:>8} {:>9} {:>12} {:>7}\n", first, "calls", "ms", "%", "MB",
                       "GB/s", "GOP/s", "% of peak", "% wait");
  }
  // `steps` divides: time and bytes of one step.
  std::string row(std::string_view name, const OpTime& time, uint64_t steps = 1) const {
    const Limit limit = limit_of(time.cost, peaks_, phase_.int8);
    const std::string peak = limit.seconds > 0 && time.nanoseconds
                                 ? fmt::format("{:.0f} {:<4}", 100 * limit.seconds / time.seconds(), limit.name)
                                 : "-";
    return fmt::format("{:<20} {:>8} {:>10.3f} {:>6.1f} {:>10.2f} {:>8.2f} {:>9.2f} {:>12} {:>7}\n", name,
                       time.count / steps, time.seconds() * 1e3 / double(steps),
                       all_.nanoseconds ? 100.0 * double(time.nanoseconds) / double(all_.nanoseconds) : 0.0,
                       double(time.cost.bytes) * 1e-6 / double(steps), rate(time.cost.bytes, time) * 1e-9,
                       rate(time.cost.flops, time) * 1e-9, peak,
                       time.threads ? fmt::format("{:.1f}", 100 * time.wait()) : "-");
  }

  std::string layers(bool all_layers) const {
    std::vector<Row> rows = by_layer(phase_);
    std::string out = head("of one step");
    if (all_layers || rows.size() <= 6) {
      for (const Row& row : rows) out += this->row(row.name, row.time, phase_.steps);
    } else {
      const auto [first, last] = std::pair(rows.front().layer, rows.back().layer);
      std::stable_sort(rows.begin(), rows.end(),
                       [](const Row& a, const Row& b) { return a.time.nanoseconds < b.time.nanoseconds; });
      const auto named = [&](std::string_view what, const Row& r) {
        return row(fmt::format("{} (layer {})", what, r.layer), r.time, phase_.steps);
      };
      out += fmt::format("layers {}-{}\n", first, last);
      out += named("  min", rows.front()) + named("  median", rows[rows.size() / 2]) + named("  max", rows.back());
      out += "  slowest:";
      for (size_t i = 1; i <= 3; ++i)
        out += fmt::format("{} layer {} {:.3f} ms", i > 1 ? "," : "", rows[rows.size() - i].layer,
                           rows[rows.size() - i].time.seconds() * 1e3 / double(phase_.steps));
      out += "; --profile-layers prints all\n";
    }
    out += "outside\n";
    for (const Row& row : outside(phase_)) out += this->row("  " + row.name, row.time, phase_.steps);
    return out;
  }

 private:
  const Profile::Phase& phase_;
  const DevicePeaks& peaks_;
  OpTime all_;
};

std::string phase_text(std::string_view name, const Profile::Phase& phase, const DevicePeaks& peaks, bool all_layers) {
  if (!phase.steps) return {};
  const Table table(phase, peaks);
  std::string out = fmt::format(
      "{}: {} step{}, {} token{}, {:.2f} ms, {:.0f} % of it in ops\n", name, phase.steps, phase.steps == 1 ? "" : "s",
      phase.tokens, phase.tokens == 1 ? "" : "s", double(phase.nanoseconds) * 1e-6,
      phase.nanoseconds ? 100.0 * double(table.all().nanoseconds) / double(phase.nanoseconds) : 0);
  out += table.head("op");
  for (const Row& row : by_op(phase)) out += table.row(row.name, row.time);
  out += table.row("all", table.all());
  return out + "\n" + table.layers(all_layers) + "\n";
}

void add_figures(Json& row, const OpTime& time, const Profile::Phase& phase, const DevicePeaks& peaks) {
  row["count"] = time.count;
  row["seconds"] = time.seconds();
  row["bytes"] = time.cost.bytes;
  row["flops"] = time.cost.flops;
  row["bytes_per_second"] = rate(time.cost.bytes, time);
  row["flops_per_second"] = rate(time.cost.flops, time);
  const Limit limit = limit_of(time.cost, peaks, phase.int8);
  if (limit.seconds > 0 && time.nanoseconds)
    row["peak_share"] = limit.seconds / time.seconds(), row["peak"] = limit.name;
  if (time.threads) row["wait_share"] = time.wait();
}

Json phase_json(std::string_view name, const Profile::Phase& phase, const DevicePeaks& peaks) {
  Json ops = Json::array(), layers = Json::array();
  for (const Row& row : by_op(phase)) {
    Json op = {{"op", row.name}};
    add_figures(op, row.time, phase, peaks);
    op["layers"] = Json::array();
    for (const auto& [key, time] : phase.times) {
      if (info(key.second).name != row.name) continue;
      Json layer = {{"layer", key.first}};
      add_figures(layer, time, phase, peaks);
      op["layers"].push_back(std::move(layer));
    }
    ops.push_back(std::move(op));
  }
  for (const Row& row : by_layer(phase)) {
    Json layer = {{"layer", row.layer}};
    add_figures(layer, row.time, phase, peaks);
    layers.push_back(std::move(layer));
  }
  return {{"phase", name},          {"steps", phase.steps},
          {"tokens", phase.tokens}, {"seconds", double(phase.nanoseconds) * 1e-9},
          {"ops", std::move(ops)},  {"layers", std::move(layers)}};
}

}  // namespace

void ProfileOptions::add(CLI::App& app) {
  app.add_flag("--profile", wanted,
               "time, bytes and rates of each op and layer, on stderr; each op then ends with a barrier")
      ->group("Profile");
  app.add_flag("--profile-layers", layers, "the same with every layer's line")->group("Profile");
  app.add_option("--profile-trace", trace, "the same, and every op of every step as a Chrome trace in this file")
      ->group("Profile");
}

std::string profile_text(const Profile& profile, const DevicePeaks& peaks, bool all_layers) {
  std::string out = phase_text("prefill", profile.prefill(), peaks, all_layers) +
                    phase_text("decode", profile.decode(), peaks, all_layers);
  if (out.empty()) return out;
  out +=
      "Each op ended with a barrier, so that its time is its own; runs without a profile have fewer and are faster.\n";
  if (peaks.read_bytes > 0)
    out += fmt::format(
        "% of peak: of what reading its bytes ({:.1f} GB/s) or its operations (int8 {:.0f} GOP/s, f32 {:.0f}) allow, "
        "measured in this run,\nwhichever is the limit; above 100 where caches held the bytes. % wait: threads waiting "
        "for the slowest of them.\n",
        peaks.read_bytes * 1e-9, peaks.int8_ops * 1e-9, peaks.f32_ops * 1e-9);
  else
    out += "What the device can do was not measured: it cannot be, or too little memory is free for it.\n";
  return out;
}

Json peaks_json(const DevicePeaks& peaks) {
  return {{"read_bytes_per_second", peaks.read_bytes},
          {"int8_ops_per_second", peaks.int8_ops},
          {"f32_ops_per_second", peaks.f32_ops}};
}

Json profile_json(const Profile& profile, const DevicePeaks& peaks) {
  Json phases = Json::array();
  for (const auto& [name, phase] : {std::pair{"prefill", &profile.prefill()}, {"decode", &profile.decode()}})
    if (phase->steps) phases.push_back(phase_json(name, *phase, peaks));
  return {{"peaks", peaks_json(peaks)}, {"barrier_after_each_op", true}, {"phases", std::move(phases)}};
}

Profiler::~Profiler() {
  if (engine_) engine_->set_profile({});
}

Status Profiler::start(Engine& engine, const ProfileOptions& options) {
  if (!options.on()) return {};
  options_ = options;
  if (!options.trace.empty()) {
    ARGENT_TRY(not_the_model("--profile-trace", options.trace, engine));
    ARGENT_TRY(trace_.open(options.trace));
  }
  engine_ = &engine;
  peaks_ = engine.measure_peaks();
  engine.set_profile([this](const ProfiledStep& step) {
    profile_.add(step);
    trace_.add(step);
  });
  return {};
}

const DevicePeaks& Profiler::peaks() {
  if (!settled_) peaks_ = better(peaks_, engine_->measure_peaks());
  settled_ = true;
  return peaks_;
}

void Profiler::print() {
  if (on()) to_stderr("{}", profile_text(profile_, peaks(), options_.layers));
}

Status Profiler::finish() {
  if (!on() || !trace_.is_open()) return {};
  if (trace_.n_left_out())
    to_stderr("argent: the trace is full: the last {} steps are not in it\n", trace_.n_left_out());
  return trace_.write(peaks(), engine_->backend().caps().description);
}

}  // namespace argent::cli
