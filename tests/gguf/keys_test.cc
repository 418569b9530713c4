// The checked readers: what fits, what is absent, and the words of each refusal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "raw_file.h"

namespace argent::gguf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Keys : public ::testing::Test {
 protected:
  // A file with one key, "k".
  const File& with(const Bytes& value) {
    RawFile raw;
    raw.keys = {{"k", value}};
    bytes_ = raw.build();
    auto file = File::parse(bytes_.span(), "m.gguf");
    EXPECT_TRUE(file) << file.error().message;
    file_.emplace(*std::move(file));
    return *file_;
  }
  template <class T>
  Bytes scalar(Type type, T value) {
    return Bytes().type(type).put(value);
  }

 private:
  Bytes bytes_;
  std::optional<File> file_;
};

TEST_F(Keys, U32) {
  EXPECT_EQ(*with(scalar(Type::u8, uint8_t{7})).require_u32("k"), 7u);
  EXPECT_EQ(*with(scalar(Type::i64, int64_t{7})).require_u32("k", 7, 7), 7u);
  EXPECT_EQ(*with(scalar(Type::u32, ~uint32_t{0})).require_u32("k"), ~uint32_t{0});
  EXPECT_EQ(with(u32_value(0)).require_u32("k", 1, 512).error().message,
            "m.gguf: key 'k' is u32 0, wanted an integer from 1 to 512");
  EXPECT_EQ(with(u32_value(1)).require_u32("no", 1, 512).error().message,
            "m.gguf: key 'no' is missing, wanted an integer from 1 to 512");
  EXPECT_THAT(with(u32_value(513)).require_u32("k", 1, 512).error().message, HasSubstr("u32 513"));
  EXPECT_THAT(with(i32_value(-1)).require_u32("k").error().message, HasSubstr("i32 -1"));
  EXPECT_THAT(with(scalar(Type::u64, uint64_t{1} << 32)).require_u32("k").error().message, HasSubstr("u64 4294967296"));
  EXPECT_THAT(with(scalar(Type::u64, ~uint64_t{0})).require_u32("k").error().message,
              HasSubstr("u64 18446744073709551615"));
  EXPECT_THAT(with(scalar(Type::f32, 7.f)).require_u32("k").error().message, HasSubstr("f32 7"));
  EXPECT_THAT(with(scalar(Type::boolean, uint8_t{1})).require_u32("k").error().message, HasSubstr("bool true"));
  EXPECT_THAT(with(string_value("7\n")).require_u32("k").error().message, HasSubstr("string '7\\x0a'"));
  EXPECT_THAT(with(Bytes().array(Type::u32, 1).put(7u)).require_u32("k").error().message, HasSubstr("u32[1]"));
  EXPECT_EQ(*with(u32_value(7)).u32_or("no", 3), 3u);
  EXPECT_EQ(*with(u32_value(7)).u32_or("k", 3), 7u);
  EXPECT_FALSE(with(u32_value(7)).u32_or("k", 3, 0, 6));
  EXPECT_EQ(*with(u32_value(7)).find_u32("no"), std::nullopt);
  EXPECT_EQ(*with(u32_value(7)).find_u32("k"), 7u);
  EXPECT_FALSE(with(string_value("x")).find_u32("k"));
}

TEST_F(Keys, F32) {
  EXPECT_EQ(*with(scalar(Type::f32, 1e-5f)).require_f32("k", 1e-12f, 1.f), 1e-5f);
  EXPECT_EQ(*with(scalar(Type::f64, 0.5)).require_f32("k"), 0.5f);
  EXPECT_EQ(*with(u32_value(10000)).require_f32("k"), 10000.f);
  for (const float bad : {0.f, 2.f, -1.f, std::nanf(""), INFINITY, -INFINITY})
    EXPECT_THAT(with(scalar(Type::f32, bad)).require_f32("k", 1e-12f, 1.f).error().message,
                HasSubstr(fmt::format("m.gguf: key 'k' is f32 {}, wanted a finite number from 1e-12 to 1", bad)));
  EXPECT_THAT(with(scalar(Type::f32, std::nanf(""))).require_f32("k").error().message,
              HasSubstr("wanted a finite number"));
  EXPECT_THAT(with(scalar(Type::f64, 1e300)).require_f32("k").error().message, HasSubstr("f64 1e+300"));
  EXPECT_THAT(with(scalar(Type::boolean, uint8_t{1})).require_f32("k").error().message, HasSubstr("bool true"));
  EXPECT_THAT(with(u32_value(1)).require_f32("no").error().message, HasSubstr("'no' is missing"));
  EXPECT_EQ(*with(u32_value(1)).f32_or("no", 2.5f), 2.5f);
  EXPECT_EQ(*with(u32_value(1)).find_f32("no"), std::nullopt);
}

TEST_F(Keys, BoolAndString) {
  EXPECT_EQ(*with(scalar(Type::boolean, uint8_t{1})).require_bool("k"), true);
  EXPECT_THAT(with(u32_value(1)).require_bool("k").error().message, HasSubstr("is u32 1, wanted a bool"));
  EXPECT_EQ(*with(u32_value(1)).bool_or("no", true), true);
  EXPECT_FALSE(with(u32_value(1)).bool_or("k", true));
  EXPECT_EQ(*with(u32_value(1)).find_bool("no"), std::nullopt);
  EXPECT_EQ(*with(string_value("llama")).require_string("k"), "llama");
  EXPECT_EQ(*with(string_value("llama")).string_or("no", "x"), "x");
  EXPECT_EQ(*with(string_value("llama")).find_string("no"), std::nullopt);
  EXPECT_THAT(with(u32_value(1)).require_string("k").error().message, HasSubstr("is u32 1, wanted a string"));
  EXPECT_THAT(with(u32_value(1)).require_string("no").error().message, HasSubstr("'no' is missing, wanted a string"));
}

TEST_F(Keys, IntsOfEveryWidth) {
  const auto check = [&](Type type, auto one) {
    using T = decltype(one);
    EXPECT_THAT(*with(Bytes().array(type, 3).put(one).put(T(4)).put(T(100))).require_ints("k", 3, 1, 100),
                ElementsAre(1, 4, 100));
  };
  check(Type::u8, uint8_t{1});
  check(Type::i8, int8_t{1});
  check(Type::u16, uint16_t{1});
  check(Type::i16, int16_t{1});
  check(Type::u32, uint32_t{1});
  check(Type::i32, int32_t{1});
  check(Type::u64, uint64_t{1});
  check(Type::i64, int64_t{1});

  const Bytes two = Bytes().array(Type::i32, 2).put(3).put(-9);
  EXPECT_EQ(with(two).require_ints("k", 2, 0, 10).error().message,
            "m.gguf: key 'k' has -9 at [1], wanted an integer from 0 to 10");
  EXPECT_EQ(with(two).require_ints("k", 3, 0, 10).error().message,
            "m.gguf: key 'k' is i32[2], wanted an array of 3 of integers from 0 to 10");
  EXPECT_EQ(with(two).require_ints("k", File::kAnySize, -10, 10)->size(), 2u);
  EXPECT_THAT(with(Bytes().array(Type::u64, 1).put(~uint64_t{0})).require_ints("k", 1, 0, 10).error().message,
              HasSubstr("at [0]"));
  for (const Bytes& other :
       {Bytes().array(Type::f32, 2).put(1.f).put(1.f), Bytes().array(Type::boolean, 2).put(uint8_t{1}).put(uint8_t{1}),
        Bytes().array(Type::string, 2).string("1").string("1"), u32_value(1), string_value("11")})
    EXPECT_FALSE(with(other).require_ints("k", 2, 0, 10));
  EXPECT_THAT(with(two).require_ints("no", 2, 0, 10).error().message,
              HasSubstr("'no' is missing, wanted an array of 2"));
}

TEST_F(Keys, FloatsBoolsStrings) {
  EXPECT_THAT(*with(Bytes().array(Type::f32, 2).put(1.5f).put(-2.f)).require_floats("k", 2), ElementsAre(1.5f, -2.f));
  EXPECT_THAT(*with(Bytes().array(Type::f64, 1).put(1.5)).require_floats("k", 1), ElementsAre(1.5f));
  EXPECT_THAT(with(Bytes().array(Type::f32, 2).put(1.f).put(std::nanf(""))).require_floats("k", 2).error().message,
              HasSubstr("nan at [1]"));
  EXPECT_THAT(with(Bytes().array(Type::f64, 1).put(1e300)).require_floats("k", 1).error().message,
              HasSubstr("1e+300 at [0]"));
  EXPECT_THAT(with(Bytes().array(Type::u8, 2).put(uint8_t{1}).put(uint8_t{1})).require_floats("k", 2).error().message,
              HasSubstr("is u8[2], wanted an array of 2 of f32"));
  EXPECT_THAT(with(Bytes().array(Type::i8, 2).put(int8_t{1}).put(int8_t{1})).require_floats("k", 2).error().message,
              HasSubstr("is i8[2]"));
  EXPECT_THAT(with(Bytes().array(Type::f32, 1).put(1.f)).require_floats("k", 2).error().message,
              HasSubstr("is f32[1], wanted an array of 2"));

  EXPECT_THAT(*with(Bytes().array(Type::boolean, 2).put(uint8_t{1}).put(uint8_t{0})).require_bools("k", 2),
              ElementsAre(true, false));
  EXPECT_THAT(*with(Bytes().array(Type::i32, 2).put(1).put(0)).require_bools("k", 2), ElementsAre(true, false));
  EXPECT_THAT(with(Bytes().array(Type::i32, 2).put(1).put(2)).require_bools("k", 2).error().message,
              HasSubstr("2 at [1]"));
  EXPECT_THAT(with(Bytes().array(Type::f32, 1).put(1.f)).require_bools("k", 1).error().message, HasSubstr("is f32[1]"));

  const auto strings = with(Bytes().array(Type::string, 2).string("a").string("b c")).require_strings("k", 2);
  EXPECT_EQ((*strings)->string_at(1), "b c");
  EXPECT_THAT(with(Bytes().array(Type::string, 1).string("a")).require_strings("k", 2).error().message,
              HasSubstr("is string[1], wanted an array of 2 of strings"));
  EXPECT_THAT(with(string_value("a")).require_strings("k").error().message,
              HasSubstr("is string 'a', wanted an array of strings"));
}

TEST_F(Keys, OneForEachLayer) {
  EXPECT_THAT(*with(u32_value(8)).require_u32_each("k", 3, 1, 64), ElementsAre(8u, 8u, 8u));
  EXPECT_THAT(*with(Bytes().array(Type::i32, 3).put(8).put(0).put(4)).require_u32_each("k", 3, 0, 64),
              ElementsAre(8u, 0u, 4u));
  EXPECT_FALSE(with(Bytes().array(Type::i32, 3).put(8).put(0).put(4)).require_u32_each("k", 3, 1, 64));
  EXPECT_THAT(with(Bytes().array(Type::i32, 2).put(8).put(4)).require_u32_each("k", 3, 1, 64).error().message,
              HasSubstr("is i32[2], wanted an array of 3"));
  EXPECT_THAT(with(u32_value(8)).require_u32_each("no", 3, 1, 64).error().message,
              HasSubstr("'no' is missing, wanted an integer from 1 to 64, or an array of 3"));
  EXPECT_FALSE(with(string_value("8")).require_u32_each("k", 3));
}

TEST(Quoted, EscapesAndCuts) {
  EXPECT_EQ(quote("token_embd.weight"), "'token_embd.weight'");
  EXPECT_EQ(quote("a'b\\c\n\x7f\xc3\xa9"), "'a\\'b\\\\c\\x0a\\x7f\\xc3\\xa9'");
  EXPECT_EQ(quote(std::string(100, 'x'), 5), "'xxxxx...'");
}

TEST(NameIndex, FindsEveryNameAndNoOther) {
  std::vector<std::string> names;
  for (int i = 0; i < 3000; ++i) names.push_back(fmt::format("blk.{}.w", i * 7919 % 3000));
  const auto name_of = [&](uint32_t i) { return std::string_view(names[i]); };
  NameIndex index;
  EXPECT_EQ(index.find("x", name_of), std::nullopt);
  EXPECT_EQ(index.build(uint32_t(names.size()), name_of), std::nullopt);
  for (uint32_t i = 0; i < names.size(); ++i) EXPECT_EQ(index.find(names[i], name_of), i);
  EXPECT_EQ(index.find("blk.3000.w", name_of), std::nullopt);
  names[2999] = names[17];
  EXPECT_EQ(index.build(uint32_t(names.size()), name_of), 2999u);
}

}  // namespace
}  // namespace argent::gguf
