#include "server/load.h"

#include <algorithm>
#include <cmath>

namespace argent::server {
namespace {

// Reads what is wanted as it passes: no document is built, for a stream has thousands of events.
class CompletionSax final : public nlohmann::json_sax<nlohmann::json> {
 public:
  CompletionEvent event;
  bool object = false;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t value) override {
    const uint32_t n = uint32_t(std::min<uint64_t>(value, UINT32_MAX));
    if (path_ == ".usage.prompt_tokens") usage().prompt = n;
    if (path_ == ".usage.completion_tokens") usage().generated = n;
    if (path_ == ".usage.prompt_tokens_details.cached_tokens") usage().cached = n;
    if (path_ == ".timings.cache_n") cache_n_ = n;  // llama-server's own
    return true;
  }
  bool number_float(double, const std::string&) override { return true; }
  bool binary(nlohmann::json::binary_t&) override { return true; }
  bool string(std::string& value) override {
    if (path_ == ".choices.finish_reason") event.finished = true;
    if (path_ == ".choices.text") has_text_ = true;
    if (!value.empty() &&
        (path_ == ".choices.text" || path_ == ".choices.delta.content" || path_ == ".choices.delta.reasoning_content" ||
         path_ == ".choices.delta.reasoning" || path_.starts_with(".choices.delta.tool_calls.function.")))
      event.token = true;
    if (path_ == ".error" || path_ == ".error.message") event.error = value;
    if (path_ == ".message") message_ = value;
    if (path_ == ".object" && value == "error") is_error_ = true;
    return true;
  }
  bool key(std::string& name) override {
    path_.resize(stack_.back());
    path_ += '.';
    path_ += name;
    return true;
  }
  bool start_object(size_t) override {
    if (stack_.empty()) object = true;
    if (path_ == ".error") is_error_ = true;
    return open();
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  void settle() {
    // A token may have no text of its own: the half of a letter. The last event of a stream has none either.
    if (has_text_ && !event.finished) event.token = true;
    if (event.usage) event.usage->cached = std::max(event.usage->cached, cache_n_);
    if (is_error_ && event.error.empty()) event.error = message_.empty() ? "an error" : message_;
  }

 private:
  static constexpr size_t kDepth = 64;
  TokenUsage& usage() { return event.usage ? *event.usage : event.usage.emplace(); }
  bool open() {
    stack_.push_back(path_.size());
    return stack_.size() <= kDepth;
  }
  bool close() {
    path_.resize(stack_.back());
    stack_.pop_back();
    return true;
  }

  std::string path_, message_;
  std::vector<size_t> stack_;  // the path's length at each open bracket
  uint32_t cache_n_ = 0;
  bool has_text_ = false, is_error_ = false;
};

nlohmann::ordered_json to_json(const Quantiles& q) {
  if (q.n == 0) return nullptr;
  return {{"mean", q.mean}, {"p50", q.p50}, {"p90", q.p90}, {"p95", q.p95}, {"p99", q.p99}, {"max", q.max}};
}

}  // namespace

Result<CompletionEvent> read_completion(std::string_view json) {
  CompletionSax sax;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &sax) || !sax.object)
    return fail(Code::invalid, "no JSON object: '{}'", json.substr(0, 64));
  sax.settle();
  return std::move(sax.event);
}

Quantiles quantiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double rank = share * double(values.size() - 1);
    const size_t below = size_t(rank), above = std::min(below + 1, values.size() - 1);
    return values[below] + (rank - double(below)) * (values[above] - values[below]);
  };
  double sum = 0;
  for (const double v : values) sum += v;
  return {.n = values.size(),
          .mean = sum / double(values.size()),
          .p50 = at(0.5),
          .p90 = at(0.9),
          .p95 = at(0.95),
          .p99 = at(0.99),
          .max = values.back()};
}

LoadSummary summarize(const std::vector<LoadRecord>& records, uint32_t tokens_wanted) {
  LoadSummary s;
  s.n_requests = uint32_t(records.size());
  s.least_prompt = UINT32_MAX;
  std::vector<double> first, gap, per_token, whole;
  for (const LoadRecord& r : records) {
    s.seconds = std::max(s.seconds, r.end);
    if (!r.error.empty()) {
      ++s.errors[r.error];
      s.details.try_emplace(r.error, r.detail);
      continue;
    }
    ++s.n_done;
    const TokenUsage usage = r.usage.value_or(TokenUsage{.generated = r.n_events});
    if (!r.usage) ++s.n_without_usage;
    if (usage.generated < tokens_wanted) ++s.n_short;
    s.n_prompt += usage.prompt;
    s.n_cached += usage.cached;
    s.n_generated += usage.generated;
    s.least_prompt = std::min(s.least_prompt, usage.prompt);
    s.most_prompt = std::max(s.most_prompt, usage.prompt);
    first.push_back(1e3 * (r.first - r.due));
    whole.push_back(1e3 * (r.end - r.due));
    for (const double g : r.gaps) gap.push_back(1e3 * g);
    if (usage.generated > 1) per_token.push_back(1e3 * (r.last - r.first) / (usage.generated - 1));
  }
  if (s.n_done == 0) s.least_prompt = 0;
  s.first = quantiles(std::move(first));
  s.gap = quantiles(std::move(gap));
  s.per_token = quantiles(std::move(per_token));
  s.whole = quantiles(std::move(whole));
  return s;
}

nlohmann::ordered_json load_json(const LoadSummary& s) {
  return {{"requests", s.n_requests},
          {"succeeded", s.n_done},
          {"failed", s.n_requests - s.n_done},
          {"errors", s.errors},
          {"error_details", s.details},
          {"seconds", s.seconds},
          {"prompt_tokens", s.n_prompt},
          {"prompt_tokens_least", s.least_prompt},
          {"prompt_tokens_most", s.most_prompt},
          {"cached_tokens", s.n_cached},
          {"generated_tokens", s.n_generated},
          {"short_answers", s.n_short},
          {"answers_without_usage", s.n_without_usage},
          {"requests_per_second", s.rate(s.n_done)},
          {"prompt_tokens_per_second", s.rate(double(s.n_prompt))},
          {"generated_tokens_per_second", s.rate(double(s.n_generated))},
          {"total_tokens_per_second", s.rate(double(s.n_prompt + s.n_generated))},
          {"ttft_ms", to_json(s.first)},
          {"inter_token_ms", to_json(s.gap)},
          {"time_per_output_token_ms", to_json(s.per_token)},
          {"end_to_end_ms", to_json(s.whole)}};
}

std::string load_text(const LoadSummary& s) {
  std::string out = fmt::format("{:<24} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "milliseconds", "mean", "p50", "p90",
                                "p95", "p99", "max");
  const auto row = [&](const char* name, const Quantiles& q) {
    if (q.n == 0)
      out += fmt::format("{:<24} {:>9}\n", name, "-");
    else
      out += fmt::format("{:<24} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n", name, q.mean, q.p50, q.p90,
                         q.p95, q.p99, q.max);
  };
  row("time to first token", s.first);
  row("between tokens", s.gap);
  row("a token after the first", s.per_token);
  row("whole answer", s.whole);
  out += fmt::format("{} of {} requests in {:.2f} s: {:.2f} requests/s\n", s.n_done, s.n_requests, s.seconds,
                     s.rate(s.n_done));
  out += fmt::format("tokens/s: {:.1f} prompt, {:.1f} generated, {:.1f} in all\n", s.rate(double(s.n_prompt)),
                     s.rate(double(s.n_generated)), s.rate(double(s.n_prompt + s.n_generated)));
  out += fmt::format("prompts of {} to {} tokens, {} in all, {} of them cached; {} generated\n", s.least_prompt,
                     s.most_prompt, s.n_prompt, s.n_cached, s.n_generated);
  if (s.n_short) out += fmt::format("{} answers were shorter than asked for\n", s.n_short);
  if (s.n_without_usage) out += fmt::format("{} answers without usage: their events were counted\n", s.n_without_usage);
  for (const auto& [kind, n] : s.errors) {
    const std::string& detail = s.details.at(kind);
    out += fmt::format("{} x {}{}{}\n", n, kind, detail.empty() ? "" : ": ", detail);
  }
  return out;
}

std::vector<double> poisson_arrivals(Rng& rng, size_t n, double rate) {
  std::vector<double> times(n);
  double now = 0;
  for (double& t : times) {
    const double u = double(rng.next() >> 11) * 0x1p-53;  // below 1
    t = now += -std::log1p(-u) / rate;
  }
  return times;
}

}  // namespace argent::server
