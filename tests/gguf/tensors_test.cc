// Tensor infos: shapes, formats and the place of the data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "raw_file.h"
#include "walk.h"

namespace argent::gguf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string verdict_on(const RawFile& raw) {
  const Bytes bytes = raw.build();
  Guarded guarded(bytes.span());
  auto file = File::parse(guarded.span(), "t.gguf");
  if (!file) return file.error().message;
  walk(*file);
  return "accepted";
}
std::string verdict_on(std::vector<RawTensor> tensors, size_t data_bytes = 4096) {
  RawFile raw;
  raw.tensors = std::move(tensors);
  raw.data_bytes = data_bytes;
  return verdict_on(raw);
}

TEST(Tensors, ProductsThatWrap) {
  const uint64_t big = uint64_t{1} << 22;
  EXPECT_THAT(verdict_on({{"t", {big, (uint64_t{1} << 42) + 1}, 0, 0, {}}}),
              HasSubstr("'t' has shape 4194304 x 4398046511105, more elements"));
  EXPECT_THAT(verdict_on({{"t", {~uint64_t{0}, 2}, 0, 0, {}}}), HasSubstr("more elements than 64 bits count"));
  EXPECT_THAT(verdict_on({{"t", {uint64_t{1} << 62}, 0, 0, {}}}), HasSubstr("more bytes than 64 bits count"));
  EXPECT_THAT(verdict_on({{"t", {uint64_t{1} << 32, uint64_t{1} << 32, 0, 1}, 0, 0, {}}}),
              HasSubstr("no dimension of 0"));
  // Each end fits in 64 bits, the two together do not.
  const uint64_t half = uint64_t{1} << 63;
  EXPECT_THAT(verdict_on({{"a", {half - 64}, 24, 0, {}}, {"b", {half - 64}, 24, half - 64, {}}}),
              HasSubstr("but the file has"));
  EXPECT_THAT(verdict_on({{"t", {half}, 24, half, {}}}), HasSubstr("whose end exceeds 64 bits"));
  EXPECT_THAT(verdict_on({{"t", {1}, 24, ~uint64_t{0} - 31, {}}}), HasSubstr("whose end exceeds 64 bits"));
}

TEST(Tensors, NumberOfDimensions) {
  for (const uint32_t n : {0u, 5u, 9u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_THAT(verdict_on({{"t", {1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, 0, n}}),
                HasSubstr(fmt::format("'t' has {} dimensions, wanted 1 to 4", n)));
    EXPECT_THAT(verdict_on({{"t", {}, 0, 0, n}}, 64), HasSubstr(fmt::format("'t' has {} dimensions", n)));
  }
  for (size_t n = 1; n <= 4; ++n) EXPECT_EQ(verdict_on({{"t", std::vector<uint64_t>(n, 3), 0, 0, {}}}), "accepted");
}

TEST(Tensors, ZeroDimensions) {
  for (size_t at = 0; at < 4; ++at) {
    std::vector<uint64_t> dims(4, 2);
    dims[at] = 0;
    EXPECT_THAT(verdict_on({{"t", dims, 0, 0, {}}}), HasSubstr("wanted no dimension of 0"));
  }
}

TEST(Tensors, EveryTypeId) {
  const std::vector<uint32_t> retired = {4, 5, 31, 32, 33, 36, 37, 38};
  for (uint32_t id = 0; id < 300; ++id) {
    const FormatInfo* format = find_format(id);
    const uint64_t n = format ? format->block : 256;
    const std::string error = verdict_on({{"a.b", {n, 2}, id, 0, {}}});
    if (format) {
      EXPECT_EQ(error, "accepted") << id;
      if (n > 1) {
        EXPECT_THAT(verdict_on({{"a.b", {n + 1}, id, 0, {}}}),
                    AllOf(HasSubstr(fmt::format("'a.b' has rows of {} elements", n + 1)),
                          HasSubstr(std::string(format->name))));
        EXPECT_THAT(verdict_on({{"a.b", {n / 2, 2}, id, 0, {}}}), HasSubstr("rows of"));
      }
    } else {
      EXPECT_THAT(error, HasSubstr(fmt::format("tensor 'a.b' has type id {}", id)));
    }
  }
  for (const uint32_t id : retired) EXPECT_EQ(find_format(id), nullptr) << id;
  EXPECT_THAT(verdict_on({{"t", {32}, 0x80000000, 0, {}}}), HasSubstr("type id 2147483648"));
}

TEST(Tensors, BytesOfEveryFormat) {
  for (const FormatInfo& format : kFormats) {
    RawFile raw;
    raw.tensors = {{"t", {uint64_t{format.block} * 2, 3}, format.gguf_id, 0, {}}};
    raw.data_bytes = format.bytes * 6;
    const Bytes bytes = raw.build();
    const auto file = File::parse(bytes.span(), "t");
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->tensors()[0].n_bytes, format.bytes * 6u);
    raw.data_bytes -= 1;
    EXPECT_THAT(verdict_on(raw), HasSubstr("truncated")) << format.name;
  }
}

TEST(Tensors, Names) {
  EXPECT_THAT(verdict_on({{"", {1}, 0, 0, {}}}), HasSubstr("tensor 1 of 1 has an empty name"));
  EXPECT_THAT(verdict_on({{"t", {1}, 0, 0, {}}, {"t", {1}, 0, 32, {}}}), HasSubstr("tensor 't' stands twice"));
  EXPECT_EQ(verdict_on({{std::string(kMaxNameBytes, 'n'), {1}, 0, 0, {}}}), "accepted");
  EXPECT_THAT(verdict_on({{std::string(kMaxNameBytes + 1, 'n'), {1}, 0, 0, {}}}),
              HasSubstr("has a name of 1025 bytes, at most 1024"));
  EXPECT_EQ(verdict_on({{"\xff\n", {1}, 0, 0, {}}}), "accepted");
}

TEST(Tensors, Offsets) {
  const auto second_at = [](uint64_t offset) {
    return verdict_on({{"a", {16}, 0, 0, {}}, {"b", {16}, 0, offset, {}}}, 1024);
  };
  EXPECT_EQ(second_at(64), "accepted");
  EXPECT_EQ(second_at(128), "accepted");  // a gap
  EXPECT_EQ(second_at(960), "accepted");  // ends with the file
  EXPECT_THAT(second_at(992), HasSubstr("'b' takes bytes"));
  EXPECT_THAT(second_at(1024), HasSubstr("truncated"));
  EXPECT_THAT(second_at(uint64_t{1} << 63), HasSubstr("'b' takes bytes 92233720368547"));
  EXPECT_THAT(second_at(0), HasSubstr("overlaps"));
  EXPECT_THAT(second_at(32), AllOf(HasSubstr("'a'"), HasSubstr("overlaps tensor 'b'")));
  for (const uint64_t off : {1, 31, 33, 63, 65})
    EXPECT_THAT(second_at(off), HasSubstr("wanted a multiple of the alignment, 32"));
  EXPECT_EQ(verdict_on({{"a", {16}, 0, 64, {}}, {"b", {16}, 0, 0, {}}}, 128), "accepted");  // in another order
  EXPECT_THAT(verdict_on({{"a", {16}, 0, 32, {}}, {"b", {16}, 0, 0, {}}}, 128), HasSubstr("overlaps"));
}

TEST(Tensors, TruncatedFileOnDisk) {
  TempDir dir;
  RawFile raw;
  for (int i = 0; i < 4; ++i)
    raw.tensors.push_back({fmt::format("blk.{}.w", i), {256, 16}, 0, uint64_t(i) * 16384, {}});
  raw.data_bytes = 4 * 16384;
  const Bytes whole = raw.build();
  const std::string path = dir / "cut.gguf";
  write_file(path, whole.span());
  ASSERT_TRUE(File::open(path));
  for (const size_t cut : {size_t{1}, size_t{4096}, whole.size() / 2}) {
    const size_t left = whole.size() - cut;
    write_file(path, whole.span().first(left));
    const auto file = File::open(path);
    ASSERT_FALSE(file);
    // The furthest byte wanted and the size there is.
    EXPECT_THAT(file.error().message,
                AllOf(HasSubstr("cut.gguf: tensor 'blk.3.w' takes bytes "),
                      HasSubstr(fmt::format("to {}, but the file has {} bytes", whole.size(), left))));
  }
}

TEST(Tensors, BytesBehindTheLast) {
  Bytes bytes = small_file().build();
  EXPECT_TRUE(File::parse(bytes.span(), "t"));
  bytes.fill(100, 0x5a);
  EXPECT_TRUE(File::parse(bytes.span(), "t"));
}

TEST(Tensors, NoTensors) {
  RawFile raw;
  EXPECT_EQ(verdict_on(raw), "accepted");
  raw.keys = {{"k", u32_value(1)}};
  EXPECT_EQ(verdict_on(raw), "accepted");
}

}  // namespace
}  // namespace argent::gguf
