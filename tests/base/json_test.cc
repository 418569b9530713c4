// Values end where there is no memory, however deep they are, and leave none behind.
#include "base/json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

thread_local bool out_of_memory = false;
thread_local int64_t n_blocks = 0, blocks_left = INT64_MAX;

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = out_of_memory || blocks_left == 0 ? nullptr : std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  --blocks_left;
  ++n_blocks;
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  n_blocks -= memory != nullptr;
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace argent {
namespace {

TEST(Json, EndsWithoutMemory) {
  const int64_t before = n_blocks;
  {
    const std::string deep = std::string(100000, '[') + std::string(100000, ']');
    Json nested = Json::parse(deep), many = Json::array();
    Json mixed = Json::parse(
        R"({"a": [1, "a text that is longer than what a string holds itself", {"b": [], "c": {}}, [[], [[2]]]],
                                 "d": {"e": {"f": [null, true, 1.5, {"g": "h"}]}}, "i": {}, "j": 1})");
    for (int i = 0; i < 1000; ++i) many.push_back({{"role", "user"}, {"content", std::to_string(i)}, {"mixed", mixed}});
    Json bytes = Json::binary({1, 2, 3});
    Json* const all[] = {new Json(std::move(nested)), new Json(std::move(many)), new Json(std::move(mixed)),
                         new Json(std::move(bytes)), new Json("a text that is longer than what a string holds itself")};
    out_of_memory = true;
    for (Json* json : all) delete json;
    out_of_memory = false;
  }
  EXPECT_EQ(n_blocks, before);
}

TEST(Json, WhatIsLeftOfACopyThatFailed) {
  Json many = Json::array();
  for (int i = 0; i < 100; ++i) many.push_back({{"content", std::string(100, 'x')}});
  const int64_t before = n_blocks;
  EXPECT_THROW(
      {
        out_of_memory = true;
        Json copy = many;
      },
      std::bad_alloc);
  out_of_memory = false;
  EXPECT_EQ(n_blocks, before);
}

// A null takes the type of what it is to become before there is memory for that.
TEST(Json, WhatHasATypeAndNothingElse) {
#ifndef NDEBUG
  GTEST_SKIP() << "nlohmann's own assertions stop at such a value";
#endif
  const int64_t before = n_blocks;
  {
    Json object, array, inner = Json::parse(R"([{"a": null, "b": [null, 1]}, null])"), empty;
    const auto fails = [](const auto& change) {
      out_of_memory = true;
      EXPECT_THROW(change(), std::bad_alloc);
      out_of_memory = false;
    };
    fails([&] { object["x"] = 1; });
    fails([&] { array.push_back(1); });
    fails([&] { inner[0]["a"]["x"] = 1; });
    fails([&] { inner[0]["b"][0].push_back(1); });
    fails([&] { inner[1].push_back(1); });
    EXPECT_TRUE(object.is_object() && array.is_array() && inner[1].is_array());
    const Json moved = std::move(inner);
    empty = Json::parse("[[", nullptr, false);
    EXPECT_TRUE(inner.is_null() && empty.is_discarded());
    out_of_memory = true;
  }
  out_of_memory = false;
  EXPECT_EQ(n_blocks, before);
}

// Every place that takes memory while a document is read and one is made, in turn.
TEST(Json, MemoryThatEndsAnywhere) {
  const std::string text = R"({"a": [1, "a text that is longer than what a string holds itself", {"b": [[], [{}]]}],
                              "a key that is longer than what a string holds itself": {"c": {"d": [0, 1, 2, 3, 4]}}})";
  const int64_t before = n_blocks;
  for (int64_t n = 0;; ++n) {
    blocks_left = n;
    bool whole = false;
    try {
      const Json read = Json::parse(text);
      Json made;
      made["copy"] = read;
      made["list"].push_back(read["a"]);
      made["list"].push_back(read.dump());
      whole = true;
    } catch (const std::bad_alloc&) {
    }
    blocks_left = INT64_MAX;
    ASSERT_EQ(n_blocks, before) << n;
    if (whole) break;
  }
}

}  // namespace
}  // namespace argent
