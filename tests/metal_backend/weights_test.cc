// Weights taken from a mapped file: what lies ahead is asked for while pages are touched.
#include "backends/metal/weights.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "backends/metal/emu/device.h"
#include "base/mapped_file.h"

namespace argent::metal {
namespace {

constexpr size_t kTensorBytes = 1 << 20, kTensors = 48;

// A file of tensors that is not in memory, or is where the system does not let go of it (/tmp in memory).
class ColdFile {
 public:
  ColdFile() {
    char path[] = "/tmp/argent_weights_XXXXXX";
    const int fd = mkstemp(path);
    path_ = path;
    const std::vector<char> bytes(kTensorBytes, 'x');
    for (size_t i = 0; i < kTensors; ++i) EXPECT_EQ(write(fd, bytes.data(), bytes.size()), ssize_t(bytes.size()));
    fdatasync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
  ~ColdFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

bool in_memory(const uint8_t* data) {
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(data) / page * page;
  unsigned char there = 0;
  EXPECT_EQ(mincore(reinterpret_cast<void*>(at), 1, &there), 0);
  return there & 1;
}

TEST(Weights, AreReadAheadOfTheirFirstTouch) {
  const ColdFile cold;
  auto file = MappedFile::open(cold.path());
  ASSERT_TRUE(file) << file.error().message;
  Graph graph;
  for (size_t i = 0; i < kTensors; ++i) {
    Value v;
    v.kind = ValueKind::weight;
    v.n_rows = 256, v.width = kTensorBytes / 1024;
    v.data = file->bytes().data() + i * kTensorBytes;
    ASSERT_EQ(v.file_bytes(), kTensorBytes);
    graph.values.push_back(v);
  }
  const uint8_t* last = graph.values.back().data + kTensorBytes - 1;
  if (in_memory(last)) GTEST_SKIP() << "the system keeps files in memory";
  emu::EmuDevice device({.count = false});
  std::vector<uint64_t> done;
  bool there = false;
  const auto progress = [&](const Progress& p) {
    EXPECT_EQ(p.total, kTensors * kTensorBytes);
    // Of the first tensor alone has every page been touched: the last one's comes because somebody asked for it.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(done.empty() ? 10 : 0);
    while (!(there = in_memory(last)) && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(there) << done.size();
    done.push_back(p.done);
    return there;
  };
  Weights weights;
  const auto places = weights.load(device, device.info(), graph, progress);
  ASSERT_TRUE(places) << places.error().message;
  ASSERT_EQ(done.size(), kTensors);
  for (size_t i = 0; i < kTensors; ++i) {
    EXPECT_EQ(done[i], (i + 1) * kTensorBytes);
    EXPECT_EQ((*places)[i].offset, i * kTensorBytes);
    EXPECT_TRUE(in_memory(graph.values[i].data));
  }
  EXPECT_EQ(weights.copied_bytes(), 0);
}

}  // namespace
}  // namespace argent::metal
