// Models in several files: opened from any shard, and each way to be incomplete or mixed up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gguf/split.h"
#include "raw_file.h"
#include "walk.h"

namespace argent::gguf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Shard i (from 0) of 3 in the layout of llama.cpp's gguf-split: tensors t0 to t4, two a shard, the last has one.
RawFile shard(int i, Bytes count = u16_value(3), Bytes no = {}, Bytes n_tensors = i32_value(5)) {
  RawFile raw;
  if (i == 0) raw.keys = {{"general.architecture", string_value("llama")}, {"a.n", u32_value(42)}};
  raw.keys.push_back({"split.no", no.size() ? no : u16_value(uint16_t(i))});
  raw.keys.push_back({"split.count", count});
  raw.keys.push_back({"split.tensors.count", n_tensors});
  for (int t = 2 * i; t < std::min(2 * i + 2, 5); ++t)
    raw.tensors.push_back({fmt::format("t{}", t), {8, 2}, 0, uint64_t(t - 2 * i) * 64, {}});
  raw.data_bytes = raw.tensors.size() * 64;
  return raw;
}

class Shards : public ::testing::Test {
 protected:
  std::string path(int i) const { return dir_ / fmt::format("m-{:05}-of-00003.gguf", i + 1); }
  void put(int i, const RawFile& raw) { write_file(path(i), raw.build().span()); }
  void put_all() {
    for (int i = 0; i < 3; ++i) put(i, shard(i));
  }
  std::string error(const std::string& p) {
    const auto file = File::open(p);
    return file ? "accepted" : file.error().message;
  }
  TempDir dir_;
};

TEST_F(Shards, OpenFromAny) {
  put_all();
  for (int i = 0; i < 3; ++i) {
    const auto file = File::open(path(i));
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->path(), path(i));
    EXPECT_EQ(file->shards().size(), 3u);
    EXPECT_EQ(file->shards()[2].path, path(2));
    EXPECT_EQ(file->find("a.n")->as_uint(), 42u);
    EXPECT_EQ(file->entries().size(), 5u);
    ASSERT_EQ(file->tensors().size(), 5u);
    EXPECT_EQ(file->tensors()[3].name, "t3");
    EXPECT_EQ(file->tensors()[3].shard, 1u);
    EXPECT_EQ(file->find_tensor("t4")->shard, 2u);
    EXPECT_EQ(file->find_tensor("t4")->data, file->shards()[2].bytes.data() + file->find_tensor("t4")->offset);
    walk(*file);
  }
}

TEST_F(Shards, MissingOnesAreNamed) {
  put_all();
  std::filesystem::remove(path(2));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error(path(i)), path(i) + ": 1 of its 3 shards is missing: " + path(2));
    EXPECT_EQ(File::open(path(i)).error().code, Code::not_found);
  }
  std::filesystem::remove(path(0));
  EXPECT_EQ(error(path(1)), path(1) + ": 2 of its 3 shards are missing: " + path(0) + ", " + path(2));
}

TEST_F(Shards, ManyMissing) {
  const std::string p = dir_ / "m-00001-of-65535.gguf";
  write_file(p, shard(0, u16_value(65535)).build().span());
  EXPECT_THAT(error(p), AllOf(HasSubstr("65534 of its 65535 shards are missing: "), HasSubstr("m-00002-of-65535.gguf"),
                              HasSubstr("and 65530 more")));
}

TEST_F(Shards, SwappedNames) {
  put(0, shard(0));
  put(1, shard(2));
  put(2, shard(1));
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(
        error(path(i)),
        AllOf(HasSubstr(path(1)), HasSubstr("its name says shard 2, its key 'split.no' says 3; were files renamed?")));
}

TEST_F(Shards, Concatenated) {
  for (const auto& order : std::vector<std::vector<int>>{{0, 1, 2}, {1, 0}, {2, 1, 0}}) {
    for (const bool padded : {true, false}) {
      Bytes all;
      for (const int i : order) {
        all.append(shard(i).build());
        if (padded) all.pad(32);
      }
      const size_t first = shard(order[0]).build().size();
      for (const char* name : {"m.gguf", "m-00001-of-00003.gguf"}) {
        write_file(dir_ / name, all.span());
        EXPECT_THAT(error(dir_ / name), AllOf(HasSubstr("GGUF files were concatenated"),
                                              HasSubstr(fmt::format("byte {}", first)), HasSubstr("merge")));
      }
    }
  }
  // Also a first shard without tensors.
  RawFile keys_only = shard(0);
  keys_only.tensors.clear();
  keys_only.data_bytes = 0;
  write_file(dir_ / "m.gguf", keys_only.build().pad(32).append(shard(1).build()).span());
  EXPECT_THAT(error(dir_ / "m.gguf"), HasSubstr("concatenated"));
  // And two whole models.
  write_file(dir_ / "m.gguf", small_file().build().pad(32).append(small_file().build()).span());
  EXPECT_THAT(error(dir_ / "m.gguf"), HasSubstr("concatenated"));
}

TEST_F(Shards, CountOfAnotherKind) {
  for (int given = 0; given < 3; ++given) {
    put_all();
    put(given, shard(given, u32_value(3)));
    EXPECT_THAT(error(path(0)), HasSubstr("key 'split.count' is u32 3, wanted a u16"));
    put(given, shard(given, string_value("3")));
    EXPECT_THAT(error(path(1)), HasSubstr("key 'split.count' is string '3', wanted a u16"));
    put(given, shard(given, Bytes().array(Type::u16, 1).put(uint16_t{3})));
    EXPECT_THAT(error(path(2)), HasSubstr("key 'split.count' is u16[1], wanted a u16"));
  }
}

TEST_F(Shards, CountZeroIsAMergedFile) {
  RawFile raw = shard(0, u16_value(0));
  write_file(dir_ / "m.gguf", raw.build().span());
  EXPECT_EQ(error(dir_ / "m.gguf"), "accepted");
  put_all();
  put(1, shard(1, u16_value(0)));
  EXPECT_THAT(error(path(0)), AllOf(HasSubstr(path(1)), HasSubstr("a file of 1 shard(s), wanted shard 2 of 3")));
}

TEST_F(Shards, CountAgainstNames) {
  put_all();
  put(1, shard(1, u16_value(2)));
  EXPECT_THAT(error(path(1)), HasSubstr("its name says 3 shards, its key 'split.count' says 2"));
  EXPECT_THAT(error(path(0)), HasSubstr("a file of 2 shard(s), wanted shard 2 of 3"));
  put(1, shard(1, u16_value(65535)));
  EXPECT_THAT(error(path(1)), HasSubstr("its key 'split.count' says 65535"));
  write_file(dir_ / "renamed.gguf", shard(1).build().span());
  EXPECT_THAT(error(dir_ / "renamed.gguf"), HasSubstr("shard 2 of 3, so its name must end in -00002-of-00003.gguf"));
}

TEST_F(Shards, OneShardIsAWholeFile) {
  RawFile raw = small_file();
  raw.keys.push_back({"split.no", u16_value(0)});
  raw.keys.push_back({"split.count", u16_value(1)});
  raw.keys.push_back({"split.tensors.count", i32_value(2)});
  write_file(dir_ / "m.gguf", raw.build().span());
  EXPECT_EQ(error(dir_ / "m.gguf"), "accepted");
}

TEST_F(Shards, NumberAndTotal) {
  put_all();
  put(1, shard(1, u16_value(3), u16_value(3)));
  EXPECT_THAT(error(path(0)), HasSubstr("key 'split.no' is u16 3, wanted a u16 below split.count, 3"));
  put(1, shard(1, u16_value(3), i32_value(1)));
  EXPECT_THAT(error(path(0)), HasSubstr("key 'split.no' is i32 1, wanted a u16"));
  put(1, shard(1, u16_value(3), {}, i32_value(6)));
  EXPECT_THAT(error(path(0)), HasSubstr("key 'split.tensors.count' is 6, in the first shard 5"));
  put(1, shard(1, u16_value(3), {}, i32_value(-1)));
  EXPECT_THAT(error(path(0)), HasSubstr("key 'split.tensors.count' is i32 -1, wanted an i32 of at least 0"));
  put(1, shard(1, u16_value(3), {}, u32_value(5)));
  EXPECT_THAT(error(path(0)), HasSubstr("key 'split.tensors.count' is u32 5, wanted an i32"));
  for (const int total : {0, 4, 6}) {
    for (int i = 0; i < 3; ++i) put(i, shard(i, u16_value(3), {}, i32_value(total)));
    EXPECT_THAT(error(path(0)),
                AllOf(HasSubstr("tensors, key 'split.tensors.count' says"), HasSubstr(std::to_string(total))))
        << total;
  }
  RawFile no_total = shard(1);
  no_total.keys.pop_back();
  put_all();
  put(1, no_total);
  EXPECT_THAT(error(path(0)), HasSubstr("key 'split.tensors.count' is missing"));
}

TEST_F(Shards, SameTensorInTwo) {
  put_all();
  RawFile raw = shard(2);
  raw.tensors[0].name = "t0";
  put(2, raw);
  EXPECT_EQ(error(path(0)), path(2) + ": tensor 't0' stands twice");
}

TEST_F(Shards, BrokenShardIsNamed) {
  put_all();
  RawFile raw = shard(2);
  raw.data_bytes -= 1;
  put(2, raw);
  EXPECT_THAT(error(path(0)), AllOf(HasSubstr(path(2)), HasSubstr("'t4' takes bytes")));
  write_file(path(2), small_file().build().span());
  EXPECT_THAT(error(path(0)), HasSubstr("a file of 1 shard(s), wanted shard 3 of 3"));
}

TEST_F(Shards, NotFromMemory) {
  const Bytes bytes = shard(1).build();
  EXPECT_THAT(File::parse(bytes.span(), "m").error().message, HasSubstr("shard 2 of 3; only whole files"));
}

TEST(ShardName, ParseAndPrint) {
  const auto name = ShardName::parse("dir/m-Q4-00002-of-00011.gguf");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->prefix, "dir/m-Q4");
  EXPECT_EQ(name->number, 2u);
  EXPECT_EQ(name->count, 11u);
  EXPECT_EQ(name->path(), "dir/m-Q4-00002-of-00011.gguf");
  for (const char* no :
       {"", "m.gguf", "-00001-of-00002.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-0001-of-00002.gguf",
        "m-00001-of-00002.ggu", "m-0000x-of-00002.gguf", "m-00001_of-00002.gguf", "m-+0001-of-00002.gguf"})
    EXPECT_FALSE(ShardName::parse(no)) << no;
}

}  // namespace
}  // namespace argent::gguf
