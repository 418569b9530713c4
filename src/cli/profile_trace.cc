#include "cli/profile_trace.h"
#include "base/json.h"

#include <fmt/format.h>

namespace argent::cli {
namespace {

constexpr uint64_t kMaxEvents = 2'000'000;  // about 400 MB of JSON

double microseconds(uint64_t nanoseconds) { return double(nanoseconds) * 1e-3; }

Json event(std::string_view name, uint32_t track, uint64_t begin, uint64_t nanoseconds, Json args) {
  return {{"name", name},
          {"ph", "X"},
          {"pid", 1},
          {"tid", track},
          {"ts", microseconds(begin)},
          {"dur", microseconds(nanoseconds)},
          {"args", std::move(args)}};
}

Json named(std::string_view what, uint32_t track, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", 1}, {"tid", track}, {"args", {{"name", name}}}};
}

// "f32 [tokens][576] x Q4_1 [1536][576]": an op's inputs that are no data of the step.
std::string shape(const Graph& graph, const Node& node) {
  std::string text;
  for (ValueId id : node.inputs)
    if (graph.value(id).kind != ValueKind::input)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", describe(graph.value(id)));
  return text;
}

}  // namespace

Status Trace::open(const std::string& path) {
  path_ = path;
  file_.open(path, std::ios::binary | std::ios::trunc);
  if (!file_) return fail(Code::io, "--profile-trace {}: cannot write there", path);
  return {};
}

void Trace::add(const ProfiledStep& step) {
  if (!is_open()) return;
  if (n_left_out_ || n_events_ > kMaxEvents) {
    ++n_left_out_;
    return;
  }
  Step kept{step, {step.nodes.begin(), step.nodes.end()}, {}};
  kept.step.nodes = {};
  for (NodeTime& node : kept.nodes) {
    kept.busy.insert(kept.busy.end(), node.busy.begin(), node.busy.end());
    n_threads_ = std::max(n_threads_, uint32_t(node.busy.size()));
    n_events_ += 1 + node.busy.size();
    node.busy = {};
  }
  steps_.push_back(std::move(kept));
}

void Trace::write_step(const Step& s, const DevicePeaks& peaks) {
  const Graph& graph = *s.step.graph;
  const CostContext& c = s.step.context;
  const auto write = [&](const Json& e) { file_ << ",\n" << e.dump(-1, ' ', false, Json::error_handler_t::replace); };
  write(event(
      s.step.decode ? "decode" : "prefill", 0, s.step.begin, s.step.nanoseconds,
      {{"tokens", c.n_tokens}, {"logits_rows", c.n_outputs}, {"sequences", c.n_sequences}, {"positions", c.n_kv}}));
  const size_t n_threads = s.nodes.empty() ? 0 : s.busy.size() / s.nodes.size();
  for (size_t i = 0; i < s.nodes.size(); ++i) {
    const NodeTime& time = s.nodes[i];
    const Node& node = graph.nodes[time.node];
    const std::string_view name = info(node.op).name;
    const Cost work = cost(graph, node, c);
    const Limit limit = limit_of(work, peaks, s.step.int8);
    const double ns = double(std::max<uint64_t>(1, time.nanoseconds));
    Json args = {{"node", time.node},
                 {"layer", node.layer},
                 {"shape", shape(graph, node)},
                 {"bytes", work.bytes},
                 {"flops", work.flops},
                 {"GB/s", double(work.bytes) / ns},
                 {"GOP/s", double(work.flops) / ns}};
    if (limit.seconds > 0) args["% of peak"] = 100 * limit.seconds / (ns * 1e-9), args["limit"] = limit.name;
    write(event(name, 0, s.step.begin + time.begin, time.nanoseconds, std::move(args)));
    for (uint32_t t = 0; t < n_threads; ++t)
      write(event(name, 1 + t, s.step.begin + time.begin, s.busy[i * n_threads + t],
                  {{"node", time.node}, {"layer", node.layer}}));
  }
}

Status Trace::write(const DevicePeaks& peaks, const std::string& device) {
  file_ << "{\"displayTimeUnit\": \"ms\",\n\"otherData\": "
        << Json{{"device", device},
                {"read_bytes_per_second", peaks.read_bytes},
                {"int8_ops_per_second", peaks.int8_ops},
                {"f32_ops_per_second", peaks.f32_ops}}
               .dump(-1, ' ', false, Json::error_handler_t::replace)
        << ",\n\"traceEvents\": [\n"
        << named("process_name", 0, "argent") << ",\n"
        << named("thread_name", 0, "steps and ops");
  for (uint32_t t = 0; t < n_threads_; ++t)
    file_ << ",\n" << named("thread_name", 1 + t, fmt::format("thread {}, at work", t));
  for (const Step& s : steps_) write_step(s, peaks);
  file_ << "\n]}\n";
  file_.close();
  if (!file_) return fail(Code::io, "--profile-trace {}: cannot write all of it", path_);
  return {};
}

}  // namespace argent::cli
