// Sampling by the rules of sample/rules.h with full sorts, and steps to try it on: what the sampling kernels are
// compared with.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "backends/metal/sample_step.h"
#include "metal/cases.h"
#include "sample/rules.h"

namespace argent::metal::truth {

using sample::Candidate;
using List = std::vector<Candidate>;

// Rows of logits that are hard in some way.
enum class Kind { plain, masked, ties, equal, zeros, signs, near, far, huge, nan, infinite, nothing, negative_nan };

inline std::vector<float> logits(Kind kind, uint32_t n, Numbers& numbers) {
  std::vector<float> x(n);
  for (uint32_t i = 0; i < n; ++i) {
    const float u = numbers.next();
    switch (kind) {
      case Kind::ties:
        x[i] = std::round(u * 12);
        break;
      case Kind::equal:
        x[i] = 0.3f;
        break;
      case Kind::zeros:
        x[i] = u < -0.3f ? -0.0f : u < 0.3f ? 0.0f : u < 0.4f ? 1e-40f : -1e-40f;
        break;
      case Kind::signs:
        x[i] = u < -0.5f ? -1.0f : u < 0.2f ? -0.0f : 0.0f;
        break;
      case Kind::near:
        x[i] = 7.0f + u * 0x1p-7f;
        break;
      case Kind::far:
        x[i] = i == n / 2 ? 50.0f : u * 9;
        break;
      case Kind::huge:
        x[i] = u * 3.3e38f;
        break;
      case Kind::nothing:
        x[i] = -INFINITY;
        break;
      case Kind::masked:
        x[i] = u > 0.5f ? -INFINITY : 8 * u;
        break;
      default:
        x[i] = 10 * u;
    }
  }
  const uint32_t at = uint32_t(numbers.bits() % n);
  if (kind == Kind::nan) x[at] = NAN;
  if (kind == Kind::negative_nan) x[at] = -NAN;
  if (kind == Kind::infinite) x[at] = INFINITY;
  return x;
}

inline List sorted(List list) {
  std::sort(list.begin(), list.end(), sample::better);
  return list;
}

inline List candidates(const std::vector<float>& x) {
  List list;
  for (uint32_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) || x[i] == INFINITY) return {};
    if (x[i] != -INFINITY) list.push_back({int32_t(i), x[i]});
  }
  return sorted(list);
}

inline uint64_t weight(const List& list, size_t i) { return sample::weight(list[0].logit - list[i].logit); }
inline uint64_t sum_of_weights(const List& list) {
  uint64_t sum = 0;
  for (size_t i = 0; i < list.size(); ++i) sum += weight(list, i);
  return sum;
}

// Each takes and gives lists sorted best first.
inline List top_k(List list, const SampleParams& p) {
  const size_t k = p.temperature == 0 ? 1 : p.top_k == 0 ? list.size() : p.top_k;
  list.resize(std::min(list.size(), k));
  return list;
}
inline List top_p(List list, const SampleParams& p) {
  if (p.top_p >= 1 || list.empty()) return list;
  const uint64_t wanted = sample::share_of(sum_of_weights(list), p.top_p);
  size_t n = 0;
  for (uint64_t sum = 0; sum < wanted; ++n) sum += weight(list, n);
  list.resize(n);
  return list;
}
inline List min_p(List list, const SampleParams& p) {
  List kept;
  for (size_t i = 0; i < list.size(); ++i)
    if (double(weight(list, i)) >= std::floor(double(p.min_p) * 0x1p40)) kept.push_back(list[i]);
  return kept;
}
inline List temperature(List list, const SampleParams& p) {
  if (p.temperature == 0 || list.empty()) return list;
  const float best = list[0].logit;
  for (Candidate& c : list) c.logit = (c.logit - best) / p.temperature;
  return sorted(list);
}
inline int32_t draw(const List& list, const SampleParams& p, uint32_t position) {
  if (list.empty()) return -1;
  const uint64_t bits = sample::draw_bits(p.seed, position, p.sample_index);
  const uint64_t target = uint64_t((unsigned __int128)bits * sum_of_weights(list) >> 64);
  size_t i = 0;
  for (uint64_t end = weight(list, 0); end <= target; end += weight(list, ++i)) {
  }
  return list[i].token;
}

inline std::vector<float> adjust(std::vector<float> x, const Step& step, uint32_t r,
                                 const std::vector<int32_t>& slots) {
  const SampleParams& p = step.sampling[r];
  const sample::History history = sample::history(step, uint32_t(step.output_rows[r]));
  const RowRules rules = sample::rules_of(step, r);
  for (const LogitBias& b : rules.bias) x[size_t(b.token)] += b.bias;
  struct Uses {
    bool recent = false;
    uint32_t generated = 0;
  };
  std::map<int32_t, Uses> seen;
  const size_t n = history.tokens.size();
  for (size_t i = 0; i < n; ++i) {
    const int32_t entry = history.tokens[i];
    const int32_t token = entry >= 0 ? entry : size_t(~entry) < slots.size() ? slots[size_t(~entry)] : -1;
    if (token < 0 || size_t(token) >= x.size()) continue;
    seen[token].recent |= n - i <= p.repeat_last_n;
    seen[token].generated += n - i <= history.n_generated;
  }
  for (const auto& [token, uses] : seen) {
    volatile float logit = x[size_t(token)];  // volatile: no contraction, whatever the flags
    if (uses.recent && p.repeat_penalty != 1) logit = logit <= 0 ? logit * p.repeat_penalty : logit / p.repeat_penalty;
    volatile float counted = float(uses.generated) * p.frequency_penalty;
    counted = counted + p.presence_penalty;
    if (uses.generated) logit = logit - counted;
    x[size_t(token)] = logit;
  }
  for (uint32_t i = 0; i < x.size() && !rules.mask.empty(); ++i)
    if (!(rules.mask[i / 32] >> (i % 32) & 1) && x[i] < INFINITY) x[i] = -INFINITY;
  return x;
}

// A step of output rows, each of a sequence of its own but where `shares` says that it belongs to the one before.
struct Row {
  Kind kind = Kind::plain;
  SampleParams params = {};
  bool shares = false;
  std::vector<int32_t> recent = {};  // of the sequence, with the tokens of all its rows
  uint32_t n_prompt = 0;
  std::vector<LogitBias> bias = {};
  bool masks = false;  // a mask of every third token, at most
};

struct Problem {
  uint32_t n_vocab;
  std::vector<Row> rows;
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<uint32_t>> masks;
  std::vector<int32_t> slots;
  Step step;
  SampleStep packed;

  Problem(uint32_t n, std::vector<Row> of, uint64_t seed = 1) : n_vocab(n), rows(std::move(of)), masks(rows.size()) {
    Numbers numbers(seed * 1000003 + n);
    for (uint32_t r = 0; r < rows.size(); ++r) {
      Row& row = rows[r];
      logits.push_back(truth::logits(row.kind, n, numbers));
      if (!row.shares) {
        step.sequences.push_back({});
        step.sequences.back().first_row = uint32_t(step.tokens.size());
        step.sequences.back().slot = uint32_t(2 * step.sequences.size());
        // A row before it that wants no logits.
        step.tokens.push_back(0), step.positions.push_back(0);
        step.row_sequence.push_back(uint32_t(step.sequences.size() - 1));
        step.sequences.back().n_rows = 1;
      }
      StepSequence& sequence = step.sequences.back();
      step.output_rows.push_back(int32_t(step.tokens.size()));
      step.tokens.push_back(0), step.positions.push_back(int32_t(100 + 7 * r));
      step.row_sequence.push_back(uint32_t(step.sequences.size() - 1));
      ++sequence.n_rows;
      sequence.recent = row.recent, sequence.n_prompt = row.n_prompt;
      step.sampling.push_back(row.params);
      if (row.masks)
        for (uint32_t i = 0; i < (n + 31) / 32; ++i) masks[r].push_back(uint32_t(numbers.bits()) & 0x49249249);
      step.rules.push_back({masks[r], row.bias});
    }
    for (size_t s = 0; s < 2 * step.sequences.size() + 2; ++s)
      slots.push_back(s % 5 == 4 ? -1 : int32_t(numbers.bits() % n));
    slots[1] = int32_t(std::min<uint32_t>(kAdjustTile, n - 1)), slots[2] = slots[3];  // the second tile's first
  }
  Problem(const Problem&) = delete;

  void pack() { sample::pack(step, argent::Rows::outputs, n_vocab, packed); }
  uint32_t n_rows() const { return uint32_t(rows.size()); }
};

// Lists as they lie in memory, in an order that says nothing; room is filled with a pattern.
inline std::vector<uint32_t> lay_out(const std::vector<List>& lists, uint32_t n_vocab) {
  const size_t words = sample::candidates_bytes(n_vocab) / 4;
  std::vector<uint32_t> out(lists.size() * words, 0x5eed5eed);
  for (size_t r = 0; r < lists.size(); ++r) {
    List shuffled = lists[r];
    Numbers numbers(r + 5);
    for (size_t i = 1; i < shuffled.size(); ++i) std::swap(shuffled[i], shuffled[numbers.bits() % (i + 1)]);
    out[r * words] = uint32_t(shuffled.size());
    if (!shuffled.empty()) std::memcpy(&out[r * words + 2], shuffled.data(), shuffled.size() * sizeof(Candidate));
  }
  return out;
}

// The lists of a buffer against those wanted, whatever their order.
inline std::string compare_lists(const std::vector<uint32_t>& got, const std::vector<List>& want, uint32_t n_vocab) {
  const size_t words = sample::candidates_bytes(n_vocab) / 4;
  for (size_t r = 0; r < want.size(); ++r) {
    const uint32_t n = got[r * words];
    if (got[r * words + 1] != 0x5eed5eed) return fmt::format("row {} column 0 is written, which is unused", r);
    if (n != want[r].size()) return fmt::format("row {} column 0 is a list of {}, wanted {}", r, n, want[r].size());
    List list(n);
    if (n) std::memcpy(list.data(), &got[r * words + 2], n * sizeof(Candidate));
    list = sorted(list);
    for (uint32_t i = 0; i < n; ++i)
      if (list[i].token != want[r][i].token || list[i].logit != want[r][i].logit)
        return fmt::format("row {} column {} is token {} with {}, wanted {} with {}", r, i, list[i].token,
                           list[i].logit, want[r][i].token, want[r][i].logit);
  }
  return "";
}

template <class T>
std::vector<T> read(const Buffer& buffer) {
  std::vector<T> v(buffer.bytes().size() / sizeof(T));
  std::memcpy(v.data(), buffer.bytes().data(), v.size() * sizeof(T));
  return v;
}

template <class T>
std::string compare_values(const std::vector<T>& got, const std::vector<T>& want) {
  for (size_t r = 0; r < want.size(); ++r)
    if (got[r] != want[r]) return fmt::format("row {} column 0 is {}, wanted {}", r, got[r], want[r]);
  return "";
}

inline std::vector<float> flat(const std::vector<std::vector<float>>& rows) {
  std::vector<float> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

// adjust, top_k, top_p, min_p, temperature, draw, and the tokens into the slots, in place and in one list, as the
// backend does it.
inline std::string run_chain(Device& device, Problem& problem, uint32_t threads) {
  problem.pack();
  const uint32_t n = problem.n_vocab, n_rows = problem.n_rows(), parts = sample_parts(n);
  std::vector<int32_t> tokens, slots = problem.slots;
  for (uint32_t r = 0; r < n_rows; ++r) {
    const SampleParams& p = problem.step.sampling[r];
    const List list = candidates(adjust(problem.logits[r], problem.step, r, problem.slots));
    tokens.push_back(draw(temperature(min_p(top_p(top_k(list, p), p), p), p), p,
                          uint32_t(problem.step.positions[size_t(problem.step.output_rows[r])])));
  }
  for (uint32_t r = 0; r < n_rows; ++r)
    slots[problem.step.sequences[problem.step.row_sequence[size_t(problem.step.output_rows[r])]].slot] = tokens[r];

  Bench bench(device);
  const SampleArgs args{n, uint32_t(problem.slots.size())};
  const Buffer& rows = bench.upload(problem.packed.rows);
  const Buffer& data = bench.upload(problem.packed.data);
  const Buffer& kept = bench.upload(problem.slots);
  const Buffer& x = bench.upload(flat(problem.logits));
  const Buffer& lists = bench.alloc(n_rows * sample::candidates_bytes(n));
  const Buffer& counts = bench.alloc(sample_scratch_bytes(n_rows, n));
  const Buffer& out = bench.alloc(n_rows * 4);
  std::vector<Dispatch> all;
  const auto add = [&](const char* kernel, Size grid, uint32_t shared) -> Dispatch& {
    Dispatch d = bench.dispatch(kernel, {}, grid, {threads});
    if (shared) d.threadgroup_bytes = {shared};
    d.barrier = !all.empty();
    all.push_back(std::move(d));
    return all.back();
  };
  add("adjust", {adjust_tiles(n), n_rows}, kAdjustBytes)
      .value(0, args)
      .bind(1, rows)
      .bind(2, data)
      .bind(3, kept)
      .bind(4, x)
      .bind(5, x);
  add("top_k_parts", {parts, n_rows}, kSelectBytes)
      .value(0, args)
      .bind(1, rows)
      .bind(2, x)
      .bind(3, lists)
      .bind(4, counts);
  add("top_k_join", {n_rows}, kSelectBytes).value(0, args).bind(1, rows).bind(2, lists).bind(3, counts);
  for (const char* op : {"top_p", "min_p", "temperature"})
    add(op, {n_rows}, kSelectBytes).value(0, args).bind(1, rows).bind(2, lists).bind(3, lists);
  add("draw", {n_rows}, kSelectBytes).value(0, args).bind(1, rows).bind(2, lists).bind(3, out);
  add("store_tokens", {(n_rows + threads - 1) / threads}, 0)
      .value(0, TokensArgs{n_rows, uint32_t(problem.slots.size())})
      .bind(1, rows)
      .bind(2, out)
      .bind(3, kept);
  bench.run(std::move(all));
  if (!bench.error().empty()) return bench.error();
  const std::string wrong = compare_values(read<int32_t>(out), tokens);
  return wrong.empty() ? compare_values(read<int32_t>(kept), slots) : "slots: " + wrong;
}

}  // namespace argent::metal::truth
