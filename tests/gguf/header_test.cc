// What a file is, its keys and values: valid ones of every type, and each way to be malformed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "raw_file.h"
#include "walk.h"

namespace argent::gguf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

File open(const RawFile& raw, Bytes& keep) {
  keep = raw.build();
  auto file = File::parse(keep.span(), "t.gguf");
  if (!file) {
    ADD_FAILURE() << file.error().message;
    std::abort();
  }
  return *std::move(file);
}

std::string error_of(const Bytes& bytes) {
  Guarded guarded(bytes.span());
  auto file = File::parse(guarded.span(), "t.gguf");
  if (file) return "accepted";
  EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
  EXPECT_LT(file.error().message.size(), 400u);
  EXPECT_EQ(file.error().message.rfind("t.gguf: ", 0), 0u) << file.error().message;
  return file.error().message;
}
std::string error_of(const RawFile& raw) { return error_of(raw.build()); }

std::string error_of_key(const std::string& key, const Bytes& value) {
  RawFile raw = small_file();
  raw.keys.push_back({key, value});
  return error_of(raw);
}

TEST(Header, ReadsASmallFile) {
  for (const uint32_t version : {2u, 3u}) {
    RawFile raw = small_file();
    raw.version = version;
    Bytes keep;
    const File file = open(raw, keep);
    EXPECT_EQ(file.version(), version);
    EXPECT_EQ(file.alignment(), 32u);
    EXPECT_EQ(file.entries().size(), 5u);
    EXPECT_EQ(file.entries()[1].key, "a.u32");
    EXPECT_EQ(file.find("general.architecture")->as_string(), "llama");
    EXPECT_EQ(file.find("a.u32")->as_uint(), 7u);
    EXPECT_EQ(file.find("a.bool")->as_bool(), true);
    EXPECT_EQ(file.find("a.strings")->string_at(2), "yz");
    EXPECT_EQ(file.find("a.floats")->float_at(1), -2.0);
    EXPECT_EQ(file.find("absent"), nullptr);
    ASSERT_EQ(file.tensors().size(), 2u);
    const Tensor* w = file.find_tensor("w");
    ASSERT_NE(w, nullptr);
    EXPECT_EQ(w->dims, (std::array<uint64_t, 4>{32, 2, 1, 1}));
    EXPECT_EQ(w->n_dims, 2u);
    EXPECT_EQ(w->format->name, "Q8_0");
    EXPECT_EQ(w->n_elements, 64u);
    EXPECT_EQ(w->n_bytes, 68u);
    EXPECT_EQ(w->data, keep.span().data() + w->offset);
    EXPECT_EQ(w->data[1], 8);
    EXPECT_EQ(file.find_tensor("b")->offset, w->offset + 96);
    EXPECT_EQ(file.tensor_bytes(), 88u);
    EXPECT_EQ(file.find_tensor("absent"), nullptr);
    EXPECT_EQ(file.shards().size(), 1u);
    EXPECT_EQ(file.shards()[0].data_offset, w->offset);
  }
}

TEST(Header, MovedFileKeepsItsViews) {
  Bytes keep;
  File a = open(small_file(), keep);
  const uint64_t sum = walk(a);
  File b = std::move(a);
  EXPECT_EQ(walk(b), sum);
}

TEST(Header, EveryScalarType) {
  RawFile raw;
  raw.keys = {{"u8", Bytes().type(Type::u8).put(uint8_t{255})},
              {"i8", Bytes().type(Type::i8).put(int8_t{-128})},
              {"u16", Bytes().type(Type::u16).put(uint16_t{65535})},
              {"i16", Bytes().type(Type::i16).put(int16_t{-32768})},
              {"u32", Bytes().type(Type::u32).put(uint32_t{4294967295u})},
              {"i32", Bytes().type(Type::i32).put(std::numeric_limits<int32_t>::min())},
              {"f32", Bytes().type(Type::f32).put(0.1f)},
              {"bool", Bytes().type(Type::boolean).put(uint8_t{0})},
              {"string", string_value("a\0b")},
              {"u64", Bytes().type(Type::u64).put(~uint64_t{0})},
              {"i64", Bytes().type(Type::i64).put(std::numeric_limits<int64_t>::min())},
              {"f64", Bytes().type(Type::f64).put(0.1)}};
  Bytes keep;
  const File file = open(raw, keep);
  const auto at = [&](std::string_view key) -> const Value& { return *file.find(key); };
  EXPECT_EQ(at("u8").as_uint(), 255u);
  EXPECT_EQ(at("i8").as_int(), -128);
  EXPECT_EQ(at("i8").as_uint(), std::nullopt);
  EXPECT_EQ(at("u16").as_int(), 65535);
  EXPECT_EQ(at("i16").as_int(), -32768);
  EXPECT_EQ(at("u32").as_uint(), 4294967295u);
  EXPECT_EQ(at("i32").as_int(), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(at("u64").as_uint(), ~uint64_t{0});
  EXPECT_EQ(at("u64").as_int(), std::nullopt);
  EXPECT_EQ(at("i64").as_int(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(at("f32").as_float(), double(0.1f));
  EXPECT_EQ(at("f64").as_float(), 0.1);
  EXPECT_EQ(at("i16").as_float(), -32768.0);
  EXPECT_EQ(at("bool").as_bool(), false);
  for (const char* key : {"f32", "f64", "bool", "string"}) {
    EXPECT_EQ(at(key).as_int(), std::nullopt) << key;
    EXPECT_EQ(at(key).as_uint(), std::nullopt) << key;
  }
  EXPECT_EQ(at("bool").as_float(), std::nullopt);
  EXPECT_EQ(at("string").as_float(), std::nullopt);
  EXPECT_EQ(at("u8").as_bool(), std::nullopt);
  EXPECT_EQ(at("u8").as_string(), std::nullopt);
  for (const Entry& entry : file.entries()) {
    EXPECT_EQ(entry.value.type_name(), entry.key);
    EXPECT_EQ(entry.value.size(), 0u);
    EXPECT_EQ(entry.value.describe().rfind(std::string(entry.key) + " ", 0), 0u) << entry.value.describe();
  }
}

TEST(Header, EveryArrayType) {
  RawFile raw;
  raw.keys = {{"u8", Bytes().array(Type::u8, 2).put(uint8_t{1}).put(uint8_t{255})},
              {"i8", Bytes().array(Type::i8, 2).put(int8_t{1}).put(int8_t{-1})},
              {"u16", Bytes().array(Type::u16, 2).put(uint16_t{1}).put(uint16_t{65535})},
              {"i16", Bytes().array(Type::i16, 2).put(int16_t{1}).put(int16_t{-1})},
              {"u32", Bytes().array(Type::u32, 2).put(uint32_t{1}).put(~uint32_t{0})},
              {"i32", Bytes().array(Type::i32, 2).put(int32_t{1}).put(int32_t{-1})},
              {"u64", Bytes().array(Type::u64, 2).put(uint64_t{1}).put(~uint64_t{0})},
              {"i64", Bytes().array(Type::i64, 2).put(int64_t{1}).put(int64_t{-1})},
              {"bool", Bytes().array(Type::boolean, 2).put(uint8_t{1}).put(uint8_t{0})},
              {"f32", Bytes().array(Type::f32, 2).put(1.f).put(-0.5f)},
              {"f64", Bytes().array(Type::f64, 2).put(1.0).put(-0.5)},
              {"string", Bytes().array(Type::string, 2).string("one").string("")},
              {"empty", Bytes().array(Type::string, 0)},
              {"last", u32_value(9)}};
  Bytes keep;
  const File file = open(raw, keep);
  const auto at = [&](std::string_view key) -> const Value& { return *file.find(key); };
  const std::pair<const char*, int64_t> second[] = {
      {"u8", 255},        {"i8", -1},  {"u16", 65535}, {"i16", -1}, {"u32", 4294967295}, {"i32", -1},
      {"u64", INT64_MAX}, {"i64", -1}, {"bool", 0},    {"f32", 0},  {"f64", 0},          {"string", 0}};
  for (const auto& [key, value] : second) {
    EXPECT_EQ(at(key).size(), 2u) << key;
    EXPECT_EQ(at(key).type_name(), std::string(key) + "[2]");
    EXPECT_EQ(at(key).int_at(1), value) << key;
    EXPECT_EQ(at(key).int_at(2), 0) << key;
    EXPECT_EQ(at(key).float_at(2), 0) << key;
    EXPECT_EQ(at(key).string_at(2), "") << key;
    EXPECT_EQ(at(key).as_int(), std::nullopt) << key;
    EXPECT_EQ(at(key).as_float(), std::nullopt) << key;
    EXPECT_EQ(at(key).as_string(), std::nullopt) << key;
    EXPECT_EQ(at(key).as_bool(), std::nullopt) << key;
  }
  EXPECT_EQ(at("f32").float_at(1), -0.5);
  EXPECT_EQ(at("f64").float_at(1), -0.5);
  EXPECT_EQ(at("i16").float_at(1), -1.0);
  EXPECT_EQ(at("string").string_at(0), "one");
  EXPECT_EQ(at("string").string_at(1), "");
  EXPECT_EQ(at("empty").size(), 0u);
  EXPECT_EQ(at("empty").string_at(0), "");
  EXPECT_EQ(at("last").as_uint(), 9u);
}

TEST(Header, MagicOfOtherThings) {
  const std::pair<std::string, const char*> files[] = {
      {"", "empty"},
      {"G", "begins with 'G', wanted 'GGUF'"},
      {"nonsense", "begins with 'nons'"},
      {std::string("\x01\x02\xff\x00zzzz", 8), "begins with '\\x01\\x02\\xff\\x00'"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:", "Git LFS pointer"},
      {"PK\3\4....", "zip"},
      {std::string("\x40\0\0\0\0\0\0\0{\"__metadata__\"", 23), "safetensors"},
      {"tjgg\1\0\0\0", "before GGUF"},
      {"lmgg", "before GGUF"},
      {"\x80\2}q", "pickle"},
      {"<!DOCTYPE html><html>", "HTML"},
      {"\n  <HTML><head>", "HTML"},
      {"{\"error\":\"Unauthorized\"}", "JSON"},
      {"\x1f\x8b\x08", "compressed"},
      {std::string(64, '\0'), "zeros"},
      {std::string("FUGG\0\0\0\3", 8), "big-endian"},
  };
  for (const auto& [text, part] : files) {
    EXPECT_THAT(error_of(Bytes().text(text)), AllOf(HasSubstr("not a GGUF file"), HasSubstr(part)));
  }
}

TEST(Header, Versions) {
  RawFile raw = small_file();
  const std::pair<uint32_t, const char*> versions[] = {
      {0, "version 0, wanted 2 or 3"},    {1, "version 1, wanted 2 or 3"}, {4, "version 4, wanted 2 or 3"},
      {0xffffffff, "version 4294967295"}, {0x02000000, "big-endian"},      {0x03000000, "big-endian"}};
  for (const auto& [version, part] : versions) {
    raw.version = version;
    EXPECT_THAT(error_of(raw), HasSubstr(part));
    EXPECT_EQ(File::parse(raw.build().span(), "t").error().code, Code::unsupported);
  }
}

TEST(Header, CountsBeyondTheFile) {
  for (const uint64_t n : {uint64_t{3}, uint64_t{1} << 16, uint64_t{1} << 20, uint64_t{1} << 60, ~uint64_t{0}}) {
    RawFile raw;
    raw.keys = {{"k", u32_value(1)}};
    raw.n_keys = n;
    EXPECT_THAT(error_of(raw), HasSubstr(fmt::format("claims {} keys", n)));
    raw.n_keys.reset();
    raw.n_tensors = n;
    EXPECT_THAT(error_of(raw), HasSubstr(fmt::format("claims {} tensors", n)));
  }
}

TEST(Header, HugeClaimsFailAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  RawFile raw;
  raw.n_keys = uint64_t{1} << 60;
  error_of(raw);
  for (uint32_t type = 0; type < kTypeCount; ++type)
    for (const uint64_t n : {uint64_t{1} << 32, uint64_t{1} << 60, uint64_t{1} << 61, ~uint64_t{0}}) {
      error_of_key("k", Bytes().array(Type(type), n).fill(64, 0));
      error_of_key("k", Bytes().type(Type::string).put(n).fill(64, 0));
    }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST(Header, Keys) {
  EXPECT_THAT(error_of_key("", u32_value(1)), HasSubstr("key 6 of 6 has an empty name"));
  EXPECT_THAT(error_of_key("a.u32", u32_value(1)), HasSubstr("key 'a.u32' stands twice"));
  EXPECT_EQ(error_of_key(std::string(kMaxKeyBytes, 'k'), u32_value(1)), "accepted");
  EXPECT_THAT(error_of_key(std::string(kMaxKeyBytes + 1, 'k'), u32_value(1)), HasSubstr("has a name of 65536 bytes"));
  for (const uint32_t type : {13u, 255u, 0xffffffffu}) {
    EXPECT_THAT(error_of_key("k", Bytes().put(type).put(uint64_t{0})),
                HasSubstr(fmt::format("'k' has value type {}", type)));
    EXPECT_THAT(error_of_key("k", Bytes().type(Type::array).put(type).put(uint64_t{0})),
                HasSubstr(fmt::format("'k' is an array of value type {}", type)));
  }
  EXPECT_THAT(error_of_key("k\n\x1b[31m'", Bytes().put(uint32_t{99}).put(uint64_t{0})),
              HasSubstr("'k\\x0a\\x1b[31m\\''"));
  EXPECT_THAT(error_of_key("k", Bytes().array(Type::array, 1).type(Type::u8).put(uint64_t{0})),
              HasSubstr("array of arrays"));
}

TEST(Header, Bools) {
  EXPECT_THAT(error_of_key("k", Bytes().type(Type::boolean).put(uint8_t{2})),
              HasSubstr("'k' is a bool of value 2, wanted 0 or 1"));
  EXPECT_THAT(error_of_key("k", Bytes().array(Type::boolean, 2).put(uint8_t{1}).put(uint8_t{255})),
              HasSubstr("'k' has bool 1 of value 255"));
}

TEST(Header, Strings) {
  const auto cut = [](uint64_t claimed) { return Bytes().type(Type::string).put(claimed).text("abc"); };
  RawFile raw;
  for (const uint64_t claimed : {uint64_t{4}, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    raw.keys = {{"k", cut(claimed)}};
    EXPECT_THAT(error_of(raw),
                AllOf(HasSubstr("key 'k' (string) needs " + std::to_string(claimed)), HasSubstr("ends at")));
    raw.keys = {{"k", Bytes().array(Type::string, 2).string("ok").put(claimed).text("abc")}};
    EXPECT_THAT(error_of(raw), HasSubstr("key 'k' (string 1 of 2) needs " + std::to_string(claimed)));
  }
  raw.keys = {{"k", Bytes().array(Type::string, 3).string("ok").string("ok").text("1234567")}};
  EXPECT_THAT(error_of(raw), HasSubstr("key 'k' (string 2 of 3) needs 8 bytes"));
  raw.keys = {{"k", Bytes().array(Type::string, 3).string("ok")}};
  EXPECT_THAT(error_of(raw), HasSubstr("array of 3 strings"));
}

TEST(Header, Alignment) {
  const auto with = [](const Bytes& value) {
    RawFile raw;
    raw.keys = {{"general.alignment", value}};
    raw.tensors = {{"t", {4}, 0, 0, {}}};
    raw.data_bytes = 16;
    raw.align = 1 << 20;
    return raw;
  };
  for (const uint32_t good : {1u, 2u, 8u, 32u, 64u, 4096u, 1u << 20}) {
    RawFile raw = with(u32_value(good));
    raw.align = good;
    Bytes keep;
    EXPECT_EQ(open(raw, keep).alignment(), good);
  }
  for (const uint32_t bad : {0u, 3u, 33u, 1u << 21, 0x80000000u, 0xffffffffu})
    EXPECT_THAT(error_of(with(u32_value(bad))), HasSubstr(fmt::format("'general.alignment' is u32 {}, wanted", bad)));
  EXPECT_THAT(error_of(with(i32_value(-8))), HasSubstr("'general.alignment' is i32 -8, wanted a u32"));
  EXPECT_THAT(error_of(with(i32_value(32))), HasSubstr("'general.alignment' is i32 32, wanted a u32"));
  EXPECT_THAT(error_of(with(string_value("32"))), HasSubstr("'general.alignment' is string '32', wanted a u32"));
  EXPECT_THAT(error_of(with(Bytes().array(Type::u32, 1).put(uint32_t{32}))), HasSubstr("is u32[1], wanted a u32"));
  EXPECT_THAT(error_of(with(Bytes().type(Type::u64).put(uint64_t{32}))), HasSubstr("is u64 32, wanted a u32"));
}

TEST(Header, CutAtEveryByte) {
  const Bytes whole = small_file().build();
  const size_t header = small_file().header().size();
  for (size_t n = 0; n < whole.size(); ++n) {
    Guarded guarded(whole.span().first(n));
    const auto file = File::parse(guarded.span(), "t.gguf");
    ASSERT_FALSE(file) << n;
    if (n < 4) continue;
    const bool in_data = n >= header;
    EXPECT_TRUE(file.error().message.find("truncated") != std::string::npos ||
                file.error().message.find("bytes follow") != std::string::npos)
        << n << ": " << file.error().message;
    if (in_data) {
      EXPECT_THAT(file.error().message, HasSubstr(fmt::format("but the file has {} bytes", n)));
    }
  }
}

TEST(Header, EveryByteChanged) {
  const Bytes whole = small_file().build();
  Guarded guarded(whole.span());
  int accepted = 0;
  const size_t header = small_file().header().size();
  for (size_t i = 0; i < header; ++i) {
    const uint8_t was = guarded.span()[i];
    for (int change = 1; change < 256; ++change) {
      guarded.span()[i] = uint8_t(was ^ change);
      if (const auto file = File::parse(guarded.span(), "t.gguf")) {
        ++accepted;
        walk(*file);
      }
    }
    guarded.span()[i] = was;
  }
  EXPECT_GT(accepted, 1000);  // other names and values
}

TEST(Header, EveryFieldOfFourOrEightBytesExtreme) {
  const Bytes whole = small_file().build();
  Guarded guarded(whole.span());
  for (size_t i = 4; i + 8 <= small_file().header().size(); ++i)
    for (const uint64_t value :
         {uint64_t{0}, uint64_t{1}, uint64_t{0x7fffffff}, uint64_t{0x80000000}, uint64_t{0xffffffff}, uint64_t{1} << 62,
          uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 31})
      for (const size_t width : {4, 8}) {
        uint64_t was;
        std::memcpy(&was, &guarded.span()[i], 8);
        std::memcpy(&guarded.span()[i], &value, width);
        if (const auto file = File::parse(guarded.span(), "t.gguf")) walk(*file);
        std::memcpy(&guarded.span()[i], &was, 8);
      }
}

// The most work that a header can ask for: 2^24 empty strings in a sparse file.
TEST(Header, MostStringsInASecond) {
  TempDir dir;
  const std::string path = dir / "strings.gguf";
  for (const uint64_t n : {kMaxStrings, kMaxStrings + 1}) {
    RawFile raw;
    raw.keys = {{"k", Bytes().array(Type::string, n)}};
    write_file(path, raw.build().span());
    std::filesystem::resize_file(path, uint64_t{2} << 30);
    const auto begin = std::chrono::steady_clock::now();
    const auto file = File::open(path);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
    if (n == kMaxStrings) {
      ASSERT_TRUE(file) << file.error().message;
      EXPECT_EQ(file->find("k")->string_at(n - 1), "");
    } else {
      ASSERT_FALSE(file);
      EXPECT_THAT(file.error().message, HasSubstr("at most 16777216"));
    }
  }
}

TEST(Header, EndsInItsFirstGibibyte) {
  TempDir dir;
  const std::string path = dir / "long.gguf";
  RawFile raw;
  raw.keys = {{"k", Bytes().array(Type::u8, kMaxHeaderBytes)}};
  write_file(path, raw.build().span());
  std::filesystem::resize_file(path, uint64_t{2} << 30);
  const auto file = File::open(path);
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr("'k' (u8[1073741824]) ends beyond the 1073741824 bytes"));
}

TEST(Header, OpenNamesWhatIsNotAFile) {
  TempDir dir;
  EXPECT_EQ(File::open(dir / "absent.gguf").error().code, Code::not_found);
  EXPECT_THAT(File::open(dir / "").error().message, HasSubstr("folder"));
}

}  // namespace
}  // namespace argent::gguf
