// What a load test makes of what a server of OpenAI's interface sends: events of streamed completions, and the figures
// of many requests. No clock and no network here.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/rng.h"

namespace argent::server {

struct TokenUsage {
  uint32_t prompt = 0, generated = 0;
  uint32_t cached = 0;  // of the prompt, not computed again
};

// One JSON object of a stream of /v1/completions or /v1/chat/completions, or a whole answer.
struct CompletionEvent {
  bool token = false;     // something was generated: text, reasoning, a piece of a call, or a token without text
  bool finished = false;  // a choice has its finish_reason
  std::optional<TokenUsage> usage;
  std::string error;  // the server's message; "" where it sent none
};

// invalid: no JSON object.
Result<CompletionEvent> read_completion(std::string_view json);

// Seconds from the start of the run.
struct LoadRecord {
  double due = 0;              // when it was to be sent: waiting for a free connection counts as the server's time
  double first = 0, last = 0;  // events with tokens
  double end = 0;
  uint32_t n_events = 0;          // with tokens
  std::vector<double> gaps = {};  // between them
  std::optional<TokenUsage> usage = {};
  std::string error = {};   // its kind: "timeout", "http 503"; "" for none
  std::string detail = {};  // what was said with it
};

// Percentiles by linear interpolation between the closest ranks (Hyndman and Fan's type 7, NumPy's default).
struct Quantiles {
  size_t n = 0;
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
Quantiles quantiles(std::vector<double> values);

struct LoadSummary {
  uint32_t n_requests = 0, n_done = 0;  // done: without an error; all else is of these
  std::map<std::string, uint32_t> errors;
  std::map<std::string, std::string> details;  // the first of each kind
  double seconds = 0;                          // from the start to the last end
  uint64_t n_prompt = 0, n_cached = 0, n_generated = 0;
  uint32_t least_prompt = 0, most_prompt = 0;  // tokens of one prompt
  uint32_t n_short = 0;                        // generated less than was asked for
  uint32_t n_without_usage = 0;                // their events were counted for tokens, their prompts not at all
  Quantiles first, gap, per_token, whole;      // milliseconds; per_token: after the first, a mean for each request

  double rate(double amount) const { return seconds > 0 ? amount / seconds : 0; }
};
LoadSummary summarize(const std::vector<LoadRecord>& records, uint32_t tokens_wanted);

nlohmann::ordered_json load_json(const LoadSummary& summary);
std::string load_text(const LoadSummary& summary);  // a table; ends with a newline

// Seconds of n arrivals of a Poisson process, ascending. `rate` is above 0, a second.
std::vector<double> poisson_arrivals(Rng& rng, size_t n, double rate);

}  // namespace argent::server
