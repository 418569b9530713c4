// A plan is what a backend executes: the graph after the passes, and where every value lives.
#pragma once

#include <memory>
#include <span>

#include "graph/graph.h"
#include "graph/kernel_table.h"

namespace argent {

// What becomes of the rows that want logits: these are handed out; a token is drawn, greedily or by any rules; a token
// is drawn and the logits it was drawn from are handed out, adjusted (sample/rules.h); or the last hidden state (after
// the final norm, what the head multiplies) is handed out in place of logits.
enum class Tail : uint8_t { logits, greedy, sample, sample_logits, hidden };
// Gives the sampled tokens of its rows.
constexpr bool samples(Tail tail) {
  return tail == Tail::greedy || tail == Tail::sample || tail == Tail::sample_logits;
}

// All that changes a plan's structure. Lengths, positions, tables and ids are data of the step.
struct PlanKey {
  uint32_t n_tokens = 1;   // most rows, a rung of the ladder
  uint32_t n_outputs = 1;  // most logits rows
  bool all_rows = false;   // every row wants logits: nothing is gathered
  Tail tail = Tail::logits;
  bool operator==(const PlanKey&) const = default;
};

// The rung that serves a step; pure. Rungs are 1, 8, 64 and the largest step.
PlanKey plan_key(uint32_t n_tokens, uint32_t n_outputs, uint32_t max_tokens, uint32_t max_outputs, Tail tail);

struct Plan {
  PlanKey key;
  Graph graph;                      // node.device, node.in_place are set
  std::vector<uint64_t> offset;     // by value: bytes into the arena of its device; kNoOffset for what lives elsewhere
  std::vector<uint64_t> workspace;  // by node: offset of its scratch
  std::vector<uint64_t> arena_bytes;  // by device
  std::vector<std::string> devices;   // names, for dumps

  static constexpr uint64_t kNoOffset = UINT64_MAX;
  uint32_t max_rows(Rows rows) const { return rows == Rows::tokens ? key.n_tokens : key.n_outputs; }
};

enum class Stage : uint8_t { built, rows, placed, fused, aliased, planned };

struct PlanOptions {
  Stage stop_after = Stage::planned;  // for `argent graph --stage`
  bool fuse = true;
  // Device of each layer; the last entry is also that of what is behind the layers. Empty: everything on device 0.
  std::vector<uint8_t> layer_device = {};
  uint8_t front_device = 0;  // of what is before the layers
  bool fixed = false;        // no op goes to another device for want of a kernel: that is an error
};

// Runs the passes over a model's graph. Fails when an op has no kernel on any device, naming it with its shapes.
Result<Plan> make_plan(const Graph& model, const PlanKey& key, std::span<const KernelTable* const> devices,
                       const PlanOptions& options = {});

std::string dump(const Plan& plan, DumpFormat format, const CostContext& context);

}  // namespace argent
