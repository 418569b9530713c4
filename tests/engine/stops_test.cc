#include "engine/stops.h"

#include <fmt/format.h>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace argent {
namespace {

struct Cut {
  std::string text;
  bool matched = false;
};

// By looking at every end of every stop.
Cut plain(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& s : stops)
      if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0) longest = std::max(longest, s.size());
    if (longest) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

Cut streamed(const std::vector<std::string>& stops, const std::string& text, Rng& rng) {
  StopMatcher matcher(stops);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t n = std::min<size_t>(text.size() - at, 1 + rng.next() % 5);
    if (matcher.push(std::string_view(text).substr(at, n), out)) {
      EXPECT_GE(matcher.matched(), 0);
      return {out, true};
    }
    // What is held back is no longer than the longest stop without its last byte.
    size_t longest = 0;
    for (const std::string& s : stops) longest = std::max(longest, s.size());
    at += n;
    EXPECT_LE(at - out.size(), longest ? longest - 1 : 0);
  }
  matcher.finish(out);
  return {out, false};
}

TEST(Stops, AsFoundByLookingEverywhere) {
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t letters = 2 + rng.next() % 2;
    const auto word = [&](size_t n) {
      std::string s;
      for (size_t k = 0; k < n; ++k) s += char('a' + rng.next() % letters);
      return s;
    };
    std::vector<std::string> stops;
    for (uint64_t k = rng.next() % 4; k > 0; --k) stops.push_back(word(1 + rng.next() % 6));
    const std::string text = word(rng.next() % 30);
    const Cut wanted = plain(stops, text), seen = streamed(stops, text, rng);
    ASSERT_EQ(seen.text, wanted.text) << text << " " << fmt::format("{}", fmt::join(stops, "|"));
    ASSERT_EQ(seen.matched, wanted.matched);
  }
}

TEST(Stops, OfManyBytes) {
  std::string out;
  StopMatcher matcher({"\xf0\x9f\x98\xb8", "###"});
  EXPECT_FALSE(matcher.push("a\xf0\x9f\x98", out));
  EXPECT_EQ(out, "a");
  EXPECT_TRUE(matcher.push("\xb8 rest", out));
  EXPECT_EQ(out, "a");
  EXPECT_EQ(matcher.matched(), 0);
  EXPECT_TRUE(matcher.push("more", out));
  EXPECT_EQ(out, "a");
}

}  // namespace
}  // namespace argent
