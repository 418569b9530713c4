// Plans of the real architectures: what fuses, memory checked by brute force, dumps that parse.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <sstream>

#include "base/json.h"
#include "graph/plan.h"
#include "support/kernel_tables.h"
#include "support/tiny_model.h"

namespace argent {
namespace {

using test::FakeDevice;
using test::TinyModel;

std::unique_ptr<test::LoadedModel> loaded(const std::string& arch) {
  auto model = test::load(TinyModel(arch));
  EXPECT_TRUE(model) << model.error().message;
  return *std::move(model);
}

std::map<Op, size_t> fused_ops(const std::string& arch, const PlanKey& key,
                               const PlanOptions& options = {.stop_after = Stage::fused}) {
  const auto m = loaded(arch);
  const FakeDevice cpu("cpu");
  const KernelTable* device = &cpu;
  const auto plan = make_plan(m->model.graph, key, {&device, 1}, options);
  EXPECT_TRUE(plan) << plan.error().message;
  EXPECT_TRUE(verify(plan->graph));
  std::map<Op, size_t> counts;
  for (const Node& node : plan->graph.nodes) ++counts[node.op];
  return counts;
}

TEST(Plans, PatternsFuseInEveryArchitecture) {
  const PlanKey decode{1, 1, true, Tail::logits}, chunk{64, 8, false, Tail::logits};
  for (const std::string& arch : test::kArchitectures) {
    auto ops = fused_ops(arch, decode);
    const size_t n = arch == "gemma3" ? 7 : arch == "muse-glimmer" ? 5 : 2;
    EXPECT_EQ(ops[Op::qkv], n) << arch;
    EXPECT_EQ(ops[Op::glu], n) << arch;
    EXPECT_EQ(fused_ops(arch, chunk)[Op::qkv], n - 1) << arch;  // the last layer's q has fewer rows
    EXPECT_EQ(ops[Op::mul_row], 0u) << arch;
    EXPECT_EQ(ops[Op::add_bias], 0u) << arch;
    EXPECT_EQ(ops[Op::rms_norm], arch == "muse-glimmer" ? 1u : 0u) << arch;  // the embedding's, without a weight
    const bool sandwich = arch == "gemma3" || arch == "muse-glimmer";
    EXPECT_EQ(ops[Op::norm_mul_add], sandwich ? 2 * n : 0) << arch;
    EXPECT_EQ(ops[Op::add_norm_mul], sandwich ? 0 : 2 * n) << arch;
  }
}

// ---- memory ----

struct Range {
  uint64_t begin, end;
  bool overlaps(const Range& o) const { return begin < o.end && o.begin < end; }
};

uint64_t bytes_of(const Plan& plan, ValueId id) {
  const Value& v = plan.graph.value(id);
  return (v.dtype == DType::candidates ? 8 * uint64_t(v.width) + 8 : 4 * uint64_t(v.width)) * plan.max_rows(v.rows);
}

// Walks the plan as a device would: which bytes hold which value, and is each operand still there when it is read?
void check_memory(const Plan& plan, const std::vector<const KernelTable*>& devices, const std::string& what) {
  const Graph& g = plan.graph;
  std::vector<size_t> last(g.values.size(), 0);
  for (size_t n = 0; n < g.nodes.size(); ++n)
    for (ValueId id : g.nodes[n].inputs) last[id] = n;
  for (ValueId id : {g.logits, g.sampled})
    if (id != kNone) last[id] = g.nodes.size();
  struct Alive {
    ValueId id;
    Range range;
    uint8_t device;
  };
  std::vector<Alive> alive;
  ASSERT_EQ(plan.offset.size(), g.values.size()) << what;
  ASSERT_EQ(plan.workspace.size(), g.nodes.size()) << what;
  ASSERT_EQ(plan.arena_bytes.size(), devices.size()) << what;
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    const Node& node = g.nodes[n];
    const auto where = [&] { return what + ", node " + std::to_string(n) + " " + std::string(info(node.op).name); };
    std::erase_if(alive, [&](const Alive& a) { return last[a.id] < n && a.id != g.logits && a.id != g.sampled; });
    for (ValueId id : node.inputs)
      if (g.value(id).kind == ValueKind::activation) {
        ASSERT_TRUE(std::any_of(alive.begin(), alive.end(), [&](const Alive& a) { return a.id == id; }))
            << where() << " reads " << id;
      }
    if (node.in_place) {  // the input makes room for output 0
      const ValueId dying = node.inputs[size_t(info(node.op).in_place)];
      ASSERT_EQ(last[dying], n) << where();
      ASSERT_EQ(plan.offset[dying], plan.offset[node.outputs[0]]) << where();
      ASSERT_EQ(bytes_of(plan, dying), bytes_of(plan, node.outputs[0])) << where();
      ASSERT_EQ(std::count(node.inputs.begin(), node.inputs.end(), dying), 1) << where();
      std::erase_if(alive, [&](const Alive& a) { return a.id == dying; });
    }
    const auto place = [&](Range range, ValueId id) {
      ASSERT_EQ(range.begin % 64, 0u) << where();
      ASSERT_LE(range.end, plan.arena_bytes[node.device]) << where();
      for (const Alive& a : alive)
        if (a.device == node.device) {
          ASSERT_FALSE(a.range.overlaps(range)) << where() << ": " << id << " lies on " << a.id;
        }
      alive.push_back({id, range, node.device});
    };
    for (ValueId id : node.outputs) {
      ASSERT_NE(plan.offset[id], Plan::kNoOffset) << where();
      place({plan.offset[id], plan.offset[id] + bytes_of(plan, id)}, id);
      last[id] = std::max(last[id], n);
    }
    uint32_t n_rows = plan.key.n_outputs;
    for (ValueId id : node.inputs)
      if (g.value(id).rows == Rows::tokens) n_rows = plan.key.n_tokens;
    if (const uint64_t bytes = devices[node.device]->workspace(g, node, n_rows)) {
      ASSERT_NE(plan.workspace[n], Plan::kNoOffset) << where();
      place({plan.workspace[n], plan.workspace[n] + bytes}, kNone);
      alive.pop_back();  // scratch is free after the node
    } else {
      ASSERT_EQ(plan.workspace[n], Plan::kNoOffset) << where();
    }
  }
  for (size_t id = 0; id < g.values.size(); ++id)
    if (g.values[id].kind != ValueKind::activation) {
      ASSERT_EQ(plan.offset[id], Plan::kNoOffset) << what;
    }
}

TEST(Plans, NoTwoValuesAliveOverlap) {
  FakeDevice cpu("cpu"), gpu("gpu", {Op::softcap, Op::glu, Op::top_k});
  const auto scratch = [](const Node& node, uint32_t n_rows) -> uint64_t {
    return node.op == Op::matmul || node.op == Op::qkv ? 100 * n_rows + 1 : node.op == Op::attention ? 5000 : 0;
  };
  cpu.scratch = gpu.scratch = scratch;
  for (const std::string& arch : test::kArchitectures) {
    const auto m = loaded(arch);
    for (const bool fuse : {true, false})
      for (const Tail tail : {Tail::logits, Tail::greedy, Tail::sample})
        for (const auto& [tokens, outputs, all_rows] : {std::tuple(1u, 1u, true),
                                                        {8u, 1u, false},
                                                        {8u, 8u, true},
                                                        {64u, 64u, false},
                                                        {512u, 8u, false},
                                                        {512u, 64u, false}})
          for (const bool split : {false, true}) {
            const std::string what = fmt::format("{} {}/{}{}{}{}", arch, tokens, outputs, all_rows ? " all" : "",
                                                 fuse ? " fused" : "", split ? " split" : "");
            const std::vector<const KernelTable*> devices =
                split ? std::vector<const KernelTable*>{&gpu, &cpu} : std::vector<const KernelTable*>{&cpu};
            const auto plan = make_plan(
                m->model.graph, {tokens, outputs, all_rows, tail}, devices,
                {.fuse = fuse, .layer_device = split ? std::vector<uint8_t>{0, 1, 0} : std::vector<uint8_t>{}});
            ASSERT_TRUE(plan) << plan.error().message;
            check_memory(*plan, devices, what);
            if (HasFatalFailure()) return;
          }
  }
}

// What the largest rungs need is reserved when a model is loaded: no other rung may need more.
TEST(Plans, LargestRungsNeedTheLargestArena) {
  FakeDevice cpu("cpu");
  cpu.scratch = [](const Node& node, uint32_t n_rows) -> uint64_t { return node.op == Op::matmul ? 300 * n_rows : 0; };
  const KernelTable* device = &cpu;
  const auto arena = [&](const Graph& graph, const PlanKey& key, bool fuse) {
    const auto plan = make_plan(graph, key, {&device, 1}, {.fuse = fuse});
    EXPECT_TRUE(plan) << plan.error().message;
    return plan->arena_bytes[0];
  };
  for (const std::string& arch : test::kArchitectures)
    for (const uint32_t n_vocab : {100u, 5000u})
      for (const bool fuse : {true, false}) {
        const auto m = test::load(TinyModel(arch, {.n_vocab = n_vocab}));
        ASSERT_TRUE(m);
        const Graph& graph = (*m)->model.graph;
        for (const auto& [max_tokens, max_outputs] : {std::pair(512u, 64u), {64u, 64u}, {100u, 7u}, {3u, 1u}}) {
          uint64_t reserved = 0;
          for (Tail tail : {Tail::logits, Tail::sample})
            for (const PlanKey& key :
                 {PlanKey{max_tokens, max_outputs, false, tail}, PlanKey{max_outputs, max_outputs, true, tail}})
              reserved = std::max(reserved, arena(graph, key, fuse));
          for (uint32_t n : {1u, 2u, 8u, 9u, 64u, 65u, 512u})
            for (uint32_t outputs : {0u, 1u, 2u, 8u, 9u, 64u})
              for (Tail tail : {Tail::logits, Tail::greedy, Tail::sample})
                if (n <= max_tokens && outputs <= std::min(n, max_outputs)) {
                  ASSERT_LE(arena(graph, plan_key(n, outputs, max_tokens, max_outputs, tail), fuse), reserved)
                      << arch << " " << n << " " << outputs;
                }
        }
      }
}

// ---- dumps ----

// A grammar of what we write of DOT: digraph ID { statements }, with nested subgraphs, quoted names and attribute
// lists.
class DotParser {
 public:
  explicit DotParser(const std::string& text) {
    static const std::regex token(R"("(?:[^"\\]|\\.)*"|->|[{}\[\];=,]|[A-Za-z_0-9.]+)");
    std::string rest;
    auto at = text.cbegin();
    for (std::sregex_iterator it(text.begin(), text.end(), token), end; it != end; ++it) {
      rest += std::string(at, (*it)[0].first);
      at = (*it)[0].second;
      tokens_.push_back(it->str());
    }
    rest += std::string(at, text.cend());
    clean_ = rest.find_first_not_of(" \n") == std::string::npos;
  }
  bool parse() { return clean_ && take("digraph") && name() && block() && at_ == tokens_.size(); }
  size_t edges() const { return edges_; }

 private:
  bool take(const std::string& what) { return at_ < tokens_.size() && tokens_[at_] == what && ++at_; }
  bool name() {
    return at_ < tokens_.size() &&
           (tokens_[at_][0] == '"' || std::isalnum(tokens_[at_][0]) || tokens_[at_][0] == '_') && ++at_;
  }
  bool attributes() {
    if (!take("[")) return true;
    while (!take("]")) {
      if (!name() || !take("=") || !name()) return false;
      take(",");
    }
    return true;
  }
  bool block() {
    if (!take("{")) return false;
    while (!take("}")) {
      if (take("subgraph")) {
        if (!name() || !block()) return false;
        continue;
      }
      if (!name()) return false;
      if (take("=")) {
        if (!name()) return false;
      } else if (take("->")) {
        if (!name()) return false;
        ++edges_;
      }
      if (!attributes() || !take(";")) return false;
    }
    return true;
  }
  std::vector<std::string> tokens_;
  size_t at_ = 0, edges_ = 0;
  bool clean_ = false;
};

TEST(Dumps, EveryStageInEveryFormat) {
  const FakeDevice cpu("cpu"), gpu("g\"pu");
  for (const std::string& arch : test::kArchitectures) {
    const auto m = loaded(arch);
    const CostContext context{.n_tokens = 8, .n_outputs = 2, .n_kv = 100};
    for (const Stage stage : {Stage::built, Stage::rows, Stage::placed, Stage::fused, Stage::aliased, Stage::planned}) {
      const std::vector<const KernelTable*> devices = {&cpu, &gpu};
      const auto plan = make_plan(m->model.graph, {8, 8, false, Tail::sample}, devices,
                                  {.stop_after = stage, .layer_device = {0, 1}});
      ASSERT_TRUE(plan) << plan.error().message;
      ASSERT_TRUE(verify(plan->graph)) << verify(plan->graph).error().message;
      const size_t n_nodes = plan->graph.nodes.size();
      size_t n_operands = 0;
      for (const Node& node : plan->graph.nodes) n_operands += node.inputs.size();

      const auto json = nlohmann::json::parse(dump(*plan, DumpFormat::json, context));
      ASSERT_EQ(json["nodes"].size(), n_nodes);
      for (size_t n = 0; n < n_nodes; ++n) {
        const auto& row = json["nodes"][n];
        const Node& node = plan->graph.nodes[n];
        EXPECT_EQ(row["op"], info(node.op).name);
        EXPECT_EQ(row["inputs"].size(), node.inputs.size());
        EXPECT_EQ(row["outputs"].size(), node.outputs.size());
        const Cost c = cost(plan->graph, node, context);
        EXPECT_EQ(row["bytes"], c.bytes);
        EXPECT_EQ(row["flops"], c.flops);
        if (stage == Stage::planned) {
          for (size_t k = 0; k < node.outputs.size(); ++k)
            EXPECT_EQ(row["outputs"][k]["offset"], plan->offset[node.outputs[k]]);
        }
      }
      if (stage == Stage::planned) {
        EXPECT_EQ(json["arena_bytes"].get<std::vector<uint64_t>>(), plan->arena_bytes);
      }

      DotParser dot(dump(*plan, DumpFormat::dot, context));
      EXPECT_TRUE(dot.parse()) << arch;
      EXPECT_EQ(dot.edges(), n_operands);

      const std::string text = dump(*plan, DumpFormat::text, context);
      EXPECT_EQ(size_t(std::count(text.begin(), text.end(), '\n')), n_nodes + 1);
      EXPECT_EQ(text.find("in place") != std::string::npos, stage >= Stage::aliased);
      EXPECT_NE(text.find("# " + std::to_string(n_nodes) + " nodes"), std::string::npos);
    }
    EXPECT_TRUE(DotParser(dump(m->model.graph, DumpFormat::dot, context)).parse());
    EXPECT_EQ(nlohmann::json::parse(dump(m->model.graph, DumpFormat::json, context))["nodes"].size(),
              m->model.graph.nodes.size());
  }
}

TEST(Dumps, CostsSurviveTheFusion) {
  const FakeDevice cpu("cpu");
  const KernelTable* device = &cpu;
  for (const std::string& arch : test::kArchitectures) {
    const auto m = loaded(arch);
    const auto products = [&](bool fuse) {  // of matrices: what fusion may not change
      const auto plan = make_plan(m->model.graph, {8, 8, false, Tail::logits}, {&device, 1}, {.fuse = fuse});
      uint64_t flops = 0;
      for (const Node& node : plan->graph.nodes)
        if (node.op == Op::matmul || node.op == Op::qkv || node.op == Op::glu)
          flops += cost(plan->graph, node, {.n_tokens = 8, .n_outputs = 3}).flops;
      return flops;
    };
    EXPECT_GT(products(true), 0u);
    EXPECT_EQ(products(true), products(false)) << arch;
  }
}

}  // namespace
}  // namespace argent
