// The writer, split and merge: what is written is read back the same, and a failure leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "gguf/split.h"
#include "gguf/writer.h"
#include "raw_file.h"
#include "walk.h"

namespace argent::gguf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string text(std::span<const uint8_t> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// The same keys (but split.*) and tensors, in order, byte for byte.
void expect_same(const File& a, const File& b) {
  const auto keys = [](const File& f) {
    std::vector<std::string> out;
    for (const Entry& e : f.entries())
      if (e.key.substr(0, 6) != "split.")
        out.push_back(std::string(e.key) + " " + e.value.type_name() + " " + text(e.value.raw()));
    return out;
  };
  EXPECT_EQ(keys(a), keys(b));
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    const Tensor &x = a.tensors()[i], &y = b.tensors()[i];
    EXPECT_EQ(x.name, y.name);
    EXPECT_EQ(x.dims, y.dims);
    EXPECT_EQ(x.n_dims, y.n_dims);
    EXPECT_EQ(x.gguf_type, y.gguf_type);
    EXPECT_EQ(text({x.data, x.n_bytes}), text({y.data, y.n_bytes}));
  }
}

// Eight tensors of several formats and sizes, a key of every type.
class Writing : public ::testing::Test {
 protected:
  Writing() {
    for (uint32_t i = 0; i < 4096; ++i) data_.push_back(uint8_t(i * 31 + i / 256));
    writer_.set("general.architecture", "llama");
    writer_.set("u8", uint8_t{200});
    writer_.set("i8", int8_t{-100});
    writer_.set("u16", uint16_t{60000});
    writer_.set("i16", int16_t{-30000});
    writer_.set("u32", uint32_t{4000000000});
    writer_.set("i32", int32_t{-2000000000});
    writer_.set("u64", ~uint64_t{0});
    writer_.set("i64", std::numeric_limits<int64_t>::min());
    writer_.set("f32", 0.1f);
    writer_.set("f64", 0.1);
    writer_.set("bool", true);
    const std::string_view strings[] = {"a", "", std::string_view("x\0y", 3), "\xff"};
    writer_.set_strings("strings", strings);
    const float floats[] = {1.f, -2.f};
    writer_.set_array<float>("floats", floats);
    const int32_t ints[] = {1, -2, 3};
    writer_.set_array<int32_t>("ints", ints);
    const bool bools[] = {true, false};
    writer_.set_array<bool>("bools", bools);
    writer_.set_array<uint64_t>("empty", {});
    const uint32_t types[] = {0, 8, 12, 1, 24};  // F32 Q8_0 Q4_K F16 I8
    for (uint32_t i = 0; i < 8; ++i) {
      const FormatInfo& format = *find_format(types[i % 5]);
      const uint64_t dims[] = {format.block * (i + 1), i % 3 + 1};
      add(fmt::format("t{}", i), dims, types[i % 5], format.bytes * (i + 1) * dims[1]);
    }
  }
  void add(std::string_view name, std::span<const uint64_t> dims, uint32_t type, size_t size) {
    writer_.add_tensor(name, dims, type, std::span(data_).subspan(name.size() + size % 7).first(size));
  }
  File read(const std::string& path) {
    auto file = File::open(path);
    if (!file) {
      ADD_FAILURE() << file.error().message;
      std::abort();
    }
    return *std::move(file);
  }
  std::string error(const Writer& w) {
    const auto bytes = w.to_bytes();
    return bytes ? "written" : bytes.error().message;
  }

  Writer writer_;
  std::vector<uint8_t> data_;
  TempDir dir_;
};

TEST_F(Writing, EveryTypeComesBack) {
  ASSERT_TRUE(writer_.write(dir_ / "m.gguf"));
  EXPECT_EQ(dir_.n_files(), 1u);
  const File file = read(dir_ / "m.gguf");
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.find("u8")->describe(), "u8 200");
  EXPECT_EQ(file.find("i8")->describe(), "i8 -100");
  EXPECT_EQ(file.find("u16")->describe(), "u16 60000");
  EXPECT_EQ(file.find("i16")->describe(), "i16 -30000");
  EXPECT_EQ(file.find("u32")->describe(), "u32 4000000000");
  EXPECT_EQ(file.find("i32")->describe(), "i32 -2000000000");
  EXPECT_EQ(file.find("u64")->describe(), "u64 18446744073709551615");
  EXPECT_EQ(file.find("i64")->describe(), "i64 -9223372036854775808");
  EXPECT_EQ(file.find("f32")->describe(), "f32 0.1");
  EXPECT_EQ(file.find("f64")->describe(), "f64 0.1");
  EXPECT_EQ(file.find("bool")->describe(), "bool true");
  EXPECT_EQ(file.find("general.architecture")->describe(), "string 'llama'");
  EXPECT_EQ(file.find("strings")->type_name(), "string[4]");
  EXPECT_EQ(file.find("strings")->string_at(2), std::string_view("x\0y", 3));
  EXPECT_EQ(file.find("floats")->float_at(1), -2.0);
  EXPECT_EQ(file.find("ints")->int_at(1), -2);
  EXPECT_EQ(file.find("bools")->type_name(), "bool[2]");
  EXPECT_EQ(file.find("empty")->type_name(), "u64[0]");
  ASSERT_EQ(file.tensors().size(), 8u);
  EXPECT_EQ(file.find_tensor("t7")->format->name, "Q4_K");
  EXPECT_EQ(file.find_tensor("t7")->dims[0], 2048u);
  for (const Tensor& t : file.tensors()) EXPECT_EQ(t.data[0], data_[t.name.size() + t.n_bytes % 7]);

  const auto bytes = writer_.to_bytes();
  EXPECT_EQ(text(*bytes), text(read_file(dir_ / "m.gguf")));
}

TEST_F(Writing, CopyIsByteEqual) {
  ASSERT_TRUE(writer_.write(dir_ / "m.gguf"));
  ASSERT_TRUE(merge(read(dir_ / "m.gguf"), dir_ / "copy.gguf"));
  EXPECT_EQ(text(read_file(dir_ / "m.gguf")), text(read_file(dir_ / "copy.gguf")));
}

TEST_F(Writing, VersionTwoBecomesThree) {
  RawFile raw = small_file();
  raw.version = 2;
  const Bytes bytes = raw.build();
  const auto two = File::parse(bytes.span(), "two");
  ASSERT_TRUE(merge(*two, dir_ / "three.gguf"));
  const File three = read(dir_ / "three.gguf");
  EXPECT_EQ(three.version(), 3u);
  expect_same(*two, three);
}

TEST_F(Writing, SetReplacesAndEraseRemoves) {
  writer_.set("u8", "now a string");
  writer_.erase("i8");
  writer_.erase("absent");
  ASSERT_TRUE(writer_.write(dir_ / "m.gguf"));
  const File file = read(dir_ / "m.gguf");
  EXPECT_EQ(file.entries()[1].key, "u8");
  EXPECT_EQ(file.entries()[1].value.as_string(), "now a string");
  EXPECT_EQ(file.entries()[2].key, "u16");
}

TEST_F(Writing, EveryAlignment) {
  for (uint32_t align = 1; align <= kMaxAlignment; align *= 8) {
    writer_.set("general.alignment", align);
    ASSERT_TRUE(writer_.write(dir_ / "m.gguf"));
    const File file = read(dir_ / "m.gguf");
    EXPECT_EQ(file.alignment(), align);
    EXPECT_EQ(file.shards()[0].bytes.size() % align, 0u);
    for (const Tensor& t : file.tensors()) EXPECT_EQ(t.offset % align, 0u);
  }
}

TEST_F(Writing, RefusesWhatCannotBeRead) {
  const auto with = [&](auto change) {
    Writer w = writer_;
    change(w);
    return error(w);
  };
  const auto tensor = [&](std::string_view name, std::vector<uint64_t> dims, uint32_t type, size_t size) {
    return with([&](Writer& w) { w.add_tensor(name, dims, type, std::span(data_).first(size)); });
  };
  EXPECT_EQ(tensor("n", {4}, 0, 16), "written");
  EXPECT_THAT(tensor("n", {4}, 0, 15), HasSubstr("'n' has 15 bytes of data, its shape takes 16"));
  EXPECT_THAT(tensor("t3", {4}, 0, 16), HasSubstr("'t3' stands twice"));
  EXPECT_THAT(tensor("", {4}, 0, 16), HasSubstr("name of 0 bytes"));
  EXPECT_THAT(tensor(std::string(1025, 'n'), {4}, 0, 16), HasSubstr("name of 1025 bytes"));
  EXPECT_THAT(tensor("n", {}, 0, 4), HasSubstr("0 dimensions"));
  EXPECT_THAT(tensor("n", {1, 1, 1, 1, 1}, 0, 4), HasSubstr("5 dimensions"));
  EXPECT_THAT(tensor("n", {0}, 0, 0), HasSubstr("no dimension of 0"));
  EXPECT_THAT(tensor("n", {33}, 8, 34), HasSubstr("multiple of 32 for Q8_0"));
  EXPECT_THAT(tensor("n", {32}, 4, 34), HasSubstr("type id 4"));
  EXPECT_THAT(with([](Writer& w) { w.set("", 1); }), HasSubstr("key '' has 0 bytes"));
  EXPECT_THAT(with([](Writer& w) { w.set(std::string(65536, 'k'), 1); }), HasSubstr("65536 bytes, wanted 1 to 65535"));
  for (const uint32_t bad : {0u, 3u, 1u << 21})
    EXPECT_THAT(with([&](Writer& w) { w.set("general.alignment", bad); }), HasSubstr("'general.alignment'"));
  EXPECT_THAT(with([](Writer& w) { w.set("general.alignment", uint64_t{32}); }), HasSubstr("must be a u32"));
  EXPECT_THAT(with([](Writer& w) { w.set("general.alignment", "32"); }), HasSubstr("must be a u32"));
}

TEST_F(Writing, SplitAndMerge) {
  writer_.set("general.alignment", uint32_t{64});
  ASSERT_TRUE(writer_.write(dir_ / "m.gguf"));
  const File whole = read(dir_ / "m.gguf");
  uint64_t padded = 0;
  for (const Tensor& t : whole.tensors()) padded += (t.n_bytes + 63) / 64 * 64;

  const std::pair<SplitOptions, size_t> cases[] = {{{0, 0}, 1},      {{1, 0}, 8},          {{3, 0}, 3},
                                                   {{8, 0}, 1},      {{100, 0}, 1},        {{0, 1}, 8},
                                                   {{0, padded}, 1}, {{0, padded - 1}, 2}, {{2, padded}, 4}};
  for (const auto& [options, count] : cases) {
    TempDir out;
    const auto paths = split(whole, options, out / "s");
    ASSERT_TRUE(paths) << paths.error().message;
    EXPECT_EQ(paths->size(), count);
    EXPECT_EQ(out.n_files(), count);
    EXPECT_EQ(paths->front(), out / fmt::format("s-00001-of-{:05}.gguf", count));
    for (const std::string& path : *paths) {
      const File shards = read(path);
      EXPECT_EQ(shards.shards().size(), count);
      EXPECT_EQ(shards.alignment(), 64u);
      EXPECT_EQ(shards.find("split.count")->type_name(), "u16");
      EXPECT_EQ(shards.find("split.tensors.count")->describe(), "i32 8");
      expect_same(whole, shards);
    }
    ASSERT_TRUE(merge(read(paths->back()), out / "merged.gguf"));
    EXPECT_EQ(text(read_file(out / "merged.gguf")), text(read_file(dir_ / "m.gguf")));
  }
}

TEST_F(Writing, SplitAgain) {
  ASSERT_TRUE(writer_.write(dir_ / "m.gguf"));
  const auto four = split(read(dir_ / "m.gguf"), {2, 0}, dir_ / "a");
  const auto two = split(read((*four)[2]), {4, 0}, dir_ / "b");
  ASSERT_TRUE(two) << two.error().message;
  EXPECT_EQ(two->size(), 2u);
  expect_same(read(dir_ / "m.gguf"), read((*two)[1]));
}

TEST_F(Writing, SplitOntoItself) {
  ASSERT_TRUE(writer_.write(dir_ / "m.gguf"));
  const auto paths = split(read(dir_ / "m.gguf"), {2, 0}, dir_ / "a");
  const File shards = read((*paths)[0]);
  ASSERT_TRUE(split(shards, {2, 0}, dir_ / "a"));
  expect_same(shards, read((*paths)[3]));
}

TEST_F(Writing, ProgressCountsAndCancels) {
  ASSERT_TRUE(writer_.write(dir_ / "m.gguf"));
  const File whole = read(dir_ / "m.gguf");
  uint64_t last = 0;
  ASSERT_TRUE(split(whole, {3, 0}, dir_ / "s", [&](uint64_t done, uint64_t total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, whole.tensor_bytes());
    last = done;
    return true;
  }));
  EXPECT_EQ(last, whole.tensor_bytes());

  TempDir out;
  const auto stop_at_half = [](uint64_t done, uint64_t total) { return done < total / 2; };
  EXPECT_EQ(split(whole, {1, 0}, out / "s", stop_at_half).error().code, Code::cancelled);
  EXPECT_EQ(merge(whole, out / "m.gguf", stop_at_half).error().code, Code::cancelled);
  EXPECT_EQ(out.n_files(), 0u);
}

TEST_F(Writing, FullDiskLeavesNothing) {
  ASSERT_TRUE(writer_.write(dir_ / "m.gguf"));
  const File whole = read(dir_ / "m.gguf");
  TempDir out;
  write_file(out / "m.gguf", std::vector<uint8_t>(5, 'x'));

  rlimit was{};
  ::getrlimit(RLIMIT_FSIZE, &was);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit small = was;
  small.rlim_cur = 1024;
  ::setrlimit(RLIMIT_FSIZE, &small);
  const Status merged = merge(whole, out / "m.gguf");
  const auto split_up = split(whole, {1, 0}, out / "s");
  ::setrlimit(RLIMIT_FSIZE, &was);
  ::signal(SIGXFSZ, handler);

  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().code, Code::io);
  EXPECT_THAT(merged.error().message, AllOf(HasSubstr("m.gguf: cannot write at byte"), HasSubstr("too large")));
  EXPECT_FALSE(split_up);
  EXPECT_EQ(out.n_files(), 1u);
  EXPECT_EQ(text(read_file(out / "m.gguf")), "xxxxx");
}

TEST_F(Writing, PathsThatCannotBe) {
  EXPECT_EQ(writer_.write(dir_ / "no/such/m.gguf").error().code, Code::io);
  EXPECT_THAT(writer_.write("/dev/null").error().message, HasSubstr("not a regular file"));
  EXPECT_THAT(writer_.write(dir_ / "").error().message, HasSubstr("not a regular file"));
  EXPECT_EQ(dir_.n_files(), 0u);
}

TEST_F(Writing, LargeTensorsInPieces) {
  std::vector<uint8_t> big((40 << 20) + 4);
  for (size_t i = 0; i < big.size(); ++i) big[i] = uint8_t(i >> 12 ^ i);
  const uint64_t dims[] = {big.size() / 4};
  writer_.add_tensor("big", dims, 0, big);
  int calls = 0;
  ASSERT_TRUE(writer_.write(dir_ / "m.gguf", [&](uint64_t, uint64_t) { return ++calls > 0; }));
  EXPECT_EQ(calls, 8 + 3);
  const File file = read(dir_ / "m.gguf");
  const Tensor& t = *file.find_tensor("big");
  EXPECT_TRUE(std::equal(big.begin(), big.end(), t.data, t.data + t.n_bytes));
}

}  // namespace
}  // namespace argent::gguf
