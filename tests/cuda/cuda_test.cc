// The CUDA part as the program opens it: what is tested where there is no GPU too. Without one the other suites of this
// program are left out, and one line says so.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "backends/cuda/part.h"

namespace argent::cuda {
namespace {

TEST(CudaPart, OpensAndFitsTheProgram) {
  const auto file = std::filesystem::read_symlink("/proc/self/exe").parent_path() / kPartFile;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_TRUE(library) << dlerror();
  const auto entry = reinterpret_cast<PartEntry*>(dlsym(library, kPartEntry));
  ASSERT_TRUE(entry) << dlerror();
  EXPECT_NE(kPartVersion, 0u);
  EXPECT_FALSE(entry(kPartVersion + 1));
  EXPECT_FALSE(entry(0));
  const Part* part = entry(kPartVersion);
  ASSERT_TRUE(part);
  EXPECT_TRUE(part->make_backend);
  EXPECT_TRUE(part->list_devices);
}

TEST(CudaPart, ListsDevicesOrSaysWhyNot) {
  const auto devices = list_cuda_devices();
  if (devices) {
    ASSERT_FALSE(devices->empty());
    for (size_t i = 0; i < devices->size(); ++i) {
      const DeviceListing& d = (*devices)[i];
      EXPECT_EQ(d.name, fmt::format("cuda:{}", i));
      EXPECT_NE(d.description.find("compute capability "), std::string::npos) << d.description;
      EXPECT_GT(d.memory_total, 0u);
      EXPECT_LE(d.memory_free, d.memory_total);
    }
    return;
  }
  EXPECT_EQ(devices.error().code, Code::unsupported);
  const std::string& why = devices.error().message;
  EXPECT_TRUE(why == "no NVIDIA driver" || why == "no NVIDIA device" || why.starts_with("the NVIDIA driver ")) << why;
}

TEST(CudaPart, RefusesADeviceThatIsNotThere) {
  BackendOptions options;
  options.index = 999;
  const auto refused = make_cuda_backend(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unsupported);
  const auto devices = list_cuda_devices();
  const std::string why = !devices               ? devices.error().message
                          : devices->size() == 1 ? "there is cuda:0 alone"
                                                 : fmt::format("there are cuda:0 to cuda:{}", devices->size() - 1);
  EXPECT_EQ(refused.error().message, "--device cuda:999: " + why);
}

TEST(CudaPart, KnowsWhichDevicesItsCodeRunsOn) {
  EXPECT_TRUE(runs_on("90a", 9, 0));
  EXPECT_FALSE(runs_on("90a", 8, 0));
  EXPECT_FALSE(runs_on("90a", 10, 0));
  EXPECT_FALSE(runs_on("", 9, 0));
  EXPECT_TRUE(runs_on("80", 8, 6));
  EXPECT_FALSE(runs_on("86", 8, 0));
  EXPECT_FALSE(runs_on("80", 9, 0));  // its PTX is not there
  EXPECT_TRUE(runs_on("90", 10, 0));
  for (const auto& [major, minor] : {std::pair(8, 0), {8, 6}, {8, 9}, {9, 0}, {10, 0}, {10, 3}, {12, 0}})
    EXPECT_TRUE(runs_on("80,89,90a,100", uint32_t(major), uint32_t(minor))) << major << '.' << minor;
  EXPECT_FALSE(runs_on("80,89,90a,100", 7, 5));
  EXPECT_FALSE(runs_on("80,90a", 12, 0));
}

}  // namespace
}  // namespace argent::cuda

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const auto devices = argent::list_cuda_devices(); !devices) {
    fmt::print("no CUDA device, {}: only the opening of the part is tested\n", devices.error().message);
    std::string filter = testing::GTEST_FLAG(filter);
    filter += filter.find('-') == std::string::npos ? "-" : ":";
    testing::GTEST_FLAG(filter) = filter + "CudaOps*:*/CudaOps*:CudaModels*";
  }
  return RUN_ALL_TESTS();
}
