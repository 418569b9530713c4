// How tests tell the fake of Metal what to be like, and what to fail at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "metal_apple/fake_objc.h"

namespace argent::fake {

struct Settings {
  bool no_device = false;
  bool old_family = false;         // the GPU is of no family that kernels can use
  bool discrete = false;           // its memory is not the processor's
  bool no_residency_sets = false;  // an older system
  uint64_t simd_width = 32;
  uint64_t max_threads = 1024;  // of every pipeline
  uint64_t static_threadgroup_bytes = 0;
  uint64_t working_set = uint64_t(1) << 34, max_buffer = uint64_t(1) << 33;
  bool alloc_fails = false, no_copy_fails = false;
  std::string compile_error, pipeline_error;
  int64_t command_error = 0;  // of the next list: MTLCommandBufferError; it does not run
  // What a command buffer takes of the GPU's time, how much longer each one takes than the one before, and how long
  // after that one's end it begins.
  double gpu_seconds = 0.25, gpu_longer = 0, gpu_gap = 0.125;
  bool hang = false;  // lists are never done
  int late = 0;       // that many questions after commit find a list unfinished
};
Settings& settings();

// What command buffers, encoders, buffers and descriptors of pipelines were sent since the last reset: "buffer 1",
// "bytes 0", "barrier", "threadgroup 0", "dispatch rms_norm", "push layer 1 norm_mul", "pop", "label of MTLBuffer:
// arena".
std::vector<std::string>& encoded();

// As a new process: no objects, no complaints, settings as at first.
void reset();

}  // namespace argent::fake
