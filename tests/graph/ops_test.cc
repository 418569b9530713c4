// Shape rules, the verifier, the builder and the cost model.
#include <gtest/gtest.h>

#include "graph/builder.h"

namespace argent {
namespace {

const uint8_t kBytes[1] = {};  // behind weights that nobody reads

// A graph with one value of each kind to try ops on.
struct Values : Builder {
  ValueId tokens = input(Input::tokens), positions = input(Input::positions), output_rows = input(Input::output_rows);
  ValueId table = weight("table", Format::q8_0, 10, 64, kBytes);
  ValueId w64x64 = weight("w64x64", Format::q4_0, 64, 64, kBytes);
  ValueId w32x64 = weight("w32x64", Format::f16, 32, 64, kBytes);
  ValueId w64x32 = weight("w64x32", Format::f32, 64, 32, kBytes);
  ValueId v64 = weight("v64", Format::f32, 1, 64, kBytes), v32 = weight("v32", Format::f32, 1, 32, kBytes);
  ValueId v16 = weight("v16", Format::f32, 1, 16, kBytes), v48 = weight("v48", Format::f32, 1, 48, kBytes);
  ValueId h64 = weight("h64", Format::f16, 1, 64, kBytes);
  ValueId x64 = embed(tokens, table);
  ValueId x32 = matmul(x64, w32x64);
  ValueId out64 = add_op(Op::gather_rows, {x64, output_rows});
  ValueId rope32 = rope_table(positions, kNone, {.n_rot = 32});
  ValueId rope_out32 = add_op(Op::gather_rows, {rope32, output_rows});
  ValueId candidates = add_op(Op::top_k, {out64});
  ValueId cache = kv({.layer = 0, .n_head_kv = 1, .d_head = 32, .d_value = 32, .window = 5});

  // What the rule says: the shapes, or the message.
  std::string shape(Op op, const std::vector<ValueId>& inputs, const Attrs& attrs = {}) const {
    const auto out = infer(graph(), op, inputs, attrs);
    if (!out) return out.error().message;
    std::string text;
    for (const Value& v : *out) text += (text.empty() ? "" : ", ") + describe(v);
    return text;
  }
};

struct Shapes : testing::Test {
  Values b;
  void good(Op op, const std::vector<ValueId>& inputs, const Attrs& attrs, const std::string& wanted) {
    EXPECT_EQ(b.shape(op, inputs, attrs), wanted) << info(op).name;
  }
  // A misfit names the op, and every input with its shape.
  void bad(Op op, const std::vector<ValueId>& inputs, const Attrs& attrs, const std::string& what) {
    const std::string message = b.shape(op, inputs, attrs);
    std::string call = std::string(info(op).name) + "(";
    for (size_t i = 0; i < inputs.size(); ++i) call += (i ? ", " : "") + describe(b.graph().value(inputs[i]));
    EXPECT_EQ(message, call + "): " + what) << info(op).name;
  }
};

TEST_F(Shapes, ElementWise) {
  for (Op op : {Op::add, Op::mul}) {
    good(op, {b.x64, b.x64}, {}, "f32 [tokens][64]");
    bad(op, {b.x64, b.x32}, {}, "wants equal shapes");
    bad(op, {b.x64, b.out64}, {}, "wants equal shapes");
    bad(op, {b.x64, b.v64}, {}, "wants activations");
    bad(op, {b.candidates, b.candidates}, {}, "wants activations");
  }
  for (Op op : {Op::scale, Op::silu, Op::gelu, Op::sigmoid, Op::softcap, Op::adjust}) {
    good(op, {b.out64}, {}, "f32 [outputs][64]");
    bad(op, {b.tokens}, {}, "wants activations");
    bad(op, {b.w64x64}, {}, "wants activations");
  }
}

TEST_F(Shapes, EmbedAndMatmul) {
  good(Op::embed, {b.tokens, b.table}, {}, "f32 [tokens][64]");
  bad(Op::embed, {b.x64, b.table}, {}, "wants token ids and a table");
  bad(Op::embed, {b.tokens, b.x64}, {}, "wants token ids and a table");
  good(Op::matmul, {b.x64, b.w32x64}, {}, "f32 [tokens][32]");
  good(Op::matmul, {b.out64, b.w32x64}, {}, "f32 [outputs][32]");
  bad(Op::matmul, {b.x32, b.w32x64}, {}, "the matrix' rows and the activations differ in length");
  bad(Op::matmul, {b.x64, b.x64}, {}, "wants activations and a matrix");
  bad(Op::matmul, {b.tokens, b.w32x64}, {}, "wants activations and a matrix");
}

TEST_F(Shapes, RowVectors) {
  for (Op op : {Op::add_bias, Op::mul_row, Op::norm_mul}) {
    good(op, {b.x64, b.v64}, {}, "f32 [tokens][64]");
    bad(op, {b.x64, b.w64x64}, {}, "wants activations and an F32 vector");
    bad(op, {b.x64, b.h64}, {}, "wants activations and an F32 vector");
    bad(op, {b.x64, b.v48}, {}, "the vector's length does not divide the row");
  }
  good(Op::mul_row, {b.x64, b.v32}, {}, "f32 [tokens][64]");
  bad(Op::add_bias, {b.x64, b.v32}, {}, "wants a bias as long as the row");
  good(Op::norm_mul, {b.x64, b.v32}, {.group = 32}, "f32 [tokens][64]");
  bad(Op::norm_mul, {b.x64, b.v32}, {}, "wants a weight as long as the group that is normalised");
  bad(Op::norm_mul, {b.x64, b.v64}, {.group = 32}, "wants a weight as long as the group that is normalised");
  good(Op::rms_norm, {b.x64}, {}, "f32 [tokens][64]");
  good(Op::rms_norm, {b.x64}, {.group = 16}, "f32 [tokens][64]");
  bad(Op::rms_norm, {b.x64}, {.group = 48}, "the group does not divide the row");
  bad(Op::rms_norm, {b.v64}, {}, "wants activations");
}

TEST_F(Shapes, Rope) {
  good(Op::rope_table, {b.positions}, {.n_rot = 32}, "f32 [tokens][32]");
  good(Op::rope_table, {b.positions, b.v16}, {.n_rot = 32}, "f32 [tokens][32]");
  bad(Op::rope_table, {b.positions, b.v32}, {.n_rot = 32}, "wants 16 frequency factors");
  bad(Op::rope_table, {b.positions, b.x64}, {.n_rot = 32}, "wants 16 frequency factors");
  bad(Op::rope_table, {b.positions}, {.n_rot = 0}, "wants an even number of rotated elements");
  bad(Op::rope_table, {b.positions}, {.n_rot = 31}, "wants an even number of rotated elements");
  bad(Op::rope_table, {b.x64}, {.n_rot = 32}, "wants positions");
  good(Op::rope, {b.x64, b.rope32}, {.n_head = 2, .d_head = 32, .n_rot = 32}, "f32 [tokens][64]");
  good(Op::rope, {b.x64, b.rope32}, {.n_head = 1, .d_head = 64, .n_rot = 32}, "f32 [tokens][64]");
  good(Op::rope, {b.out64, b.rope_out32}, {.n_head = 2, .d_head = 32, .n_rot = 32}, "f32 [outputs][64]");
  bad(Op::rope, {b.x64, b.rope_out32}, {.n_head = 2, .d_head = 32, .n_rot = 32}, "wants activations and a table");
  bad(Op::rope, {b.x64, b.rope32}, {.n_head = 3, .d_head = 32, .n_rot = 32}, "the row is not n_head heads of d_head");
  bad(Op::rope, {b.x64, b.rope32}, {.n_head = 65536, .d_head = 65536, .n_rot = 32},
      "the row is not n_head heads of d_head");
  bad(Op::rope, {b.x64, b.rope32}, {.n_head = 4, .d_head = 16, .n_rot = 32}, "the table does not fit the head");
  bad(Op::rope, {b.x64, b.x32}, {.n_head = 2, .d_head = 32, .n_rot = 16}, "the table does not fit the head");
}

TEST_F(Shapes, Attention) {
  const Attrs kv{.n_head_kv = 1, .d_head = 32, .d_value = 32};
  good(Op::kv_store, {b.x32, b.x32, b.cache}, kv, "");
  bad(Op::kv_store, {b.x64, b.x32, b.cache}, kv, "the cache has other heads");
  bad(Op::kv_store, {b.x32, b.x64, b.cache}, kv, "the cache has other heads");
  bad(Op::kv_store, {b.x32, b.x32, b.cache}, {.n_head_kv = 2, .d_head = 16, .d_value = 16},
      "the cache has other heads");
  bad(Op::kv_store, {b.x32, b.x32, b.x32}, kv, "wants keys, values and a cache");
  const Attrs a{.n_head = 2, .n_head_kv = 1, .d_head = 32, .d_value = 32, .window = 5};
  good(Op::attention, {b.x64, b.cache}, a, "f32 [tokens][64]");
  good(Op::attention, {b.out64, b.cache}, a, "f32 [outputs][64]");
  bad(Op::attention, {b.x64, b.x64}, a, "wants queries and a cache");
  const auto changed = [&](auto change) {
    Attrs other = a;
    change(other);
    return other;
  };
  const std::string heads = "query heads are no multiple of key heads",
                    other = "the cache has other heads or another window";
  bad(Op::attention, {b.x64, b.cache}, changed([](Attrs& x) { x.n_head = 0; }), heads);
  bad(Op::attention, {b.x64, b.cache}, changed([](Attrs& x) { x.n_head_kv = 0; }), heads);
  bad(Op::attention, {b.x64, b.cache}, changed([](Attrs& x) { x.n_head_kv = 3; }), heads);
  bad(Op::attention, {b.x64, b.cache}, changed([](Attrs& x) { x.n_head_kv = 2; }), other);
  bad(Op::attention, {b.x64, b.cache}, changed([](Attrs& x) { x.n_head = 4; }), other);
  bad(Op::attention, {b.x64, b.cache}, changed([](Attrs& x) { x.window = 0; }), other);
  bad(Op::attention, {b.x64, b.cache}, changed([](Attrs& x) { x.d_value = 16; }), other);
}

TEST_F(Shapes, Sampling) {
  good(Op::argmax, {b.out64}, {}, "i32 [outputs][1]");
  good(Op::top_k, {b.out64}, {}, "candidates [outputs][64]");
  for (Op op : {Op::top_p, Op::min_p, Op::temperature}) {
    good(op, {b.candidates}, {}, "candidates [outputs][64]");
    bad(op, {b.out64}, {}, "wants candidates");
  }
  good(Op::draw, {b.candidates}, {}, "i32 [outputs][1]");
  bad(Op::top_k, {b.candidates}, {}, "wants logits");
  bad(Op::argmax, {b.tokens}, {}, "wants logits or candidates");
}

TEST_F(Shapes, RowsAndCopies) {
  good(Op::gather_rows, {b.x64, b.output_rows}, {}, "f32 [outputs][64]");
  bad(Op::gather_rows, {b.out64, b.output_rows}, {}, "wants rows of tokens and the rows that want logits");
  bad(Op::gather_rows, {b.x64, b.tokens}, {}, "wants rows of tokens and the rows that want logits");
  good(Op::copy, {b.x64}, {}, "f32 [tokens][64]");
  good(Op::copy, {b.candidates}, {}, "candidates [outputs][64]");
  bad(Op::copy, {b.w64x64}, {}, "wants what an op has made");
  bad(Op::copy, {b.cache}, {}, "wants what an op has made");
}

TEST_F(Shapes, Fused) {
  good(Op::add_norm_mul, {b.x64, b.x64, b.v64}, {}, "f32 [tokens][64], f32 [tokens][64]");
  bad(Op::add_norm_mul, {b.x64, b.x32, b.v64}, {}, "wants two equal rows and a norm weight");
  bad(Op::add_norm_mul, {b.x64, b.x64, b.v32}, {}, "wants two equal rows and a norm weight");
  good(Op::norm_mul_add, {b.x64, b.v64, b.x64}, {}, "f32 [tokens][64]");
  bad(Op::norm_mul_add, {b.x64, b.v64, b.out64}, {}, "wants a row, a norm weight and a residual row");
  bad(Op::norm_mul_add, {b.x64, b.v32, b.x64}, {}, "wants a row, a norm weight and a residual row");
  good(Op::qkv, {b.x64, b.w64x64, b.w32x64, b.w32x64}, {}, "f32 [tokens][64], f32 [tokens][32], f32 [tokens][32]");
  good(Op::qkv, {b.x64, b.w64x64, b.w32x64, b.w32x64, b.v64, b.v32, b.v32}, {},
       "f32 [tokens][64], f32 [tokens][32], f32 [tokens][32]");
  bad(Op::qkv, {b.x64, b.w64x64, b.w32x64, b.w32x64, b.v64}, {}, "wants no biases or three");
  bad(Op::qkv, {b.x64, b.w64x64, b.w64x32, b.w32x64}, {}, "wants three matrices that fit the row");
  bad(Op::qkv, {b.x64, b.w64x64, b.w32x64, b.w32x64, b.v64, b.v64, b.v32}, {}, "wants biases as long as the outputs");
  good(Op::glu, {b.x64, b.w32x64, b.w32x64}, {}, "f32 [tokens][32]");
  bad(Op::glu, {b.x64, b.w32x64, b.w64x64}, {}, "wants two equal matrices that fit the row");
  bad(Op::glu, {b.x32, b.w32x64, b.w32x64}, {}, "wants two equal matrices that fit the row");
}

TEST_F(Shapes, ArityAndMissingInputs) {
  EXPECT_EQ(b.shape(Op::add, {b.x64}), "add: has 1 inputs, wants 2 to 2");
  good(Op::norm_add_norm, {b.x64, b.v64, b.x64, b.v64}, {}, "f32 [tokens][64], f32 [tokens][64]");
  bad(Op::norm_add_norm, {b.x64, b.v64, b.x64, b.v32}, {},
      "wants a row, a norm weight, a residual row and another norm weight");
  good(Op::mul_sigmoid, {b.x64, b.x64}, {}, "f32 [tokens][64]");
  bad(Op::mul_sigmoid, {b.x64, b.x32}, {}, "wants equal shapes");
  EXPECT_EQ(b.shape(Op::qkv, std::vector<ValueId>(8, b.x64)), "qkv: has 8 inputs, wants 4 to 7");
  EXPECT_EQ(b.shape(Op::silu, {kNone}), "silu: an input is missing");
  for (size_t i = 0; i < kOps; ++i) {  // no op reads beyond its inputs, whatever they are
    const OpInfo& row = info(Op(i));
    for (size_t n = 0; n <= 8; ++n)
      for (ValueId id = 0; id < b.graph().values.size(); ++id) {
        const auto out = infer(b.graph(), Op(i), std::vector<ValueId>(n, id), {});
        EXPECT_TRUE(!out || (n >= row.least_inputs && n <= row.most_inputs && out->size() == row.n_outputs))
            << row.name;
      }
  }
}

TEST(OpTable, RowsAreSound) {
  for (size_t i = 0; i < kOps; ++i) {
    const OpInfo& row = info(Op(i));
    EXPECT_LE(row.least_inputs, row.most_inputs) << row.name;
    EXPECT_LT(row.in_place, row.least_inputs) << row.name;
    EXPECT_TRUE(row.in_place < 0 || row.n_outputs > 0) << row.name;
    const std::string text = describe(Op(i), {.eps = 1e-5f,
                                              .eps2 = 1e-6f,
                                              .scale = 2,
                                              .softcap = 3,
                                              .group = 4,
                                              .n_head = 5,
                                              .n_head_kv = 6,
                                              .d_head = 7,
                                              .d_value = 8,
                                              .window = 9,
                                              .n_rot = 10,
                                              .interleaved = true,
                                              .freq_base = 11,
                                              .freq_scale = 12,
                                              .ext_factor = 13,
                                              .attn_factor = 14,
                                              .beta_fast = 15,
                                              .beta_slow = 16,
                                              .n_ctx_orig = 17,
                                              .act = Activation::gelu});
    EXPECT_EQ(size_t(std::count(text.begin(), text.end(), '=')), row.attrs.size())
        << row.name << ": a name that is no attribute? " << text;
    EXPECT_EQ(describe(Op(i), {}), "") << row.name;
  }
  EXPECT_EQ(describe(Op::rms_norm, {.eps = 1e-5f, .group = 64, .n_head = 3}), "eps=1e-05 group=64");
  EXPECT_EQ(describe(Op::glu, {.act = Activation::gelu}), "act=gelu");
}

TEST(BuilderTest, KeepsTheFirstError) {
  Values b;
  EXPECT_FALSE(b.failed());
  const size_t n = b.graph().nodes.size();
  const ValueId wrong = b.matmul(b.x32, b.w32x64);
  EXPECT_TRUE(b.failed());
  const ValueId more = b.rope(b.add(wrong, b.x64), b.rope32, 2, {.n_rot = 32});  // no-ops, whatever the ids
  b.kv_store(more, more, b.cache);
  b.attention(more, b.cache, 0, 1);
  b.fail_with(fail(Code::internal, "second"));
  EXPECT_EQ(b.graph().nodes.size(), n);
  b.set_logits(more);
  const auto graph = b.finish();
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().message,
            "matmul(f32 [tokens][32], F16 [32][64]): the matrix' rows and the activations differ in length");
}

TEST(BuilderTest, LeavesOutWhatDoesNothing) {
  Values b;
  const size_t n = b.graph().nodes.size();
  EXPECT_EQ(b.scale(b.x64, 1.0f), b.x64);
  EXPECT_EQ(b.softcap(b.x64, 0.0f), b.x64);
  EXPECT_EQ(b.add_bias(b.x64, kNone), b.x64);
  EXPECT_EQ(b.graph().nodes.size(), n);
  const ValueId bare = b.rms_norm(b.x64, kNone, 1e-5f);
  EXPECT_EQ(bare, b.graph().nodes.back().outputs[0]);
  EXPECT_EQ(b.graph().nodes.size(), n + 1);
}

TEST(BuilderTest, SharesTablesWeightsAndInputs) {
  Values b;
  const size_t n = b.graph().nodes.size();
  EXPECT_EQ(b.rope_table(b.positions, kNone, {.n_rot = 32}), b.rope32);
  EXPECT_EQ(b.graph().nodes.size(), n);
  const ValueId factors = b.rope_table(b.positions, b.v16, {.n_rot = 32});
  EXPECT_NE(factors, b.rope32);
  EXPECT_EQ(b.rope_table(b.positions, b.v16, {.n_rot = 32}), factors);
  EXPECT_NE(b.rope_table(b.positions, kNone, {.n_rot = 32, .freq_base = 5}), b.rope32);
  EXPECT_NE(b.rope_table(b.positions, kNone, {.n_rot = 16}), b.rope32);
  EXPECT_EQ(b.weight("table", Format::q8_0, 10, 64, kBytes), b.table);
  EXPECT_EQ(b.input(Input::positions), b.positions);
  EXPECT_NE(b.kv({.layer = 1}), b.kv({.layer = 2}));
}

// A graph that verifies, to be damaged.
Graph sound() {
  Values b;
  b.kv_store(b.x32, b.x32, b.cache);
  const ValueId y = b.attention(b.matmul(b.x64, b.w64x64), b.cache, 2, 1);
  b.set_logits(b.matmul(b.add(y, b.x64), b.w32x64));
  return *b.finish();
}

TEST(Verify, FindsEachDamage) {
  const Graph whole = sound();
  ASSERT_TRUE(verify(whole));
  const auto broken = [&](auto change) {
    Graph graph = whole;
    change(graph);
    const Status status = verify(graph);
    if (!status) {
      EXPECT_EQ(status.error().code, Code::internal);
    }
    return status ? std::string("fine") : status.error().message;
  };
  const auto node = [](Graph& g, Op op) -> Node& {
    return *std::find_if(g.nodes.begin(), g.nodes.end(), [&](const Node& n) { return n.op == op; });
  };
  const auto says = [&](const std::string& part, auto change) {
    const std::string message = broken(change);
    EXPECT_NE(message.find(part), std::string::npos) << message << "\n  wants " << part;
  };
  says("input 9999 does not exist", [&](Graph& g) { node(g, Op::add).inputs[1] = 9999; });
  says("does not exist", [&](Graph& g) { node(g, Op::add).inputs[1] = kNone; });
  says("used before it is made", [&](Graph& g) { std::swap(g.nodes.front(), g.nodes.back()); });
  says("used before it is made", [&](Graph& g) { g.nodes.erase(g.nodes.begin()); });
  says("wants 2 to 2", [&](Graph& g) { node(g, Op::add).inputs.pop_back(); });
  says("wants 1 to 1", [&](Graph& g) { node(g, Op::top_k).inputs.push_back(0); });
  says("has 2 outputs, wants 1", [&](Graph& g) { node(g, Op::add).outputs.push_back(g.logits); });
  says("has 0 outputs, wants 1", [&](Graph& g) { node(g, Op::add).outputs.clear(); });
  says("made twice", [&](Graph& g) { g.nodes.push_back(node(g, Op::add)); });
  says("made twice or is no activation",
       [&](Graph& g) { node(g, Op::add).outputs[0] = node(g, Op::matmul).inputs[1]; });  // a weight
  says("made twice or is no activation",
       [&](Graph& g) { node(g, Op::add).outputs[0] = node(g, Op::attention).inputs[1]; });  // a cache
  says("made twice or is no activation", [&](Graph& g) { node(g, Op::add).outputs[0] = 9999; });
  says("wants f32 [tokens][32]", [&](Graph& g) { g.values[g.logits].width = 33; });
  says("wants f32 [tokens][32]", [&](Graph& g) { g.values[g.logits].rows = Rows::outputs; });
  says("wants f32 [tokens][32]", [&](Graph& g) { g.values[g.logits].dtype = DType::i32; });
  says("another window", [&](Graph& g) { node(g, Op::attention).attrs.window = 6; });
  says("differ in length", [&](Graph& g) { g.values[g.nodes.back().inputs[1]].width = 32; });
  says("a result of the graph is never made", [&](Graph& g) { g.nodes.pop_back(); });
  says("a result of the graph is never made", [&](Graph& g) { g.sampled = 9999; });
}

TEST(CostModel, IsExact) {
  Values b;
  Graph g = b.graph();
  const auto price = [&](Op op, std::vector<ValueId> inputs, const Attrs& attrs, const CostContext& context) {
    Graph graph = g;
    const Node node = *make_node(graph, op, std::move(inputs), attrs, 0);
    const Cost c = cost(graph, node, context);
    return std::pair(c.bytes, c.flops);
  };
  using P = std::pair<uint64_t, uint64_t>;
  for (const uint64_t n : {1u, 3u, 512u}) {
    const CostContext c{.n_tokens = n, .n_outputs = 2, .n_kv = 100};
    EXPECT_EQ(price(Op::matmul, {b.x64, b.w64x64}, {}, c), P(64 * 2 * 18 + n * (64 + 64) * 4, 2 * n * 64 * 64));
    EXPECT_EQ(price(Op::matmul, {b.out64, b.w32x64}, {}, c), P(32 * 64 * 2 + 2 * (64 + 32) * 4, 2 * 2 * 32 * 64));
    EXPECT_EQ(price(Op::embed, {b.tokens, b.table}, {}, c), P(n * 2 * 34 + n * 64 * 4, 0));
    EXPECT_EQ(price(Op::add, {b.x64, b.x64}, {}, c), P(3 * n * 64 * 4, n * 64));
    EXPECT_EQ(price(Op::glu, {b.x64, b.w32x64, b.w32x64}, {}, c),
              P(2 * 32 * 64 * 2 + n * (64 + 32) * 4, 2 * 2 * n * 32 * 64));
    EXPECT_EQ(price(Op::qkv, {b.x64, b.w64x64, b.w32x64, b.w32x64, b.v64, b.v32, b.v32}, {}, c),
              P(64 * 2 * 18 + 2 * 32 * 64 * 2 + 128 * 4 + n * (64 + 128) * 4, 2 * n * 128 * 64));
    EXPECT_EQ(price(Op::kv_store, {b.x32, b.x32, b.cache}, {.n_head_kv = 1, .d_head = 32, .d_value = 32}, c),
              P(n * 64 * (4 + 2), 0));
    EXPECT_EQ(price(Op::copy, {b.x64}, {}, c), P(2 * n * 64 * 4, 0));
  }
  // Decode at depth 100: 101 keys in the cache, of which a window of 5 leaves 5; K and V of 32 halves each.
  const CostContext decode{.n_tokens = 1, .n_outputs = 1, .n_kv = 100};
  const Attrs a{.n_head = 2, .n_head_kv = 1, .d_head = 32, .d_value = 32, .window = 5};
  EXPECT_EQ(price(Op::attention, {b.x64, b.cache}, a, decode).second, 2u * 5 * 2 * 64);
  g.values[b.cache].kv.window = 0;
  Attrs full = a;
  full.window = 0;
  EXPECT_EQ(price(Op::attention, {b.x64, b.cache}, full, decode), P(2 * 64 * 4 + 101 * 64 * 2, 2 * 101 * 2 * 64));
  // Four sequences of 25 positions read what one of 100 reads, but each row sees a fourth of it.
  const CostContext four{.n_tokens = 4, .n_outputs = 4, .n_kv = 100, .n_sequences = 4};
  EXPECT_EQ(price(Op::attention, {b.x64, b.cache}, full, four),
            P(4 * 2 * 64 * 4 + 4 * 26 * 64 * 2, 4 * 2 * 26 * 2 * 64));
}

TEST(CostModel, SaysWhatIsStreamedAndQuantized) {
  Values b;
  Graph g = b.graph();
  const CostContext context{.n_tokens = 3, .n_outputs = 2, .n_kv = 100};
  const auto price = [&](Op op, std::vector<ValueId> inputs, const Attrs& attrs = {}) {
    Graph graph = g;
    const Node node = *make_node(graph, op, std::move(inputs), attrs, 0);
    return cost(graph, node, context);
  };
  const Cost q4 = price(Op::matmul, {b.x64, b.w64x64}), floats = price(Op::matmul, {b.x64, b.w32x64});
  EXPECT_EQ(q4.streamed, 64u * 2 * 18);
  EXPECT_EQ(q4.quantized, q4.flops);
  EXPECT_EQ(floats.streamed, 32u * 64 * 2);
  EXPECT_EQ(floats.quantized, 0u);
  const Cost qkv = price(Op::qkv, {b.x64, b.w64x64, b.w32x64, b.w32x64});  // of two formats
  EXPECT_EQ(qkv.streamed, q4.streamed + 2 * floats.streamed);
  EXPECT_EQ(qkv.quantized, q4.flops);
  EXPECT_EQ(price(Op::embed, {b.tokens, b.table}).streamed, 3u * 2 * 34);  // rows, not the table
  EXPECT_EQ(price(Op::add, {b.x64, b.x64}).streamed, 0u);
  EXPECT_EQ(
      price(Op::attention, {b.x64, b.cache}, {.n_head = 2, .n_head_kv = 1, .d_head = 32, .d_value = 32, .window = 5})
          .streamed,
      (5u + 3) * 64 * 2);
  EXPECT_EQ(price(Op::top_p, {b.candidates}).bytes, 0u);

  const Graph whole = sound();
  Cost sum;
  for (const Node& node : whole.nodes) sum += cost(whole, node, context);
  const Cost all = cost(whole, context);
  EXPECT_EQ(std::tuple(all.bytes, all.flops, all.streamed, all.quantized),
            std::tuple(sum.bytes, sum.flops, sum.streamed, sum.quantized));
  EXPECT_GT(all.streamed, 0u);
}

}  // namespace
}  // namespace argent
