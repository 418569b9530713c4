// The passes on small graphs, and plan keys; plans of whole models are tested in tests/models.
#include <gtest/gtest.h>

#include <map>

#include "graph/builder.h"
#include "graph/kv_layout.h"
#include "graph/passes/passes.h"
#include "support/kernel_tables.h"

namespace argent {
namespace {

using test::FakeDevice;

const uint8_t kWeightBytes[1] = {};

// A decoder of n layers, 2 heads of 32 over 1 key head.
struct Decoder : Builder {
  explicit Decoder(int n_layers = 2) {
    x = embed(input(Input::tokens), weight("embd", Format::f32, 100, 64, kWeightBytes));
    table = rope_table(input(Input::positions), kNone, {.n_rot = 32});
    for (int i = 0; i < n_layers; ++i) add_layer(i);
  }
  ValueId matrix(const std::string& name, uint32_t n_out, uint32_t n_in, Format format = Format::q8_0) {
    return weight(name, format, n_out, n_in, kWeightBytes);
  }
  ValueId vector(const std::string& name, uint32_t n) { return weight(name, Format::f32, 1, n, kWeightBytes); }
  void add_layer(int i) {
    layer(i);
    const auto name = [&](const char* part) { return fmt::format("{}.{}", i, part); };
    const ValueId h = rms_norm(x, vector(name("norm"), 64), 1e-5f);
    const ValueId q = rope(matmul(h, matrix(name("q"), 64, 64)), table, 2, {.n_rot = 32});
    const ValueId k = rope(matmul(h, matrix(name("k"), 32, 64)), table, 1, {.n_rot = 32});
    const ValueId v = matmul(h, matrix(name("v"), 32, 64));
    const ValueId cache = kv({.layer = uint32_t(i), .n_head_kv = 1, .d_head = 32, .d_value = 32});
    kv_store(k, v, cache);
    x = add(matmul(attention(q, cache, 2, 0.1f), matrix(name("o"), 64, 64)), x);
    const ValueId f = rms_norm(x, vector(name("ffn_norm"), 64), 1e-5f);
    x = add(matmul(mul(silu(matmul(f, matrix(name("gate"), 96, 64))), matmul(f, matrix(name("up"), 96, 64))),
                   matrix(name("down"), 64, 96)),
            x);
    layer(-1);
  }
  Graph with_head() {
    set_logits(matmul(rms_norm(x, vector("norm", 64), 1e-5f), matrix("head", 100, 64)));
    return done();
  }
  Graph done() {
    auto graph = finish();
    EXPECT_TRUE(graph) << graph.error().message;
    return *std::move(graph);
  }
  ValueId x, table;
};

const FakeDevice kCpu("cpu");

Plan plan(const Graph& graph, std::vector<const KernelTable*> devices = {&kCpu}, const PlanOptions& options = {},
          PlanKey key = {8, 8, false, Tail::logits}) {
  auto made = make_plan(graph, key, devices, options);
  EXPECT_TRUE(made) << made.error().message;
  if (made) {
    const Status sound = verify(made->graph);
    EXPECT_TRUE(sound) << sound.error().message;
  }
  return made ? *std::move(made) : Plan{};
}
Graph after(Stage stage, const Graph& graph, std::vector<const KernelTable*> devices = {&kCpu},
            PlanOptions options = {}) {
  options.stop_after = stage;
  return plan(graph, std::move(devices), options).graph;
}

size_t count(const Graph& graph, Op op) {
  return size_t(std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& n) { return n.op == op; }));
}
std::vector<const Node*> all(const Graph& graph, Op op) {
  std::vector<const Node*> found;
  for (const Node& n : graph.nodes)
    if (n.op == op) found.push_back(&n);
  return found;
}
Rows rows_of(const Graph& graph, const Node* node) { return graph.value(node->outputs[0]).rows; }

// ---- rows ----

TEST(RowsPass, LastLayerRunsOnLogitsRowsOnly) {
  const Graph graph = after(Stage::rows, Decoder(2).with_head());
  std::map<std::pair<int, Op>, std::vector<Rows>> rows;
  for (const Node& n : graph.nodes)
    if (!n.outputs.empty()) rows[{n.layer, n.op}].push_back(rows_of(graph, &n));
  for (const auto& [key, seen] : rows)
    if (key.first == 0 || key.second == Op::embed || key.second == Op::rope_table) {
      for (Rows r : seen) EXPECT_EQ(r, Rows::tokens) << key.first << " " << info(key.second).name;
    }
  // Layer 1: K and V on all tokens, q and what follows on the rows that want logits.
  EXPECT_EQ((rows[{1, Op::attention}]), std::vector{Rows::outputs});
  EXPECT_EQ((rows[{1, Op::rope}]), (std::vector{Rows::outputs, Rows::tokens}));
  EXPECT_EQ((rows[{1, Op::matmul}]), (std::vector{Rows::outputs, Rows::tokens, Rows::tokens, Rows::outputs,
                                                  Rows::outputs, Rows::outputs, Rows::outputs}));
  EXPECT_EQ((rows[{1, Op::silu}]), std::vector{Rows::outputs});
  EXPECT_EQ((rows[{-1, Op::matmul}]), std::vector{Rows::outputs});
  // The norm for q, the table for its rotation, the residual: each gathered once.
  EXPECT_EQ(count(graph, Op::gather_rows), 3u);
  EXPECT_EQ(graph.value(graph.logits).rows, Rows::outputs);
}

TEST(RowsPass, AllRowsKeepsEverything) {
  const Graph built = Decoder(2).with_head();
  const Graph graph = plan(built, {&kCpu}, {.stop_after = Stage::rows}, {8, 8, true, Tail::logits}).graph;
  EXPECT_EQ(graph.nodes.size(), built.nodes.size());
  for (const Node& n : graph.nodes)
    for (ValueId id : n.outputs) EXPECT_EQ(graph.value(id).rows, Rows::tokens);
}

TEST(RowsPass, DropsDeadNodes) {
  Decoder b(1);
  const ValueId dead = b.silu(b.x);
  b.gelu(dead);
  b.rope_table(b.input(Input::positions), kNone, {.n_rot = 16});
  const Graph built = b.with_head();
  for (const bool all_rows : {false, true}) {
    const Graph graph = plan(built, {&kCpu}, {.stop_after = Stage::rows}, {8, 8, all_rows, Tail::logits}).graph;
    EXPECT_EQ(count(graph, Op::silu), 1u);
    EXPECT_EQ(count(graph, Op::gelu), 0u);
    EXPECT_EQ(count(graph, Op::rope_table), 1u);
    EXPECT_EQ(count(graph, Op::kv_store), 1u);  // nothing reads it in the graph: the next step does
  }
}

TEST(RowsPass, TokenRowsAreGatheredEvenWhereOnlyLogitsRowsWantThem) {
  Builder b;  // no attention: only the head wants what embed makes for each token
  const ValueId w = b.weight("w", Format::f32, 100, 64, kWeightBytes);
  const ValueId x = b.embed(b.input(Input::tokens), w);
  b.set_logits(b.matmul(x, w));
  Graph graph = after(Stage::planned, *b.finish());
  EXPECT_EQ(count(graph, Op::gather_rows), 1u);
  EXPECT_EQ(graph.value(graph.logits).rows, Rows::outputs);

  graph.logits = x;  // embed's output itself
  Graph direct;
  direct.values = graph.values, direct.nodes = {graph.nodes[0]}, direct.logits = x;
  graph = after(Stage::planned, direct);
  EXPECT_EQ(count(graph, Op::gather_rows), 1u);
  EXPECT_EQ(graph.value(graph.logits).rows, Rows::outputs);
}

TEST(RowsPass, TailFollowsTheLogits) {
  for (const bool all_rows : {false, true}) {
    const Plan greedy = plan(Decoder(1).with_head(), {&kCpu}, {}, {8, 8, all_rows, Tail::greedy});
    EXPECT_EQ(greedy.graph.nodes.back().op, Op::argmax);
    EXPECT_EQ(greedy.graph.logits, kNone);
    const Plan sample = plan(Decoder(1).with_head(), {&kCpu}, {}, {8, 8, all_rows, Tail::sample});
    EXPECT_EQ(sample.graph.sampled, sample.graph.nodes.back().outputs[0]);
    for (Op op : {Op::adjust, Op::top_k, Op::top_p, Op::min_p, Op::temperature, Op::draw}) {
      ASSERT_EQ(count(sample.graph, op), 1u);
      EXPECT_EQ(rows_of(sample.graph, all(sample.graph, op)[0]), all_rows ? Rows::tokens : Rows::outputs);
    }
  }
}

// ---- place ----

TEST(PlacePass, LayersSplitOverDevices) {
  const FakeDevice other("gpu");
  const Graph graph = after(Stage::placed, Decoder(4).with_head(), {&kCpu, &other}, {.layer_device = {0, 0, 1, 1}});
  for (const Node& n : graph.nodes)
    if (n.layer >= 0 && n.op != Op::copy) {
      EXPECT_EQ(n.device, n.layer < 2 ? 0 : 1);
    }
  // Every operand is on the device of its reader, and nothing is copied twice to one device.
  std::map<ValueId, uint8_t> home;
  std::set<std::pair<ValueId, uint8_t>> copies;
  for (const Node& n : graph.nodes) {
    for (ValueId id : n.inputs)
      if (graph.value(id).kind == ValueKind::activation && n.op != Op::copy) {
        EXPECT_EQ(home.at(id), n.device) << info(n.op).name;
      }
    if (n.op == Op::copy) {
      EXPECT_NE(home.at(n.inputs[0]), n.device);
      EXPECT_TRUE(copies.insert({n.inputs[0], n.device}).second);
    }
    for (ValueId id : n.outputs) home[id] = n.device;
  }
  // x goes over; the rope table is made on both.
  EXPECT_EQ(count(graph, Op::copy), 1u);
  EXPECT_EQ(count(graph, Op::rope_table), 2u);
  EXPECT_EQ(all(graph, Op::embed)[0]->device, 0);
  EXPECT_EQ(graph.nodes.back().device, 1);  // the head
}

TEST(PlacePass, OpsWithoutAKernelGoWhereThereIsOne) {
  const FakeDevice lacks("gpu", {Op::silu}), lacks_too("npu", {Op::silu});
  const Graph built = Decoder(2).with_head();
  const Graph graph = after(Stage::placed, built, {&lacks, &lacks_too, &kCpu});
  for (const Node& n : graph.nodes)
    if (n.op != Op::copy) {
      EXPECT_EQ(n.device, n.op == Op::silu ? 2 : 0) << info(n.op).name;
    }
  EXPECT_EQ(count(graph, Op::copy), 4u);  // there and back in each layer

  const auto refused =
      make_plan(built, {8, 8, false, Tail::logits}, std::vector<const KernelTable*>{&lacks, &lacks_too});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_EQ(refused.error().message, "gpu: NONE: silu(f32 [tokens][96])");
}

TEST(PlacePass, ACacheAndItsReadersStayTogether) {
  const FakeDevice no_attention("gpu", {Op::attention});
  const Graph graph = after(Stage::placed, Decoder(2).with_head(), {&no_attention, &kCpu});
  for (const Node& n : graph.nodes)
    if (n.op == Op::attention || n.op == Op::kv_store) {
      EXPECT_EQ(n.device, 1) << info(n.op).name;
    }
  const FakeDevice no_store("npu", {Op::kv_store});
  const auto refused = make_plan(Decoder(2).with_head(), {8, 8, false, Tail::logits},
                                 std::vector<const KernelTable*>{&no_attention, &no_store});
  ASSERT_FALSE(refused);  // each op has a kernel, but not on one device
  EXPECT_NE(refused.error().message.find("gpu: NONE: attention("), std::string::npos) << refused.error().message;
}

TEST(PlacePass, SamplingMovesToTheDeviceThatHasIt) {
  const FakeDevice no_sampling("gpu", {Op::top_k, Op::min_p, Op::draw});
  const Plan made = plan(Decoder(1).with_head(), {&no_sampling, &kCpu}, {}, {8, 8, false, Tail::sample});
  EXPECT_EQ(all(made.graph, Op::top_p)[0]->device, 0);  // candidates go back and forth
  EXPECT_EQ(all(made.graph, Op::min_p)[0]->device, 1);
  EXPECT_EQ(count(made.graph, Op::copy), 5u);
}

TEST(PlacePass, DevicesMustExist) {
  EXPECT_FALSE(make_plan(Decoder(1).with_head(), {}, {}));
  const KernelTable* one = &kCpu;
  const auto refused = make_plan(Decoder(2).with_head(), {}, {&one, 1}, {.layer_device = {0, 1}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid);
}

// ---- fuse ----

TEST(FusePass, FindsThePatterns) {
  const Graph graph = after(Stage::fused, Decoder(3).with_head());
  EXPECT_EQ(count(graph, Op::rms_norm), 0u);
  EXPECT_EQ(count(graph, Op::mul_row), 0u);
  EXPECT_EQ(count(graph, Op::glu), 3u);
  EXPECT_EQ(count(graph, Op::qkv), 2u);       // the last layer's q runs on other rows
  EXPECT_EQ(count(graph, Op::norm_mul), 1u);  // the first; the others follow a residual
  EXPECT_EQ(count(graph, Op::add_norm_mul), 6u);
  EXPECT_EQ(count(graph, Op::add), 0u);
  const Graph unfused = after(Stage::fused, Decoder(3).with_head(), {&kCpu}, {.fuse = false});
  for (Op op : {Op::glu, Op::qkv, Op::norm_mul, Op::add_norm_mul, Op::norm_mul_add}) EXPECT_EQ(count(unfused, op), 0u);
}

TEST(FusePass, OnlyWhatTheDeviceWants) {
  const Graph built = Decoder(3).with_head();
  for (Op op : {Op::glu, Op::qkv, Op::norm_mul, Op::add_norm_mul}) {
    FakeDevice none("gpu", {op}), unwanted("gpu");
    unwanted.unfused = {op};
    EXPECT_EQ(count(after(Stage::fused, built, {&none}), op), 0u) << info(op).name;
    EXPECT_EQ(count(after(Stage::fused, built, {&unwanted}), op), 0u) << info(op).name;
  }
  // By format: qkv with a matrix that the fused kernel does not take.
  FakeDevice by_format("gpu");
  by_format.refuses = [](const Graph& g, const Node& n) {
    return n.op == Op::qkv && g.value(n.inputs[2]).name == "0.k";
  };
  EXPECT_EQ(count(after(Stage::fused, built, {&by_format}), Op::qkv), 1u);
}

// norm(x) * w and what is read of it besides.
TEST(FusePass, LeavesValuesThatOthersRead) {
  Decoder b(0);
  const ValueId w = b.vector("w", 64), normed = b.rms_norm(b.x, kNone, 1e-5f);
  b.set_logits(b.add(b.add_op(Op::mul_row, {normed, w}), normed));
  const Graph two_readers = b.done();
  EXPECT_EQ(count(after(Stage::fused, two_readers), Op::norm_mul), 0u);

  Decoder c(0);  // gate, up or the activation read twice
  const ValueId gate = c.matmul(c.x, c.matrix("gate", 64, 64)), up = c.matmul(c.x, c.matrix("up", 64, 64)),
                act = c.silu(gate);
  const ValueId y = c.mul(act, up);
  for (ValueId twice : {gate, up, act}) {
    Decoder d = c;
    d.set_logits(d.add(y, twice));
    EXPECT_EQ(count(after(Stage::fused, d.done()), Op::glu), 0u);
  }
  c.set_logits(y);
  EXPECT_EQ(count(after(Stage::fused, c.done()), Op::glu), 1u);

  Decoder e(0);  // the result of the graph counts as a reader
  const ValueId bare = e.rms_norm(e.x, kNone, 1e-5f);
  e.add_op(Op::mul_row, {bare, e.vector("w", 64)});
  e.set_logits(bare);
  EXPECT_EQ(count(after(Stage::fused, e.done()), Op::norm_mul), 0u);
}

TEST(FusePass, GateAndUpOfOneInputOnly) {
  Decoder b(0);
  const ValueId other = b.gelu(b.x);
  b.set_logits(b.mul(b.silu(b.matmul(b.x, b.matrix("gate", 64, 64))), b.matmul(other, b.matrix("up", 64, 64))));
  EXPECT_EQ(count(after(Stage::fused, b.done()), Op::glu), 0u);
  Decoder c(0);  // up first, and gelu
  c.set_logits(c.mul(c.matmul(c.x, c.matrix("up", 64, 64)), c.gelu(c.matmul(c.x, c.matrix("gate", 64, 64)))));
  const Graph graph = after(Stage::fused, c.done());
  ASSERT_EQ(count(graph, Op::glu), 1u);
  const Node* glu = all(graph, Op::glu)[0];
  EXPECT_EQ(glu->attrs.act, Activation::gelu);
  EXPECT_EQ(graph.value(glu->inputs[1]).name, "gate");
  EXPECT_EQ(graph.value(glu->inputs[2]).name, "up");
}

TEST(FusePass, NormOfAPartOfARow) {
  Decoder b(0);  // a weight per head with a norm over the whole row is no norm_mul
  b.set_logits(b.add_op(Op::mul_row, {b.rms_norm(b.x, kNone, 1e-5f), b.vector("w", 32)}));
  EXPECT_EQ(count(after(Stage::fused, b.done()), Op::norm_mul), 0u);
  Decoder c(0);
  c.set_logits(c.rms_norm(c.x, c.vector("w", 32), 1e-5f, 32));
  const Graph graph = after(Stage::fused, c.done());
  ASSERT_EQ(count(graph, Op::norm_mul), 1u);
  EXPECT_EQ(all(graph, Op::norm_mul)[0]->attrs.group, 32u);
}

TEST(FusePass, PostNormAndResidual) {
  for (const bool norm_first : {true, false}) {
    Decoder b(0);
    const ValueId residual = b.x, normed = b.rms_norm(b.gelu(b.x), b.vector("w", 64), 1e-5f);
    b.set_logits(norm_first ? b.add(normed, residual) : b.add(residual, normed));
    const Graph graph = after(Stage::fused, b.done());
    ASSERT_EQ(count(graph, Op::norm_mul_add), 1u);
    EXPECT_EQ(count(graph, Op::add), 0u);
  }
  Decoder twice(0);
  const ValueId normed = twice.rms_norm(twice.x, twice.vector("w", 64), 1e-5f);
  twice.set_logits(twice.add(normed, normed));
  EXPECT_EQ(count(after(Stage::fused, twice.done()), Op::norm_mul_add), 0u);
}

// q, k, v with the biases that the mask says, and with one of them read once more.
Graph projections(uint32_t biases, int read_again = -1) {
  Decoder b(0);
  std::array<ValueId, 3> p;
  std::array<ValueId, 3> raw;
  for (uint32_t i = 0; i < 3; ++i) {
    const std::string name(1, "qkv"[i]);
    raw[i] = p[i] = b.matmul(b.x, b.matrix(name, i ? 32 : 64, 64));
    if (biases >> i & 1) p[i] = b.add_bias(p[i], b.vector("b" + name, i ? 32 : 64));
  }
  const ValueId cache = b.kv({.layer = 0, .n_head_kv = 1, .d_head = 32, .d_value = 32});
  b.kv_store(b.rope(p[1], b.table, 1, {.n_rot = 32}), p[2], cache);
  ValueId y = b.attention(b.rope(p[0], b.table, 2, {.n_rot = 32}), cache, 2, 1);
  if (read_again == 0) y = b.add(y, raw[0]);
  if (read_again > 0)
    y = b.matmul(b.add(b.matmul(y, b.matrix("down", 32, 64)), raw[size_t(read_again)]), b.matrix("up", 64, 32));
  b.set_logits(y);
  return b.done();
}
Graph fused_all_rows(const Graph& graph) {
  return plan(graph, {&kCpu}, {.stop_after = Stage::fused}, {8, 8, true, Tail::logits}).graph;
}

TEST(FusePass, ProjectionsWithAllBiasesOrNone) {
  for (uint32_t biases = 0; biases < 8; ++biases) {
    const Graph graph = fused_all_rows(projections(biases));
    const bool fits = biases == 0 || biases == 7;
    EXPECT_EQ(count(graph, Op::qkv), fits ? 1u : 0u) << biases;
    EXPECT_EQ(count(graph, Op::add_bias), fits ? 0 : size_t(std::popcount(biases))) << biases;
    if (!fits) continue;
    const Node* qkv = all(graph, Op::qkv)[0];
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(graph.value(qkv->inputs[1 + i]).name, std::string(1, "qkv"[i]));
    EXPECT_EQ(qkv->inputs.size(), biases ? 7u : 4u);
  }
}

// ---- what only devices want that pay for each step between dispatches

FakeDevice gpu() {
  FakeDevice device("gpu");
  device.none.clear();
  return device;
}

TEST(FusePass, FromProjectionsToTheCache) {
  const FakeDevice device = gpu();
  const Graph chunk = after(Stage::fused, Decoder(3).with_head(), {&device});
  EXPECT_EQ(count(chunk, Op::qkv_store), 2u);
  EXPECT_EQ(count(chunk, Op::kv_store), 1u);  // the last layer's q runs on other rows
  const Graph all_rows =
      plan(Decoder(3).with_head(), {&device}, {.stop_after = Stage::fused}, {8, 8, true, Tail::logits}).graph;
  EXPECT_EQ(count(all_rows, Op::qkv_store), 3u);
  for (const Op op : {Op::qkv, Op::rope, Op::kv_store}) EXPECT_EQ(count(all_rows, op), 0u) << info(op).name;
  const Node* node = all(all_rows, Op::qkv_store)[0];
  EXPECT_EQ(describe(node->op, node->attrs), "n_head=2 n_head_kv=1 d_head=32 d_value=32 n_rot=32");
  EXPECT_EQ(node->inputs.size(), 6u);
  for (uint32_t biases = 0; biases < 8; ++biases) {
    const Graph graph =
        plan(projections(biases), {&device}, {.stop_after = Stage::fused}, {8, 8, true, Tail::logits}).graph;
    ASSERT_EQ(count(graph, Op::qkv_store), biases == 0 || biases == 7 ? 1u : 0u) << biases;
    if (biases != 7) continue;
    const Node* with = all(graph, Op::qkv_store)[0];
    ASSERT_EQ(with->inputs.size(), 9u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(graph.value(with->inputs[6 + i]).name, std::string("b") + "qkv"[i]);
  }
  for (int again = 0; again < 3; ++again)  // q, k or v that somebody else reads
    EXPECT_EQ(
        count(plan(projections(0, again), {&device}, {.stop_after = Stage::fused}, {8, 8, true, Tail::logits}).graph,
              Op::qkv_store),
        0u);
}

// q and k must agree in what stands between; what does not stays as it is.
TEST(FusePass, QueriesAndKeysAlike) {
  const FakeDevice device = gpu();
  for (int difference = 0; difference < 6; ++difference) {
    Decoder b(0);
    const ValueId other = b.rope_table(b.input(Input::positions), kNone, {.n_rot = 32, .freq_base = 5});
    ValueId q = b.matmul(b.x, b.matrix("q", 64, 64)), k = b.matmul(b.x, b.matrix("k", 32, 64));
    const ValueId v = b.matmul(b.x, b.matrix("v", 32, 64));
    q = b.rms_norm(q, b.vector("nq", 32), 1e-5f, 32);
    if (difference != 1) k = b.rms_norm(k, b.vector("nk", 32), difference == 2 ? 1e-6f : 1e-5f, 32);
    q = b.rope(q, b.table, 2, {.n_rot = 32});
    if (difference != 3)
      k = b.rope(k, difference == 4 ? other : b.table, 1, {.n_rot = 32, .interleaved = difference == 5});
    const ValueId cache = b.kv({.layer = 0, .n_head_kv = 1, .d_head = 32, .d_value = 32});
    b.kv_store(k, v, cache);
    b.set_logits(b.attention(q, cache, 2, 1));
    const Graph graph = plan(b.done(), {&device}, {.stop_after = Stage::fused}, {8, 8, true, Tail::logits}).graph;
    EXPECT_EQ(count(graph, Op::qkv_store), difference == 0 ? 1u : 0u) << difference;
    if (difference == 0) {
      const Node* node = all(graph, Op::qkv_store)[0];
      ASSERT_EQ(node->inputs.size(), 8u);
      EXPECT_EQ(graph.value(node->inputs[6]).name, "nq");
      EXPECT_EQ(graph.value(node->inputs[7]).name, "nk");
      EXPECT_EQ(node->attrs.eps, 1e-5f);
    }
  }
}

TEST(FusePass, NormsAroundAResidualAndGates) {
  const FakeDevice device = gpu();
  Decoder b(0);
  const ValueId s = b.add(b.rms_norm(b.silu(b.x), b.vector("post", 64), 1e-8f), b.x);
  const ValueId y = b.rms_norm(s, b.vector("pre", 64), 1e-5f);
  b.set_logits(b.add(s, b.mul(b.sigmoid(b.gelu(b.x)), y)));
  const Graph graph = plan(b.done(), {&device}, {.stop_after = Stage::fused}, {8, 8, true, Tail::logits}).graph;
  ASSERT_EQ(count(graph, Op::norm_add_norm), 1u);
  const Node* node = all(graph, Op::norm_add_norm)[0];
  EXPECT_EQ(graph.value(node->inputs[1]).name, "post");
  EXPECT_EQ(graph.value(node->inputs[3]).name, "pre");
  EXPECT_EQ(describe(node->op, node->attrs), "eps=1e-08 eps2=1e-05");
  ASSERT_EQ(count(graph, Op::mul_sigmoid), 1u);
  EXPECT_EQ(all(graph, Op::mul_sigmoid)[0]->inputs[0], node->outputs[1]);  // what is gated comes first
}

TEST(FusePass, ProjectionsThatOthersRead) {
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(count(fused_all_rows(projections(0, again)), Op::qkv), 1u);  // an output of the fused op all the same
    EXPECT_EQ(count(fused_all_rows(projections(7, again)), Op::qkv), 0u);  // before its bias, it would be lost
  }
}

TEST(FusePass, NeverAcrossDevices) {
  const FakeDevice no_silu("gpu", {Op::silu}), no_norm("gpu", {Op::rms_norm});
  EXPECT_EQ(count(after(Stage::fused, Decoder(2).with_head(), {&no_silu, &kCpu}), Op::glu), 0u);
  const Graph graph = after(Stage::fused, Decoder(2).with_head(), {&no_norm, &kCpu});
  EXPECT_EQ(count(graph, Op::norm_mul), 0u);
  EXPECT_EQ(count(graph, Op::glu), 2u);
  const FakeDevice second("gpu1");
  const Graph split = after(Stage::fused, Decoder(2).with_head(), {&kCpu, &second}, {.layer_device = {0, 1}});
  for (const Node& n : split.nodes)
    if (n.op == Op::glu || n.op == Op::qkv) {
      EXPECT_EQ(n.device, n.layer);
    }
}

// ---- alias and memory ----

TEST(AliasPass, InPlaceWhereTheInputDies) {
  Decoder b(0);
  const ValueId a = b.silu(b.x), c = b.gelu(a);  // a dies in gelu, x lives on
  const ValueId d = b.add(c, b.x);
  b.set_logits(b.sigmoid(d));
  const Graph graph = plan(b.done(), {&kCpu}, {}, {8, 8, true, Tail::logits}).graph;
  EXPECT_FALSE(all(graph, Op::silu)[0]->in_place);
  EXPECT_TRUE(all(graph, Op::gelu)[0]->in_place);
  EXPECT_TRUE(all(graph, Op::add)[0]->in_place);
  EXPECT_TRUE(all(graph, Op::sigmoid)[0]->in_place);
}

TEST(AliasPass, NotOfASquareNorOfAResult) {
  Decoder b(0);
  const ValueId squared = b.mul(b.x, b.x);
  b.set_logits(squared);
  EXPECT_FALSE(plan(b.done(), {&kCpu}, {}, {8, 8, true, Tail::logits}).graph.nodes.back().in_place);
  Decoder c(0);
  const ValueId result = c.silu(c.x);
  c.set_logits(result);
  Graph graph = c.done();
  graph.nodes.push_back(*make_node(graph, Op::sigmoid, {result}, {}, -1));  // reads the result, which must survive
  ASSERT_TRUE(passes::alias(graph));
  EXPECT_FALSE(graph.nodes.back().in_place);
}

TEST(AliasPass, PenaltiesWorkOnTheLogitsThemselves) {
  const Graph graph = plan(Decoder(1).with_head(), {&kCpu}, {}, {8, 8, false, Tail::sample}).graph;
  for (Op op : {Op::adjust, Op::top_p, Op::min_p, Op::temperature})
    EXPECT_TRUE(all(graph, op)[0]->in_place) << info(op).name;
}

// A result is read after the step: what runs behind it in the plan may not take its place.
TEST(MemoryPass, ResultsLiveToTheEnd) {
  Decoder b(0);
  const ValueId result = b.silu(b.x);
  b.set_logits(result);
  ValueId y = b.gelu(b.x);
  for (int i = 0; i < 3; ++i) y = b.matmul(y, b.matrix(fmt::format("w{}", i), 64, 64));
  const ValueId cache = b.kv({.layer = 0, .n_head_kv = 1, .d_head = 64, .d_value = 64});
  b.kv_store(y, y, cache);
  const Plan made = plan(b.done(), {&kCpu}, {}, {8, 8, true, Tail::logits});
  ASSERT_EQ(made.graph.logits, result);
  for (const Node& n : made.graph.nodes)
    for (ValueId id : n.outputs)
      if (n.layer == -1 && id > result) {
        EXPECT_NE(made.offset[id], made.offset[result]) << info(n.op).name;
      }
}

TEST(MemoryPass, WorkspaceScalesWithTheNodesRows) {
  FakeDevice device("gpu");
  std::map<Op, std::set<uint32_t>> asked;
  device.scratch = [&](const Node& node, uint32_t n_rows) {
    asked[node.op].insert(n_rows);
    return node.op == Op::matmul ? 100u * n_rows : 0u;
  };
  const Plan made = plan(Decoder(1).with_head(), {&device}, {.fuse = false}, {64, 8, false, Tail::sample});
  EXPECT_EQ(asked[Op::matmul], (std::set<uint32_t>{8, 64}));
  EXPECT_EQ(asked[Op::embed], (std::set<uint32_t>{64}));
  EXPECT_EQ(asked[Op::gather_rows], (std::set<uint32_t>{64}));
  EXPECT_EQ(asked[Op::top_k], (std::set<uint32_t>{8}));
  for (size_t n = 0; n < made.graph.nodes.size(); ++n)
    EXPECT_EQ(made.workspace[n] != Plan::kNoOffset, made.graph.nodes[n].op == Op::matmul);
}

// ---- keys ----

TEST(PlanKeys, Properties) {
  for (const auto& [max_tokens, max_outputs] :
       {std::pair(512u, 64u), {512u, 512u}, {600u, 1u}, {64u, 64u}, {8u, 3u}, {1u, 1u}, {100u, 7u}})
    for (uint32_t n = 1; n <= 600; ++n)
      for (uint32_t outputs = 0; outputs <= std::min(n, max_outputs); outputs += outputs < 10 || outputs > 60 ? 1 : 7) {
        if (n > max_tokens) continue;
        const PlanKey key = plan_key(n, outputs, max_tokens, max_outputs, Tail::greedy);
        ASSERT_GE(key.n_tokens, n);
        ASSERT_GE(key.n_outputs, outputs);
        ASSERT_EQ(key.all_rows, n == outputs);
        ASSERT_EQ(key.tail, Tail::greedy);
        // Never beyond what memory was reserved for, and never far beyond the step: a rung is at most 8 times it.
        ASSERT_LE(key.n_tokens, key.all_rows ? max_outputs : max_tokens);
        ASSERT_LE(key.n_outputs, max_outputs);
        ASSERT_TRUE(key.n_tokens == n || key.n_tokens < 8 * n || n > 64) << n;
        if (key.all_rows) {
          ASSERT_EQ(key.n_outputs, key.n_tokens);
        }
        ASSERT_EQ(
            plan_key(key.n_tokens, key.all_rows ? key.n_tokens : key.n_outputs, max_tokens, max_outputs, Tail::greedy)
                .n_tokens,
            key.n_tokens);
      }
  std::set<std::pair<uint32_t, uint32_t>> keys;  // the ladder is short
  for (uint32_t n = 1; n <= 512; ++n)
    for (uint32_t outputs = 0; outputs <= std::min(n, 64u); ++outputs) {
      const PlanKey key = plan_key(n, outputs, 512, 64, Tail::logits);
      keys.insert({key.n_tokens + 1000 * key.all_rows, key.n_outputs});
    }
  EXPECT_LE(keys.size(), 12u);
}

TEST(KvLayoutTest, GroupsByWindow) {
  Builder b;
  for (uint32_t window : {5u, 0u, 5u, 7u})
    b.kv({.layer = uint32_t(b.graph().values.size()), .n_head_kv = 1, .d_head = 2, .d_value = 3, .window = window});
  const KvLayout layout = kv_layout(b.graph());
  EXPECT_EQ(layout.windows, (std::vector<uint32_t>{5, 0, 7}));
  EXPECT_EQ(layout.group_of_layer, (std::vector<uint32_t>{0, 1, 0, 2}));
  EXPECT_EQ(layout.layers[3].window, 7u);
}

}  // namespace
}  // namespace argent
