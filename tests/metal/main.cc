// gtest, and two options of its own for tools/metal/mutate.py:
//   --kernels=FILE   a shared object with more kernels
//   --variant=N      kernels of this variant in place of the ones linked, where there are such
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <charconv>
#include <cstdio>
#include <string_view>

#include "metal/options.h"

namespace argent::metal {
TestOptions& test_options() {
  static TestOptions options;
  return options;
}
}  // namespace argent::metal

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; i++) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--kernels=")) {
      if (!dlopen(argv[i] + 10, RTLD_NOW | RTLD_LOCAL)) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 2;
      }
    } else if (argument.starts_with("--variant=")) {
      auto& variant = argent::metal::test_options().variant;
      const char* end = argument.data() + argument.size();
      if (std::from_chars(argument.data() + 10, end, variant).ptr != end || argument.size() == 10) {
        std::fprintf(stderr, "%s is no number of a variant\n", argv[i]);
        return 2;
      }
    } else {
      std::fprintf(stderr, "unknown argument %s\n", argv[i]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
