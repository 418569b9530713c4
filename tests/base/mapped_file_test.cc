#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

namespace argent {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/argent-mapped-XXXXXX";
    const int fd = ::mkstemp(name);
    ASSERT_GE(fd, 0);
    ::close(fd);
    path_ = name;
    for (size_t i = 0; i < kBytes; ++i) want_.push_back(uint8_t(i * 7 + i / 251));
    std::ofstream(path_, std::ios::binary).write(reinterpret_cast<const char*>(want_.data()), kBytes);
  }
  void TearDown() override { ::unlink(path_.c_str()); }

  static constexpr size_t kBytes = 5 * 65536 + 123;
  std::string path_;
  std::vector<uint8_t> want_;
};

TEST_F(MappedFileTest, ReaderCopiesWhatTheMappingHolds) {
  auto other = MappedFile::open(path_);
  auto file = MappedFile::open(path_);
  ASSERT_TRUE(file && other);
  const MappedFile moved = std::move(*file);
  const uint8_t* data = moved.bytes().data();
  for (const size_t at : {size_t(0), size_t(1), size_t(4096), kBytes - 1}) {
    const FileReader reader(data + at);
    for (const size_t begin : {size_t(0), size_t(5), kBytes - 7})
      for (const size_t size : {size_t(0), size_t(1), size_t(7), kBytes - begin}) {
        if (begin + size > kBytes) continue;
        std::vector<uint8_t> got(size + 1, 0xee);
        ASSERT_TRUE(reader.read(data + begin, size, got.data()));
        ASSERT_TRUE(std::equal(got.begin(), got.end() - 1, want_.begin() + begin)) << begin << " " << size;
        ASSERT_EQ(got[size], 0xee);
      }
  }
}

TEST_F(MappedFileTest, ReaderCopiesMemoryThatIsNoFile) {
  const auto file = MappedFile::open(path_);
  ASSERT_TRUE(file);
  std::vector<uint8_t> got(want_.size());
  ASSERT_TRUE(FileReader(want_.data()).read(want_.data(), want_.size(), got.data()));
  EXPECT_EQ(got, want_);
}

TEST_F(MappedFileTest, AFileThatIsCutShortIsAnError) {
  const auto file = MappedFile::open(path_);
  ASSERT_TRUE(file);
  const FileReader reader(file->bytes().data());
  ASSERT_EQ(::truncate(path_.c_str(), 1000), 0);
  std::vector<uint8_t> got(2000);
  EXPECT_TRUE(reader.read(file->bytes().data(), 1000, got.data()));
  const Status status = reader.read(file->bytes().data(), 1001, got.data());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::io);
  EXPECT_EQ(status.error().message, path_ + ": was cut short while it was read");
}

TEST_F(MappedFileTest, WhatIsLeftOfADroppedMappingIsStillThere) {
  auto file = MappedFile::open(path_);
  ASSERT_TRUE(file);
  file->drop_from(5000);
  ASSERT_LT(file->bytes().size(), kBytes);
  std::vector<uint8_t> got(5000);
  ASSERT_TRUE(FileReader(file->bytes().data()).read(file->bytes().data(), got.size(), got.data()));
  EXPECT_TRUE(std::equal(got.begin(), got.end(), want_.begin()));
}

TEST_F(MappedFileTest, KeepsNoFileOpen) {
  const auto open_files = [] { return std::distance(std::filesystem::directory_iterator("/dev/fd"), {}); };
  const auto before = open_files();
  for (int i = 0; i < 3; ++i) {
    auto file = MappedFile::open(path_);
    ASSERT_TRUE(file);
    EXPECT_EQ(open_files(), before + 1);
    if (i != 1) continue;
    file->drop_from(4096);
    EXPECT_EQ(open_files(), before);
  }
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace argent
