// What the part says of machines that it cannot use.
#include <gtest/gtest.h>

#include "backends/cuda/part.h"
#include "cuda_host/fake_cudart.h"

extern "C" const argent::cuda::Part* argent_cuda_part(uint32_t version);

namespace argent::cuda {
namespace {

using fake_cuda::Setup;

struct Said {
  Setup setup;
  const char* made;    // by make_backend, of the device 0
  const char* listed;  // the error, or the description of the device
};

TEST(CudaEntry, SaysWhyADeviceCannotBeUsed) {
  const Part* part = argent_cuda_part(kPartVersion);
  ASSERT_TRUE(part);
  const Said all[] = {
      {{.driver = 0}, "no NVIDIA driver", "no NVIDIA driver"},
      {{.driver = 12020}, "the NVIDIA driver is for CUDA 12.2 at most, wanted ", "the NVIDIA driver is for CUDA 12.2"},
      {{.n_devices = 0}, "no NVIDIA device", "no NVIDIA device"},
      {{.major = 7, .minor = 5},
       "made up, compute capability 7.5: this build is for compute capabilities ",
       "made up, compute capability 7.5; not usable: this build is for "},
      {{.shared_memory = 99 * 1024},
       "made up, compute capability 9.0: 99 KiB of shared memory a block, the kernels need 227",
       "made up, compute capability 9.0; not usable: 99 KiB of shared memory a block, the kernels need 227"},
  };
  for (const Said& said : all) {
    fake_cuda::reset(said.setup);
    const auto made = part->make_backend({});
    ASSERT_FALSE(made) << said.made;
    EXPECT_EQ(made.error().code, Code::unsupported);
    EXPECT_TRUE(made.error().message.starts_with(said.made)) << made.error().message;
    const auto listed = part->list_devices();
    const std::string text = listed ? (*listed)[0].description : listed.error().message;
    EXPECT_TRUE(text.starts_with(said.listed)) << text;
    EXPECT_EQ(fake_cuda::state().things, 0u);
  }
  fake_cuda::reset({.n_devices = 2});
  BackendOptions options;
  options.index = 2;
  const auto made = part->make_backend(options);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().message, "there are cuda:0 to cuda:1");
}

}  // namespace
}  // namespace argent::cuda
