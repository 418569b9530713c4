#include <algorithm>

#include "engine/engine.h"

namespace argent {

void Engine::set_profile(bool on) {
  profiling_ = on;
  times_.clear();
  profiled_plans_.clear();
  plans_.clear();  // plans are made again, so that their graphs are at hand
  backend_->set_profile(on);
}

void Engine::record_profile(const Plan& plan, const CostContext& context) {
  for (const NodeTime& time : backend_->profile()) {
    const Node& node = plan.graph.nodes[time.node];
    auto it = std::find_if(times_.begin(), times_.end(),
                           [&](const OpTime& t) { return t.op == node.op && t.layer == node.layer; });
    if (it == times_.end()) it = times_.insert(it, OpTime{node.op, node.layer, 0, 0, {}});
    const Cost c = cost(plan.graph, node, context);
    ++it->count;
    it->nanoseconds += time.nanoseconds;
    it->cost.bytes += c.bytes;
    it->cost.flops += c.flops;
  }
}

std::vector<OpTime> Engine::profile() const { return times_; }

}  // namespace argent
