// Runs one dispatch: threadgroup after threadgroup, SIMD-group after SIMD-group, every lane a fiber that runs until it
// meets the others. One machine a process: the running kernel calls it through hooks.h.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backends/metal/device.h"
#include "backends/metal/emu/fiber.h"
#include "backends/metal/emu/hooks.h"
#include "backends/metal/emu/memory.h"

namespace argent::emu {

// The order in which lanes, SIMD-groups and threadgroups take their turns. Shuffled: anew at every meeting.
enum class Order : uint8_t { ascending, descending, shuffled };

// What a dispatch did; equal for every order.
struct Work {
  uint64_t threads = 0;
  uint64_t simd_functions = 0;     // sums, shuffles ..., one for the 32 lanes together
  uint64_t barriers = 0;           // of threadgroups and SIMD-groups
  uint64_t matrix_multiplies = 0;  // 8x8x8
  uint64_t loaded[3] = {},
           stored[3] = {};  // bytes of device, constant, threadgroup memory; only in a build with checks
};

// One dispatch, ready to run.
struct Run {
  const Kernel* kernel = nullptr;
  Arguments arguments{};
  metal::Size grid, threads;
  uint32_t dispatch = 0;  // of its list
  uint32_t threadgroup_bytes[metal::kMaxThreadgroupArguments] = {};
};

class Machine {
 public:
  static Machine& get();

  // False when a fault ended it early. Findings are appended, one a fault and place.
  bool run(const Run& run, Order order, uint64_t seed, bool check, std::vector<Finding>& findings, Work& work);
  // True when the kernels are a build with checks, whose every load and store is seen.
  static bool instrumented;
  Memory memory;  // the caller sets its device ranges, and its lists
  bool loaded_module_has(const void* address);

  // hooks.h
  void meet(const Site& site, uint8_t state, uint32_t flags);
  void exchange(const Site& site, const void* in, size_t in_size, void* out, size_t out_size, Combine combine);
  bool matrix(const Site& site, bool multiply);
  void access(const void* address, size_t size, bool write, bool whole, bool atomic, const void* pc);
  // Of the running lane; after a fatal one the dispatch ends, since going on could end the process.
  void fault_here(Fault fault, std::string text, const void* pc, bool fatal = false);

 private:
  struct Lane {
    Fiber fiber;
    ThreadContext context;
    uint8_t state;
    Site site;
    uint32_t flags;
    const void* in;
    void* out;
    size_t in_size, out_size;
    Combine combine;
    uint64_t matrix_notes;  // a hash of the matrix operations that the lane came by
    Site matrix_site;       // the last of them
    uint32_t stamp[2];      // of its accesses in this interval, plain and atomic; 0: none yet
  };

  Machine();
  static void entry();
  void start_threadgroup(uint32_t group);
  bool run_threadgroup(uint32_t group, std::vector<uint32_t>& simdgroups, std::vector<uint32_t>& lanes);
  bool run_simdgroup(uint32_t simdgroup, const std::vector<uint32_t>& lanes);
  bool meets(Lane* lanes, uint32_t simdgroup);
  void order(std::vector<uint32_t>& of);
  uint32_t stamp(const Lane& lane, bool whole, bool atomic);
  void report(Fault fault, std::string where, std::string text, const void* pc);

  FiberStacks stacks_;
  std::vector<Lane> lanes_;
  std::vector<uint8_t> threadgroup_memory_;
  Region threadgroup_region_;
  Exchange exchange_;

  // of the running dispatch
  const Run* run_ = nullptr;
  Lane* current_ = nullptr;
  bool stopped_ = false, check_ = false;
  Order order_ = Order::ascending;
  std::mt19937_64 random_;
  std::vector<Finding>* findings_ = nullptr;
  size_t findings_before_ = 0;  // those of earlier dispatches
  std::vector<std::pair<Fault, const void*>> reported_;
  std::vector<std::pair<size_t, const void*>> unresolved_;  // findings whose place is still a code address
  Work* work_ = nullptr;
  uint32_t thread_count_ = 0, group_ = 0;
  uint32_t group_interval_[2] = {}, simd_interval_[32][2] = {};
  uint32_t whole_stamp_ = 0;
  std::vector<std::pair<uintptr_t, uintptr_t>> modules_;
};

}  // namespace argent::emu
