// The sampling kernels, to the bit: every result is exact, so nothing here has a tolerance.
#include "metal/sample_truth.h"

namespace argent::metal {

namespace {

using truth::Kind;
using truth::List;
using truth::Problem;
using truth::Row;

constexpr float kNone = 1;  // top_p off

// Parameters with one thing on.
SampleParams params(float temperature, uint32_t top_k, float top_p, float min_p) {
  return {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p};
}
SampleParams k_is(uint32_t k) { return params(1, k, kNone, 0); }
SampleParams p_is(float p) { return params(1, 0, p, 0); }

std::string run_argmax(Device& device, const std::vector<Kind>& kinds, uint32_t n, uint32_t threads) {
  std::vector<Row> rows;
  for (Kind kind : kinds) rows.push_back({.kind = kind});
  const Problem problem(n, rows);
  std::vector<int32_t> want;
  for (const auto& x : problem.logits) {
    const List list = truth::candidates(x);
    want.push_back(list.empty() ? -1 : list[0].token);
  }
  Bench bench(device);
  const Buffer& parts = bench.alloc(sample_scratch_bytes(problem.n_rows(), n));
  const Buffer& tokens = bench.upload(std::vector<int32_t>(kinds.size(), -7));
  const SampleArgs args{n, 0};
  Dispatch find = bench.dispatch("argmax_parts", {}, {sample_parts(n), problem.n_rows()}, {threads});
  find.value(0, args).bind(1, bench.upload(truth::flat(problem.logits))).bind(2, parts);
  find.threadgroup_bytes = {kArgmaxBytes};
  Dispatch join = bench.dispatch("argmax_join", {}, {problem.n_rows()}, {32});
  join.value(0, args).bind(1, parts).bind(2, tokens);
  join.barrier = true;
  bench.run({find, join});
  if (!bench.error().empty()) return bench.error();
  return truth::compare_values(truth::read<int32_t>(tokens), want);
}

std::string run_top_k(Device& device, const std::vector<Row>& rows, uint32_t n, uint32_t threads) {
  Problem problem(n, rows);
  problem.pack();
  std::vector<List> want;
  for (uint32_t r = 0; r < problem.n_rows(); ++r)
    want.push_back(truth::top_k(truth::candidates(problem.logits[r]), problem.step.sampling[r]));
  Bench bench(device);
  const Buffer& lists = bench.upload(truth::lay_out(std::vector<List>(rows.size()), n));
  const Buffer& counts = bench.alloc(size_t(problem.n_rows()) * sample_parts(n) * 4);
  const Buffer& parameters = bench.upload(problem.packed.rows);
  const SampleArgs args{n, 0};
  Dispatch find = bench.dispatch("top_k_parts", {}, {sample_parts(n), problem.n_rows()}, {threads});
  find.value(0, args).bind(1, parameters).bind(2, bench.upload(truth::flat(problem.logits))).bind(3, lists);
  find.bind(4, counts);
  find.threadgroup_bytes = {kSelectBytes};
  Dispatch join = bench.dispatch("top_k_join", {}, {problem.n_rows()}, {threads});
  join.value(0, args).bind(1, parameters).bind(2, lists).bind(3, counts);
  join.threadgroup_bytes = {kSelectBytes};
  join.barrier = true;
  bench.run({find, join});
  if (!bench.error().empty()) return bench.error();
  return truth::compare_lists(truth::read<uint32_t>(lists), want, n);
}

// A filter of all candidates of each row, in place or into another buffer; or the draw.
std::string run_on_lists(Device& device, const std::string& op, const std::vector<Row>& rows, uint32_t n,
                         uint32_t threads, bool in_place, List (*filter)(List, const SampleParams&)) {
  Problem problem(n, rows);
  problem.pack();
  std::vector<List> from, want;
  std::vector<int32_t> tokens;
  for (uint32_t r = 0; r < problem.n_rows(); ++r) {
    from.push_back(truth::candidates(problem.logits[r]));
    const SampleParams& p = problem.step.sampling[r];
    if (filter)
      want.push_back(filter(from.back(), p));
    else
      tokens.push_back(truth::draw(from.back(), p, problem.packed.rows[r].position));
  }
  Bench bench(device);
  const Buffer& lists = bench.upload(truth::lay_out(from, n));
  const Buffer& out = !filter    ? bench.upload(std::vector<int32_t>(rows.size(), -7))
                      : in_place ? lists
                                 : bench.upload(truth::lay_out(std::vector<List>(rows.size()), n));
  Dispatch d = bench.dispatch(op, {}, {problem.n_rows()}, {threads});
  d.value(0, SampleArgs{n, 0}).bind(1, bench.upload(problem.packed.rows)).bind(2, lists).bind(3, out);
  d.threadgroup_bytes = {kSelectBytes};
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  return filter ? truth::compare_lists(truth::read<uint32_t>(out), want, n)
                : truth::compare_values(truth::read<int32_t>(out), tokens);
}

// A share that is the best candidate's weight and a fraction of one: rounded down, it takes that candidate alone.
std::string run_fraction(Device& device) {
  constexpr uint64_t kOne = sample::kWeightOne;
  for (uint32_t i = 1; i < 4000000; ++i) {
    const float below = float(i) * 0x1p-22f;
    const uint64_t sum = kOne + sample::weight(below);
    const float p = std::ceil(float(double(kOne) / double(sum) * 0x1p24)) * 0x1p-24f;
    const unsigned __int128 share = (unsigned __int128)sum * sample::fraction_of(p);
    if (uint64_t(share >> 32) != kOne || uint32_t(share) == 0) continue;
    Problem problem(2, {{.params = p_is(p)}});
    problem.pack();
    Bench bench(device);
    const Buffer& lists = bench.upload(truth::lay_out({{{0, 0.0f}, {1, -below}}}, 2));
    Dispatch d = bench.dispatch("top_p", {}, {1}, {32});
    d.value(0, SampleArgs{2, 0}).bind(1, bench.upload(problem.packed.rows)).bind(2, lists).bind(3, lists);
    d.threadgroup_bytes = {kSelectBytes};
    bench.run({d});
    if (!bench.error().empty()) return bench.error();
    return truth::compare_lists(truth::read<uint32_t>(lists), {{{0, 0.0f}}}, 2);
  }
  return "no share with a fraction was found";
}

std::string run_adjust(Device& device, const std::vector<Row>& rows, uint32_t n, uint32_t threads, bool in_place) {
  Problem problem(n, rows);
  problem.pack();
  std::vector<std::vector<float>> want;
  for (uint32_t r = 0; r < problem.n_rows(); ++r)
    want.push_back(truth::adjust(problem.logits[r], problem.step, r, problem.slots));
  Bench bench(device);
  const Buffer& x = bench.upload(truth::flat(problem.logits));
  const Buffer& y = in_place ? x : bench.upload(std::vector<float>(size_t(problem.n_rows()) * n, kUntouched));
  Dispatch d = bench.dispatch("adjust", {}, {adjust_tiles(n), problem.n_rows()}, {threads});
  d.value(0, SampleArgs{n, uint32_t(problem.slots.size())}).bind(1, bench.upload(problem.packed.rows));
  d.bind(2, bench.upload(problem.packed.data)).bind(3, bench.upload(problem.slots)).bind(4, x).bind(5, y);
  d.threadgroup_bytes = {kAdjustBytes};
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  std::vector<uint32_t> bits;  // a NaN is a NaN, whatever its bits
  for (const float f : truth::flat(want)) bits.push_back(std::isnan(f) ? 0x7fc00000 : std::bit_cast<uint32_t>(f));
  std::vector<uint32_t> got = truth::read<uint32_t>(y);
  for (uint32_t& b : got) b = (b & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : b;
  return truth::compare_values(got, bits);
}

std::string run_resolve(Device& device, uint32_t n, uint32_t n_slots, uint32_t threads) {
  Numbers numbers(n);
  std::vector<int32_t> tokens, slots, want;
  for (uint32_t s = 0; s < n_slots; ++s) slots.push_back(s % 3 == 1 ? -1 : int32_t(numbers.bits() % 1000000));
  for (uint32_t r = 0; r < n; ++r) {
    const uint32_t slot = r % (n_slots + 1);  // the last is past the end
    tokens.push_back(r % 3 ? ~int32_t(slot) : int32_t(numbers.bits() % 1000000));
    want.push_back(r % 3 == 0 ? tokens[r] : slot < n_slots ? std::max(0, slots[slot]) : 0);
  }
  Bench bench(device);
  const Buffer& ids = bench.upload(std::vector<int32_t>(n + 3, -7));  // rows past the last stay
  want.resize(n + 3, -7);
  Dispatch d = bench.dispatch("resolve_tokens", {}, {(n + threads - 1) / threads}, {threads});
  d.value(0, TokensArgs{n, n_slots}).bind(1, bench.upload(tokens)).bind(2, bench.upload(slots)).bind(3, ids);
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  return truth::compare_values(truth::read<int32_t>(ids), want);
}

std::string run_store(Device& device) {
  std::vector<Row> of(37);
  for (uint32_t r = 0; r < of.size(); ++r) of[r].shares = r % 3 == 1;
  Problem problem(50, of);
  problem.pack();
  std::vector<int32_t> tokens, want = problem.slots;
  want.pop_back(), want.pop_back();  // the last sequence's slot is past the end
  const uint32_t n_slots = uint32_t(want.size());
  for (uint32_t r = 0; r < problem.n_rows(); ++r) {
    tokens.push_back(int32_t(1000 + r));
    const uint32_t slot = problem.step.sequences[problem.step.row_sequence[size_t(problem.step.output_rows[r])]].slot;
    if (slot < n_slots) want[slot] = tokens[r];
  }
  Bench bench(device);
  const Buffer& slots = bench.upload(std::vector<int32_t>(problem.slots.begin(), problem.slots.end() - 2));
  Dispatch d = bench.dispatch("store_tokens", {}, {2}, {32});
  d.value(0, TokensArgs{problem.n_rows(), n_slots}).bind(1, bench.upload(problem.packed.rows));
  d.bind(2, bench.upload(tokens)).bind(3, slots);
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  return truth::compare_values(truth::read<int32_t>(slots), want);
}

// In an order that gives each its parameters of every_kind.
const std::vector<Kind> kKinds = {Kind::equal, Kind::masked, Kind::ties,        Kind::infinite, Kind::zeros,
                                  Kind::signs, Kind::far,    Kind::huge,        Kind::plain,    Kind::nothing,
                                  Kind::near,  Kind::nan,    Kind::negative_nan};

// All kinds of rows with the parameters in turn.
std::vector<Row> every_kind(const std::vector<SampleParams>& with) {
  std::vector<Row> rows;
  for (size_t i = 0; i < kKinds.size(); ++i) {
    rows.push_back({.kind = kKinds[i], .params = with[i % with.size()]});
    rows.back().params.seed = 0x123456789abcdef * (i + 1);
    rows.back().params.sample_index = uint32_t(i % 3);
  }
  return rows;
}

// Histories of tokens that are there, are not (the row has n), and are in slots, of which some hold the same token.
std::vector<Row> adjusted_rows(uint32_t n) {
  SampleParams repeat = k_is(0), counted = k_is(0), all = k_is(0), reward = k_is(0), far = k_is(0);
  repeat.repeat_penalty = 1.3f, repeat.repeat_last_n = 5;
  counted.presence_penalty = 0.7f, counted.frequency_penalty = 0.3f;
  all.repeat_penalty = 1.1f, all.presence_penalty = -0.5f, all.frequency_penalty = 100, all.repeat_last_n = 50;
  reward.repeat_penalty = 0.01f, reward.repeat_last_n = 100;
  far.frequency_penalty = -1e-3f, far.repeat_penalty = 100;
  const int32_t last = int32_t(n) - 1;
  std::vector<int32_t> recent;
  for (uint32_t i = 0; i < 60; ++i) recent.push_back(int32_t(i * i * 37 % n));
  recent[3] = ~2, recent[20] = ~3, recent[40] = ~2, recent[55] = ~2, recent[56] = 0, recent[57] = last, recent[58] = ~1;
  recent.push_back(int32_t(n) + 5);
  for (int32_t slot = 18; slot < 30; ++slot) recent.push_back(~slot);  // the step has 20
  std::vector<LogitBias> bias = {{last, 1.5f}, {0, -0.1f}, {0, 0.7f}, {last / 2, -INFINITY}, {0, 1e-8f}};
  return {{.kind = Kind::plain, .params = repeat, .recent = recent, .n_prompt = 10},
          {.kind = Kind::zeros, .params = counted, .recent = recent, .n_prompt = 10},
          {.kind = Kind::masked, .params = counted, .recent = {~1, ~2, ~3}, .n_prompt = 0},
          {.kind = Kind::ties, .params = all, .recent = recent, .n_prompt = 30, .bias = bias, .masks = true},
          {.kind = Kind::ties, .params = all, .shares = true, .recent = recent, .n_prompt = 30, .bias = bias},
          {.kind = Kind::huge, .params = reward, .recent = recent, .masks = true},
          {.kind = Kind::infinite, .params = far, .recent = recent, .bias = bias, .masks = true},
          {.kind = Kind::nan, .params = far, .recent = recent, .masks = true},
          {.kind = Kind::negative_nan, .params = k_is(0), .masks = true},
          {.kind = Kind::plain, .params = k_is(0), .recent = recent}};
}

// Rows as they come: usual parameters, and each thing that a row may have.
std::vector<Row> chain_rows(uint32_t n) {
  std::vector<Row> rows = adjusted_rows(n);
  for (Row& row : rows) row.params.min_p = 0.05f, row.params.top_k = 40, row.params.top_p = 0.95f;
  rows.push_back({.kind = Kind::plain, .params = params(0, 40, 0.95f, 0.05f)});
  rows.push_back({.kind = Kind::ties, .params = params(0.8f, 0, 0.5f, 0)});
  rows.push_back({.kind = Kind::near, .params = params(100, 0, 1, 0)});
  rows.push_back({.kind = Kind::far, .params = params(1e-4f, 7, 0.3f, 1)});
  rows.push_back({.kind = Kind::huge, .params = params(1e-4f, 0, 1, 0)});  // to -inf
  for (size_t r = 0; r < rows.size(); ++r) rows[r].params.seed = 77 * r, rows[r].params.sample_index = uint32_t(r % 2);
  return rows;
}

struct Shape {
  uint32_t n, threads;
};

std::vector<Case> sample_cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& kernel, const std::string& name, std::function<std::string(Device&)> run) {
    cases.push_back({kernel, kernel + "_" + name, std::move(run)});
  };
  for (const Shape& s : {Shape{1, 32}, {37, 64}, {300, 32}, {8193, 96}, {20011, 1024}}) {
    const std::string name = fmt::format("{}_threads_{}", s.n, s.threads);
    const std::vector<Kind> kinds = s.n < 20000 ? kKinds : std::vector<Kind>{Kind::ties, Kind::nan};
    for (const char* kernel : {"argmax_parts", "argmax_join"})
      add(kernel, name, [=](Device& device) { return run_argmax(device, kinds, s.n, s.threads); });
  }
  add("argmax_join", "300000_threads_256",
      [](Device& device) { return run_argmax(device, {Kind::ties}, 300000, 256); });

  const std::vector<SampleParams> ks = {k_is(40),     k_is(7), k_is(0), k_is(1), k_is(20), params(0, 40, 1, 0),
                                        k_is(1000000)};
  const std::vector<Row> wide_k = {
      {.kind = Kind::plain, .params = k_is(40)},   {.kind = Kind::equal, .params = k_is(700)},
      {.kind = Kind::near, .params = k_is(2000)},  {.kind = Kind::masked, .params = k_is(0)},
      {.kind = Kind::zeros, .params = k_is(9000)}, {.kind = Kind::nan, .params = k_is(3)}};
  for (const char* kernel : {"top_k_parts", "top_k_join"}) {
    for (const Shape& s : {Shape{1, 32}, {37, 64}, {300, 96}})
      add(kernel, fmt::format("{}_threads_{}", s.n, s.threads),
          [=](Device& device) { return run_top_k(device, every_kind(ks), s.n, s.threads); });
    add(kernel, "17003_threads_256", [=](Device& device) { return run_top_k(device, wide_k, 17003, 256); });
  }

  const std::vector<SampleParams> ps = {p_is(0.5f), p_is(1e-30f), p_is(0.95f), p_is(1), p_is(0.99999994f)};
  const std::vector<SampleParams> mins = {params(1, 0, 1, 0.1f), params(1, 0, 1, 0), params(1, 0, 1, 1),
                                          params(1, 0, 1, 1e-13f)};
  const std::vector<SampleParams> heats = {params(0.8f, 0, 1, 0), params(1e-4f, 0, 1, 0), params(0, 0, 1, 0),
                                           params(1e-4f, 0, 1, 0)};
  struct Op {
    const char* name;
    std::vector<SampleParams> params;
    List (*filter)(List, const SampleParams&);
  };
  for (const Op& op : {Op{"top_p", ps, truth::top_p},
                       {"min_p", mins, truth::min_p},
                       {"temperature", heats, truth::temperature},
                       {"draw", heats, nullptr}}) {
    for (const Shape& s : {Shape{1, 32}, {37, 64}, {300, 96}}) {
      for (const bool in_place : {true, false}) {
        if (!op.filter && in_place) continue;
        add(op.name, fmt::format("{}_threads_{}{}", s.n, s.threads, in_place ? "_in_place" : ""), [=](Device& device) {
          return run_on_lists(device, op.name, every_kind(op.params), s.n, s.threads, in_place, op.filter);
        });
      }
    }
    std::vector<Row> wide = {
        {.kind = Kind::plain}, {.kind = Kind::near}, {.kind = Kind::equal}, {.kind = Kind::masked}};
    for (size_t i = 0; i < wide.size(); ++i) wide[i].params = op.params[i % 3], wide[i].params.seed = 9 + i;
    add(op.name, "6007_threads_256",
        [=](Device& device) { return run_on_lists(device, op.name, wide, 6007, 256, true, op.filter); });
  }

  add("top_p", "share_rounded_down", run_fraction);
  for (const Shape& s : {Shape{1, 32}, {37, 64}, {300, 96}, {9001, 256}})
    for (const bool in_place : {true, false})
      add("adjust", fmt::format("{}_threads_{}{}", s.n, s.threads, in_place ? "_in_place" : ""),
          [=](Device& device) { return run_adjust(device, adjusted_rows(s.n), s.n, s.threads, in_place); });
  for (const Shape& s : {Shape{1, 32}, {37, 64}, {300, 32}, {1003, 128}})
    add("draw", fmt::format("ends_the_chain_{}_threads_{}", s.n, s.threads), [=](Device& device) {
      Problem problem(s.n, chain_rows(s.n));
      return truth::run_chain(device, problem, s.threads);
    });
  add("resolve_tokens", "1", [](Device& device) { return run_resolve(device, 1, 1, 32); });
  add("resolve_tokens", "67", [](Device& device) { return run_resolve(device, 67, 5, 64); });
  add("store_tokens", "37", [](Device& device) { return run_store(device); });
  return cases;
}

const CaseSet known(sample_cases);

}  // namespace

}  // namespace argent::metal
