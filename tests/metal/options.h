// Options of the test programs, read by main.cc.
#pragma once

namespace argent::metal {

struct TestOptions {
  int variant = 0;  // of the kernels: a mutant of tools/metal/mutate.py
};
TestOptions& test_options();

}  // namespace argent::metal
