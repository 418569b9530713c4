#include "backends/metal/emu/machine.h"

#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace argent::emu {

namespace {

enum State : uint8_t { ready, at_simd_function, at_simdgroup_barrier, at_threadgroup_barrier, done };

// Between and around threadgroup arguments: accesses that miss one are out of bounds of all.
constexpr size_t kGap = 256;
constexpr size_t kMaxFindings = 50;  // of a dispatch; the first ones tell

std::string place(const Site& site) {
  const char* slash = std::strrchr(site.file, '/');
  return fmt::format("{}:{}", slash ? slash + 1 : site.file, site.line);
}
bool same(const Site& a, const Site& b) {
  return a.line == b.line && std::strcmp(a.what, b.what) == 0 && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace

bool Machine::instrumented = false;

Machine& Machine::get() {
  static Machine machine;
  return machine;
}

Machine::Machine()
    : lanes_(metal::kMaxThreads),
      threadgroup_memory_(metal::kMaxThreadgroupBytes + (metal::kMaxThreadgroupArguments + 1) * kGap) {}

void Machine::entry() {
  Machine& machine = get();
  Lane* lane = machine.current_;
  machine.run_->kernel->run(machine.run_->arguments, lane->context);
  lane->state = done;
  lane->fiber.leave();
  __builtin_unreachable();
}

void Machine::order(std::vector<uint32_t>& of) {
  std::iota(of.begin(), of.end(), 0);
  if (order_ == Order::descending) std::reverse(of.begin(), of.end());
  if (order_ == Order::shuffled) std::shuffle(of.begin(), of.end(), random_);
}

bool Machine::run(const Run& run, Order order_of_turns, uint64_t seed, bool check, std::vector<Finding>& findings,
                  Work& work) {
  run_ = &run;
  order_ = order_of_turns;
  random_.seed(seed);
  check_ = check && instrumented;
  findings_ = &findings;
  findings_before_ = findings.size();
  work_ = &work;
  stopped_ = false;
  reported_.clear();
  unresolved_.clear();
  thread_count_ = uint32_t(run.threads.count());

  Run placed = run;
  uint8_t* next = threadgroup_memory_.data() + kGap;
  next += -reinterpret_cast<uintptr_t>(next) & 15;
  threadgroup_region_.base = threadgroup_memory_.data();
  threadgroup_region_.size = threadgroup_memory_.size();
  threadgroup_region_.known.assign(check_ ? threadgroup_memory_.size() : 0, 0);
  threadgroup_region_.shadow.resize(check_ ? 3 * threadgroup_memory_.size() : 0);
  for (uint32_t i = 0; i < metal::kMaxThreadgroupArguments; i++) {
    const uint32_t bytes = run.threadgroup_bytes[i];
    if (!bytes) continue;
    placed.arguments.shared[i] = next;
    memory.ranges.push_back({next, bytes, true, true, uint8_t(i), 2, &threadgroup_region_});
    next += bytes + kGap;
  }
  run_ = &placed;

  std::vector<uint32_t> groups(run.grid.count()), simdgroups(thread_count_ / metal::kSimdWidth),
      lanes(metal::kSimdWidth);
  order(groups);
  order(simdgroups);
  order(lanes);
  for (uint32_t group : groups) {
    if (!run_threadgroup(group, simdgroups, lanes)) break;
  }
  current_ = nullptr;
  run_ = nullptr;
  std::vector<const void*> pcs;
  for (const auto& [i, pc] : unresolved_) pcs.push_back(pc);
  if (!pcs.empty()) {
    const auto lines = source_lines(pcs);
    for (size_t i = 0; i < pcs.size(); i++) findings[unresolved_[i].first].where = lines[i];
  }
  return !stopped_;
}

void Machine::start_threadgroup(uint32_t group) {
  group_ = group;
  std::memset(group_interval_, 0, sizeof group_interval_);
  std::memset(simd_interval_, 0, sizeof simd_interval_);
  if (check_) {
    std::fill(threadgroup_region_.known.begin(), threadgroup_region_.known.end(), 0);
    // A pattern that is no sensible number in any format, so that what should not be read shows in results too.
    std::memset(threadgroup_memory_.data(), 0xfb, threadgroup_memory_.size());
  }
  const metal::Size &grid = run_->grid, &size = run_->threads;
  const uint32_t position[3] = {group % grid.x, group / grid.x % grid.y, group / grid.x / grid.y};
  const uint32_t groups[3] = {grid.x, grid.y, grid.z}, threads[3] = {size.x, size.y, size.z};
  for (uint32_t t = 0; t < thread_count_; t++) {
    Lane& lane = lanes_[t];
    ThreadContext& c = lane.context;
    const uint32_t local[3] = {t % size.x, t / size.x % size.y, t / size.x / size.y};
    for (int d = 0; d < 3; d++) {
      c.threadgroup_position_in_grid[d] = position[d];
      c.thread_position_in_threadgroup[d] = local[d];
      c.thread_position_in_grid[d] = position[d] * threads[d] + local[d];
      c.threads_per_threadgroup[d] = threads[d];
      c.threadgroups_per_grid[d] = groups[d];
    }
    c.thread_index_in_threadgroup = t;
    c.simdgroup_index_in_threadgroup = t / metal::kSimdWidth;
    c.thread_index_in_simdgroup = t % metal::kSimdWidth;
    c.simdgroups_per_threadgroup = thread_count_ / metal::kSimdWidth;
    lane.matrix_notes = 0;
    lane.matrix_site = {"", "", 0};
    lane.stamp[0] = lane.stamp[1] = 0;
    lane.state = ready;
    lane.fiber.prepare(stacks_.stack(t), entry);
  }
  work_->threads += thread_count_;
}

bool Machine::run_threadgroup(uint32_t group, std::vector<uint32_t>& simdgroups, std::vector<uint32_t>& lanes) {
  start_threadgroup(group);
  const uint32_t count = uint32_t(simdgroups.size());
  for (;;) {
    if (order_ == Order::shuffled) {
      order(simdgroups);
      order(lanes);
    }
    for (uint32_t simdgroup : simdgroups) {
      if (!run_simdgroup(simdgroup, lanes)) return false;
    }
    // Every SIMD-group is now as one: at a barrier of the threadgroup, or done.
    const Lane& first = lanes_[0];
    for (uint32_t s = 1; s < count; s++) {
      const Lane& other = lanes_[s * metal::kSimdWidth];
      if (other.state == first.state && (first.state == done || same(other.site, first.site))) continue;
      auto where = [](const Lane& l) {
        return l.state == done ? std::string("its end") : "the barrier of line " + std::to_string(l.site.line);
      };
      report(Fault::divergence, place(first.state == done ? other.site : first.site),
             fmt::format("SIMD-group 0 of threadgroup {} is at {}, SIMD-group {} at {}", group, where(first), s,
                         where(other)),
             nullptr);
      stopped_ = true;
      return false;
    }
    if (first.state == done) return true;
    work_->barriers++;
    if (first.flags & kMemThreadgroup) group_interval_[0]++;
    if (first.flags & kMemDevice) group_interval_[1]++;
    for (uint32_t t = 0; t < thread_count_; t++) {
      lanes_[t].state = ready;
      lanes_[t].stamp[0] = lanes_[t].stamp[1] = 0;
    }
  }
}

// Runs a SIMD-group until all its lanes are at a barrier of the threadgroup, or done.
bool Machine::run_simdgroup(uint32_t simdgroup, const std::vector<uint32_t>& lanes) {
  Lane* group = &lanes_[simdgroup * metal::kSimdWidth];
  for (;;) {
    for (uint32_t l : lanes) {
      if (group[l].state != ready) continue;
      current_ = &group[l];
      current_->fiber.enter();
      current_ = nullptr;
      if (stopped_) return false;
    }
    if (!meets(group, simdgroup)) {
      stopped_ = true;
      return false;
    }
    if (group[0].state == done || group[0].state == at_threadgroup_barrier) return true;
    if (group[0].state == at_simd_function) {
      work_->simd_functions++;
      for (int l = 0; l < kLanes; l++) std::memcpy(exchange_.in[l], group[l].in, group[l].in_size);
      group[0].combine(exchange_);
      for (int l = 0; l < kLanes; l++) std::memcpy(group[l].out, exchange_.out[l], group[l].out_size);
    } else {
      work_->barriers++;
      if (group[0].flags & kMemThreadgroup) simd_interval_[simdgroup][0]++;
      if (group[0].flags & kMemDevice) simd_interval_[simdgroup][1]++;
      for (int l = 0; l < kLanes; l++) group[l].stamp[0] = group[l].stamp[1] = 0;
    }
    for (int l = 0; l < kLanes; l++) group[l].state = ready;
  }
}

bool Machine::meets(Lane* lanes, uint32_t simdgroup) {
  const Lane& first = lanes[0];
  for (int l = 1; l < kLanes; l++) {
    const Lane& lane = lanes[l];
    if (lane.state == first.state && (first.state == done || same(lane.site, first.site))) {
      if (lane.matrix_notes == first.matrix_notes) continue;
      report(Fault::divergence, place(first.matrix_notes ? first.matrix_site : lane.matrix_site),
             fmt::format("lanes 0 and {} of SIMD-group {} of threadgroup {} came by different simdgroup_matrix "
                         "operations before this",
                         l, simdgroup, group_),
             nullptr);
      return false;
    }
    auto where = [](const Lane& l) {
      return l.state == done ? std::string("its end") : fmt::format("{} of line {}", l.site.what, l.site.line);
    };
    report(Fault::divergence, place(first.state == done ? lane.site : first.site),
           fmt::format("lane 0 of SIMD-group {} of threadgroup {} is at {}, lane {} at {}", simdgroup, group_,
                       where(first), l, where(lane)),
           nullptr);
    return false;
  }
  return true;
}

void Machine::report(Fault fault, std::string where, std::string text, const void* pc) {
  if (findings_->size() - findings_before_ >= kMaxFindings) return;
  if (pc) {
    const std::pair<Fault, const void*> key{fault, pc};
    if (std::find(reported_.begin(), reported_.end(), key) != reported_.end()) return;
    reported_.push_back(key);
    unresolved_.push_back({findings_->size(), pc});
  }
  findings_->push_back({fault, run_->kernel->name, std::move(where), std::move(text)});
}

void Machine::fault_here(Fault fault, std::string text, const void* pc, bool fatal) {
  if (!current_) return;
  report(fault, "", std::move(text), pc);
  if (!fatal) return;
  stopped_ = true;
  current_->state = done;
  current_->fiber.leave();
}

uint32_t Machine::stamp(const Lane& lane, bool whole, bool atomic) {
  const uint32_t s = lane.context.simdgroup_index_in_threadgroup;
  return memory.add_stamp({run_->dispatch,
                           group_,
                           uint16_t(s),
                           whole ? kWhole : uint16_t(lane.context.thread_index_in_threadgroup),
                           atomic,
                           {group_interval_[0], group_interval_[1]},
                           {simd_interval_[s][0], simd_interval_[s][1]}});
}

bool Machine::loaded_module_has(const void* address) {
  const auto a = reinterpret_cast<uintptr_t>(address);
  auto inside = [&](const auto& module) { return a >= module.first && a < module.second; };
  if (std::any_of(modules_.begin(), modules_.end(), inside)) return true;
  modules_.clear();
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        for (int i = 0; i < info->dlpi_phnum; i++) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type != PT_LOAD) continue;
          const uintptr_t start = info->dlpi_addr + header.p_vaddr;
          static_cast<std::vector<std::pair<uintptr_t, uintptr_t>>*>(data)->push_back({start, start + header.p_memsz});
        }
        return 0;
      },
      &modules_);
  return std::any_of(modules_.begin(), modules_.end(), inside);
}

void Machine::access(const void* pointer, size_t size, bool write, bool whole, bool atomic, const void* pc) {
  const auto* address = static_cast<const uint8_t*>(pointer);
  Lane* lane = current_;
  if (!lane || !instrumented) return;
  if (address >= lane->fiber.stack && address < lane->fiber.stack + FiberStacks::kSize) return;
  const Range* range = memory.find(address, size, write);
  if (range) {
    (write ? work_->stored : work_->loaded)[range->space] += size;
    if (!check_) return;
    auto number = [&] {
      uint32_t& kept = whole ? whole_stamp_ : lane->stamp[atomic];
      if (!kept || !memory.live(kept)) kept = stamp(*lane, whole, atomic);
      return kept;
    };
    memory.access(*range, address, size, write, number,
                  [&](Fault fault, std::string text) { report(fault, "", std::move(text), pc); });
    return;
  }
  // Tables of constants and function constants live in the program's own data.
  if (!write && !stacks_.contain(address) && loaded_module_has(address)) return;
  fault_here(Fault::out_of_bounds, memory.describe_outside(address, size, write), pc, true);
}

void Machine::meet(const Site& site, uint8_t state, uint32_t flags) {
  Lane& lane = *current_;
  lane.site = site;
  lane.state = state;
  lane.flags = flags;
  lane.fiber.leave();
}

void Machine::exchange(const Site& site, const void* in, size_t in_size, void* out, size_t out_size, Combine combine) {
  Lane& lane = *current_;
  lane.in = in;
  lane.in_size = in_size;
  lane.out = out;
  lane.out_size = out_size;
  lane.combine = combine;
  meet(site, at_simd_function, 0);
}

bool Machine::matrix(const Site& site, bool multiply) {
  Lane& lane = *current_;
  lane.matrix_notes = lane.matrix_notes * 1000003 + uint64_t(site.line) * 31 + uint64_t(site.what[10]);
  lane.matrix_site = site;
  if (lane.context.thread_index_in_simdgroup != 0) return false;
  whole_stamp_ = 0;
  work_->matrix_multiplies += multiply;
  return true;
}

// ---- hooks.h

void simd_function(const Site& site, const void* in, size_t in_size, void* out, size_t out_size, Combine combine) {
  Machine::get().exchange(site, in, in_size, out, out_size, combine);
}
void threadgroup_barrier(const Site& site, uint32_t flags) { Machine::get().meet(site, at_threadgroup_barrier, flags); }
void simdgroup_barrier(const Site& site, uint32_t flags) { Machine::get().meet(site, at_simdgroup_barrier, flags); }
bool matrix_operation(const Site& site, bool multiply) { return Machine::get().matrix(site, multiply); }
void matrix_access(const void* address, size_t size, bool write, const void* pc) {
  Machine::get().access(address, size, write, true, false, pc);
}
void atomic_access(const void* address, size_t size, bool write, const void* pc) {
  Machine::get().access(address, size, write, false, true, pc);
}

}  // namespace argent::emu
