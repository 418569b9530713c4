#include "sample/device_step.h"

#include <algorithm>
#include <bit>

#include "sample/rules.h"

namespace argent::sample {
namespace {

struct Pair {
  uint32_t what, value;
};

// Appends pairs, sorted by what they are of, and says where they begin. Pairs are read as 8 bytes.
uint32_t append(std::vector<Pair>& pairs, std::vector<uint32_t>& data) {
  if (data.size() % 2) data.push_back(0);
  const uint32_t begin = uint32_t(data.size());
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.what < b.what; });
  for (const Pair& p : pairs) data.insert(data.end(), {p.what, p.value});
  return begin;
}

// One pair for each token or slot: uses added up.
void unite(std::vector<Pair>& pairs) {
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.what < b.what; });
  size_t n = 0;
  for (const Pair& p : pairs) {
    if (n && pairs[n - 1].what == p.what)
      pairs[n - 1].value = (pairs[n - 1].value & ~1u) + (p.value & ~1u) + ((pairs[n - 1].value | p.value) & 1);
    else
      pairs[n++] = p;
  }
  pairs.resize(n);
}

SampleRow parameters(const SampleParams& p) {
  const uint64_t least = least_weight(p.min_p);
  SampleRow row{};
  row.temperature = p.temperature == 0 ? 0 : std::bit_cast<uint32_t>(p.temperature);
  row.top_k = p.temperature == 0 ? 1 : p.top_k;
  row.top_p_on = p.top_p < 1;
  row.top_p = row.top_p_on ? uint32_t(fraction_of(p.top_p)) : 0;
  row.min_p_low = uint32_t(least);
  row.min_p_high = uint32_t(least >> 32);
  row.repeat_penalty = std::bit_cast<uint32_t>(p.repeat_penalty);
  row.presence_penalty = std::bit_cast<uint32_t>(p.presence_penalty);
  row.frequency_penalty = std::bit_cast<uint32_t>(p.frequency_penalty);
  row.seed_low = uint32_t(p.seed);
  row.seed_high = uint32_t(p.seed >> 32);
  row.sample_index = p.sample_index;
  row.mask = kNowhere;
  return row;
}

}  // namespace

void pack(const Step& step, Rows rows, uint32_t n_vocab, DeviceStep& out) {
  out.rows.clear();
  out.data.assign(2, 0);
  out.adjusts = false;
  std::vector<Pair> bias, tokens, slots;
  const auto token_row = [&](size_t r) { return rows == Rows::outputs ? uint32_t(step.output_rows[r]) : uint32_t(r); };
  static const SampleParams kGreedy;
  const size_t n_rows = step.output_rows.size();
  for (size_t r = 0; r < n_rows; ++r) {
    const SampleParams& p = step.sampling.empty() ? kGreedy : step.sampling[r];
    const uint32_t at = token_row(r), sequence = step.row_sequence[at];
    SampleRow row = parameters(p);
    row.position = uint32_t(step.positions[at]);
    const bool last = r + 1 == n_rows || step.row_sequence[token_row(r + 1)] != sequence;
    row.slot = last ? step.sequences[sequence].slot : uint32_t(kNowhere);

    const RowRules rules = rules_of(step, uint32_t(r));
    if (!rules.mask.empty()) {
      row.mask = uint32_t(out.data.size());
      out.data.insert(out.data.end(), rules.mask.begin(), rules.mask.end());
    }
    bias.clear(), tokens.clear(), slots.clear();
    for (const LogitBias& b : rules.bias)
      if (b.token >= 0 && uint32_t(b.token) < n_vocab)
        bias.push_back({uint32_t(b.token), std::bit_cast<uint32_t>(b.bias)});

    const History history = sample::history(step, at);
    const size_t n = history.tokens.size();
    const size_t n_recent = p.repeat_penalty != 1 ? std::min<size_t>(n, p.repeat_last_n) : 0;
    const size_t n_counted = p.presence_penalty != 0 || p.frequency_penalty != 0 ? history.n_generated : 0;
    for (size_t back = 1; back <= std::max(n_recent, n_counted); ++back) {
      const int32_t entry = history.tokens[n - back];
      const uint32_t uses = uint32_t(back <= n_counted) << 1 | uint32_t(back <= n_recent);
      if (entry < 0)
        slots.push_back({uint32_t(~entry), uses});
      else if (uint32_t(entry) < n_vocab)
        tokens.push_back({uint32_t(entry), uses});
    }
    unite(tokens), unite(slots);
    row.n_bias = uint32_t(bias.size()), row.n_tokens = uint32_t(tokens.size()), row.n_slots = uint32_t(slots.size());
    row.bias = append(bias, out.data);
    row.tokens = append(tokens, out.data);
    row.slots = append(slots, out.data);
    out.adjusts = out.adjusts || row.mask != kNowhere || row.n_bias + row.n_tokens + row.n_slots != 0;
    out.rows.push_back(row);
  }
}

}  // namespace argent::sample
