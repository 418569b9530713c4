// argent_bench_kernels: the speed of each CPU kernel beside what the machine can do, measured in the same run.
//
//   argent_bench_kernels                          a subset, in less than a minute
//   argent_bench_kernels --filter 'q4_k/.*/n1$'   of all cases, those whose name matches
//   argent_bench_kernels --all --isa all --json   everything, a JSON object a line
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>

#include "base/cpu_features.h"
#include "base/json.h"
#include "kernels/bench.h"

namespace argent::bench {
namespace {

// A new family: its file, its declaration in bench.h, its name here.
constexpr void (*kFamilies[])(Bench&) = {matmul, attention, vector, sample, pool};

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  return "";
}

void print(const Json& json) {
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  Options options;
  std::string isa_name = "best", filter;
  uint32_t threads = 0;
  CLI::App app("Speed of the CPU's kernels beside the machine's peaks");
  app.add_flag("--all", options.all, "every case; without it a subset that takes less than a minute");
  app.add_option("--filter", filter, "the cases whose name this regular expression finds, of all");
  app.add_flag("--list", options.list, "print the names instead of measuring");
  app.add_option("--isa", isa_name, "best, all that this machine runs, or a name, as argent's --isa")
      ->check([](const std::string& name) {
        return name == "best" || name == "all" || cpu::isa_named(name) ? "" : name + ": no such instruction set";
      })
      ->capture_default_str();
  app.add_option("-t,--threads", threads, "threads (default: what affinity and cgroup leave)")
      ->check(CLI::Range(1u, 1024u));
  app.add_option("--seconds", options.seconds, "for each case")->check(CLI::Range(0.0, 100.0))->capture_default_str();
  app.add_flag("--processor-time", options.processor_time,
               "one thread and its own time, where others use the machine too");
  app.add_flag("--json", options.json,
               "JSON lines: the machine and its peaks, first and every few seconds, and each case");
  CLI11_PARSE(app, argc, argv);
  if (filter.size() > 1000) return fmt::print(stderr, "--filter: longer than 1000 characters\n"), 2;
  if (threads > usable_threads()) {
    fmt::print(stderr, "{} threads were asked for, {} can run at once here\n", threads, usable_threads());
    threads = usable_threads();
  }
  if (!filter.empty()) try {
      options.filter = std::regex(filter);
    } catch (const std::regex_error&) {
      return fmt::print(stderr, "--filter {}: no regular expression\n", filter), 2;
    }

  ThreadPool pool({options.processor_time ? 1 : threads, false});
  uint32_t n_wanted = 0, n_failed = 0;
  for (const cpu::Isa isa : cpu::kIsas) {
    const std::string name = cpu::isa_name(isa);
    if (isa_name != "all" && (isa_name == "best" ? isa != cpu::best_isa() : isa_name != name)) continue;
    if (!cpu::isa_supported(isa)) {
      if (isa_name == "all") continue;
      return fmt::print(stderr, "--isa {}: this machine does not run it\n", isa_name), 3;
    }
    Bench bench(options, pool, isa, std::string(name));
    for (const auto family : kFamilies) family(bench);
    n_wanted += bench.n_wanted();
    n_failed += bench.n_failed();
  }
  if (n_failed) return fmt::print(stderr, "{} of {} cases failed\n", n_failed, n_wanted), 1;
  if (!n_wanted) return fmt::print(stderr, "--filter {}: no case has such a name; --list prints them\n", filter), 2;
  return 0;
}

}  // namespace

double Bench::now() const {
  timespec t;
  clock_gettime(options_.processor_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

double Bench::time(double budget, const std::function<void()>& body) const {
  body();
  double best = 1e30;
  const double start = now();
  do {
    const double begin = now();
    body();
    best = std::min(best, now() - begin);
  } while (now() - start < budget);
  return best;
}

HugePages Bench::memory(uint64_t bytes) const {
  auto memory = HugePages::allocate(bytes);
  if (!memory) fmt::print(stderr, "{}\n", memory.error().message), std::exit(6);
  return *std::move(memory);
}

void Bench::measure_peaks() {
  using Clock = std::chrono::steady_clock;
  constexpr auto kInterval = std::chrono::seconds(5);
  if (measured_ && Clock::now() - *measured_ < kInterval) return;
  const bool first = !measured_;
  peaks_ = cpu::measure_peaks(pool_, isa_);
  measured_ = Clock::now();
  if (options_.json) {
    print({{"cpu", cpu_name()},
           {"isa", isa_name_},
           {"threads", pool_.n_threads()},
           {"read_bytes_per_second", peaks_.read_bytes},
           {"int8_ops_per_second", peaks_.int8_ops},
           {"f32_ops_per_second", peaks_.f32_ops},
           {"best_isa", cpu::isa_name(cpu::best_isa())},
           {"avx512bf16", cpu_features().avx512bf16},
           {"avx_vnni", cpu_features().avx_vnni}});
    return;
  }
  fmt::print("{} threads, {}: read {:.1f} GB/s, int8 {:.0f} GOP/s, f32 {:.0f} GOP/s\n", pool_.n_threads(), isa_name_,
             peaks_.read_bytes * 1e-9, peaks_.int8_ops * 1e-9, peaks_.f32_ops * 1e-9);
  if (first) fmt::print("{:<52} {:>11} {:>8} {:>7} {:>9} {:>12}\n", "", "us", "GB/s", "% read", "GOP/s", "% of peak");
}

bool Bench::wants(const std::string& name, bool usual) {
  if (options_.filter ? !std::regex_search(name, *options_.filter) : !usual && !options_.all) return false;
  ++n_wanted_;
  if (options_.list)
    fmt::print("{}\n", name);
  else
    measure_peaks();
  return !options_.list;
}

void Bench::report(const std::string& name, double seconds, const Work& work) {
  const double read = work.from_memory && peaks_.read_bytes > 0 ? work.bytes / seconds / peaks_.read_bytes : 0;
  const double peak = work.peak == Work::Peak::int8  ? peaks_.int8_ops
                      : work.peak == Work::Peak::f32 ? peaks_.f32_ops
                                                     : 0;
  const std::string_view peak_name = work.peak == Work::Peak::int8 ? "int8" : "f32";
  const double ops = peak > 0 ? work.ops / seconds / peak : 0;
  if (options_.json) {
    Json row = {{"name", name}, {"isa", isa_name_}, {"threads", pool_.n_threads()}, {"seconds", seconds}};
    if (work.bytes > 0) row["bytes"] = work.bytes, row["bytes_per_second"] = work.bytes / seconds;
    if (work.ops > 0) row["ops"] = work.ops, row["ops_per_second"] = work.ops / seconds;
    if (read > 0) row["read_share"] = read;
    if (ops > 0) row["ops_share"] = ops, row["peak"] = peak_name;
    return print(row);
  }
  const auto figure = [](double x, int digits) { return x > 0 ? fmt::format("{:.{}f}", x, digits) : std::string("-"); };
  fmt::print("{:<52} {:>11.3f} {:>8} {:>7} {:>9} {:>7} {:<4}\n", name, seconds * 1e6,
             figure(work.bytes / seconds * 1e-9, 2), figure(100 * read, 0), figure(work.ops / seconds * 1e-9, 1),
             figure(100 * ops, 0), ops > 0 ? peak_name : "");
  std::fflush(stdout);
}

void Bench::failed(const std::string& name, const Error& error) {
  ++n_failed_;
  fmt::print(stderr, "{}: {}\n", name, error.message);
}

}  // namespace argent::bench

int main(int argc, char** argv) { return argent::bench::run(argc, argv); }
