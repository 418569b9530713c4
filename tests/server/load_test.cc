// Figures of a load test: percentiles, sums, arrivals, and what events of completions say.
#include "server/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace argent::server {
namespace {

TEST(Quantiles, as_numpy_has_them) {
  const Quantiles q = quantiles({4, 1, 3, 2});  // numpy.percentile([1, 2, 3, 4], ...)
  EXPECT_EQ(q.n, 4u);
  EXPECT_DOUBLE_EQ(q.mean, 2.5);
  EXPECT_DOUBLE_EQ(q.p50, 2.5);
  EXPECT_DOUBLE_EQ(q.p90, 3.7);
  EXPECT_DOUBLE_EQ(q.p95, 3.85);
  EXPECT_DOUBLE_EQ(q.p99, 3.97);
  EXPECT_DOUBLE_EQ(q.max, 4);
  std::vector<double> many;
  for (int i = 0; i <= 1000; ++i) many.push_back(1000 - i);
  EXPECT_DOUBLE_EQ(quantiles(many).p99, 990);
  const Quantiles one = quantiles({7});
  for (const double v : {one.mean, one.p50, one.p99, one.max}) EXPECT_EQ(v, 7);
  EXPECT_EQ(quantiles({}).n, 0u);
}

TEST(Summary, counts_what_succeeded) {
  LoadRecord a{.due = 1, .first = 1.5, .last = 2.5, .end = 3, .n_events = 3, .gaps = {0.25, 0.75}};
  a.usage = TokenUsage{.prompt = 10, .generated = 5, .cached = 4};
  LoadRecord b{.due = 0, .first = 0.1, .last = 0.1, .end = 4, .n_events = 1};  // no usage
  LoadRecord c{.due = 0, .end = 8, .error = "HTTP 503", .detail = "full"};
  LoadRecord d = c;
  d.detail = "later";
  const LoadSummary s = summarize({a, b, c, d}, 5);
  EXPECT_EQ(s.n_requests, 4u);
  EXPECT_EQ(s.n_done, 2u);
  EXPECT_EQ(s.errors.at("HTTP 503"), 2u);
  EXPECT_EQ(s.details.at("HTTP 503"), "full");
  EXPECT_DOUBLE_EQ(s.seconds, 8);
  EXPECT_EQ(s.n_prompt, 10u);
  EXPECT_EQ(s.n_cached, 4u);
  EXPECT_EQ(s.n_generated, 6u);
  EXPECT_EQ(s.n_short, 1u);
  EXPECT_EQ(s.n_without_usage, 1u);
  EXPECT_DOUBLE_EQ(s.first.max, 500);
  EXPECT_DOUBLE_EQ(s.whole.max, 4000);
  EXPECT_DOUBLE_EQ(s.gap.p50, 500);
  EXPECT_EQ(s.per_token.n, 1u);
  EXPECT_DOUBLE_EQ(s.per_token.p50, 250);
  const auto json = load_json(s);
  EXPECT_DOUBLE_EQ(json["generated_tokens_per_second"], 6.0 / 8);
  EXPECT_DOUBLE_EQ(json["total_tokens_per_second"], 2);
  EXPECT_EQ(json["failed"], 2);
  EXPECT_NE(load_text(s).find("2 x HTTP 503: full\n"), std::string::npos);
}

TEST(Summary, of_nothing) {
  for (const auto& records : {std::vector<LoadRecord>{}, {LoadRecord{.end = 1, .error = "timeout"}}}) {
    const LoadSummary s = summarize(records, 1);
    EXPECT_EQ(s.n_done, 0u);
    EXPECT_TRUE(load_json(s)["ttft_ms"].is_null());
    EXPECT_EQ(load_json(s)["prompt_tokens_least"], 0);
    EXPECT_NE(load_text(s).find("0 of "), std::string::npos);
  }
}

TEST(Arrivals, are_a_poisson_process) {
  Rng rng(3);
  const size_t n = 20000;
  const std::vector<double> times = poisson_arrivals(rng, n, 4);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_GT(times[0], 0);
  EXPECT_NEAR(times.back() / double(n), 0.25, 0.01);
  double squares = 0, last = 0;
  size_t above = 0;
  for (const double t : times) {
    squares += (t - last) * (t - last);
    above += t - last > 0.25;
    last = t;
  }
  EXPECT_NEAR(squares / double(n), 2 * 0.25 * 0.25, 0.01);        // an exponential's second moment
  EXPECT_NEAR(double(above) / double(n), std::exp(-1.0), 0.015);  // share of gaps above the mean
  Rng again(3);
  EXPECT_EQ(poisson_arrivals(again, n, 4), times);
}

TEST(Completion, events_of_servers) {
  const auto token = [](std::string_view json) {
    const auto e = read_completion(json);
    EXPECT_TRUE(e) << json;
    return e && e->token;
  };
  EXPECT_TRUE(token(R"({"choices":[{"text":"a","index":0,"finish_reason":null}],"usage":null})"));
  EXPECT_TRUE(token(R"({"choices":[{"text":"","index":0,"finish_reason":null}]})"));  // half a letter
  EXPECT_FALSE(token(R"({"choices":[{"text":"","finish_reason":"length"}]})"));
  EXPECT_TRUE(token(R"({"choices":[{"finish_reason":"length","text":"last"}]})"));
  EXPECT_FALSE(token(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})"));
  EXPECT_FALSE(token(R"({"choices":[{"delta":{"role":"assistant","content":null}}]})"));
  EXPECT_TRUE(token(R"({"choices":[{"index":0,"delta":{"content":"x"}}]})"));
  EXPECT_TRUE(token(R"({"choices":[{"delta":{"reasoning_content":"x"}}]})"));
  EXPECT_TRUE(token(R"({"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]})"));
  EXPECT_FALSE(token(R"({"text":"x","delta":{"content":"y"},"x":{"choices":[{"text":"z"}]}})"));
  EXPECT_TRUE(read_completion(R"({"choices":[{"finish_reason":"stop","delta":{}}]})")->finished);

  const auto last = read_completion(
      R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":5}}})");
  ASSERT_TRUE(last && last->usage);
  EXPECT_EQ(last->usage->prompt, 7u);
  EXPECT_EQ(last->usage->generated, 3u);
  EXPECT_EQ(last->usage->cached, 5u);
  const auto timed = read_completion(R"({"timings":{"cache_n":6},"usage":{"prompt_tokens":7,"completion_tokens":3}})");
  EXPECT_EQ(timed->usage->cached, 6u);
  EXPECT_FALSE(read_completion(R"({"choices":[],"usage":null})")->usage);
}

TEST(Completion, errors_of_servers) {
  EXPECT_EQ(read_completion(R"({"error":{"code":503,"message":"full"}})")->error, "full");
  EXPECT_EQ(read_completion(R"({"error":"full"})")->error, "full");
  EXPECT_EQ(read_completion(R"({"object":"error","message":"full"})")->error, "full");
  EXPECT_FALSE(read_completion(R"({"error":{"code":5}})")->error.empty());
  EXPECT_EQ(read_completion(R"({"error":null,"message":"x"})")->error, "");
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("7"), std::string("{} x"),
        std::string("{\"a\":nope}"), std::string("\xff"), std::string(1000, '['),
        "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}"})
    EXPECT_FALSE(read_completion(text)) << text.substr(0, 20);
}

}  // namespace
}  // namespace argent::server
