#include "engine/stops.h"

#include <fmt/format.h>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace argent {
namespace {

struct Cut {
  std::string text;
  int matched = -1;  // which stop
  bool operator==(const Cut&) const = default;
};

// By looking at every end of every stop.
Cut plain(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int longest = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      const std::string& s = stops[i];
      const bool ends = s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0;
      if (ends && (longest < 0 || s.size() > stops[size_t(longest)].size())) longest = int(i);
    }
    if (longest >= 0) return {text.substr(0, end - stops[size_t(longest)].size()), longest};
  }
  return {text};
}

// In pieces of at most so many bytes.

Cut streamed(const std::vector<std::string>& stops, const std::string& text, Rng& rng, size_t most = 5) {
  StopMatcher matcher(stops);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t n = std::min<size_t>(text.size() - at, 1 + rng.next() % most);
    if (matcher.push(std::string_view(text).substr(at, n), out)) return {out, matcher.matched()};
    // What is held back is no longer than the longest stop without its last byte.
    size_t longest = 0;
    for (const std::string& s : stops) longest = std::max(longest, s.size());
    at += n;
    EXPECT_LE(at - out.size(), longest ? longest - 1 : 0);
  }
  matcher.finish(out);
  return {out, matcher.matched()};
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
    const Cut wanted = plain(stops, text), seen = streamed(stops, text, rng, i % 2 ? 5 : 300);
    ASSERT_EQ(seen.text, wanted.text) << text << " " << fmt::format("{}", fmt::join(stops, "|"));
    ASSERT_EQ(seen.matched, wanted.matched);
  }
}

TEST(Stops, TheFirstToBeCompleteWins) {
  const struct {
    std::vector<std::string> stops;
    std::string text;
    Cut expected;
  } rows[] = {
      {{"abcd", "bc"}, "xabcd", {"xa", 1}},           // one in the middle of another: it is complete before
      {{"abcd", "cd"}, "xabcd", {"x", 0}},            // one at the end of another: the one that begins first
      {{"cd", "abcd"}, "xabcd", {"x", 1}},            // whatever their order
      {{"abcd", "ab"}, "xabcd", {"x", 1}},            // one at the beginning of another
      {{"abx", "aby", "ab z"}, "abab z", {"ab", 2}},  // one beginning for all
      {{"abx", "aby"}, "abaabyabx", {"aba", 1}},
      {{"STOP", "END"}, "a END STOP", {"a ", 1}},  // both in one token: the first in the text, not in the list
      {{"aaa", "aa"}, "baaaa", {"b", 1}},
      {{"ab", "ab"}, "cab", {"c", 0}},
      {{"abab", "bb"}, "aababb", {"a", 0}},
      {{"abac", "bb"}, "ababb", {"aba", 1}},  // held back for one, ended by the other
      {{"abc"}, "ab", {"ab", -1}},            // the answer ends in the middle of a stop
  };
  Rng rng(2);
  for (const auto& row : rows) {
    EXPECT_EQ(plain(row.stops, row.text), row.expected) << row.text;
    for (int i = 0; i < 50; ++i) EXPECT_EQ(streamed(row.stops, row.text, rng, 1 + i % 12), row.expected) << row.text;
  }
}

TEST(Stops, InTheMiddleOfALongPiece) {
  const std::string text = std::string(500, 'a') + "b" + std::string(500, 'a');
  Rng rng(3);
  EXPECT_EQ(streamed({"aab", "ba"}, text, rng, 2000), (Cut{std::string(498, 'a'), 0}));
  EXPECT_EQ(streamed({std::string(70, 'a') + "c", "ba"}, text, rng, 2000), (Cut{std::string(500, 'a'), 1}));
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
