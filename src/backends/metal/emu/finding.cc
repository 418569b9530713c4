#include "backends/metal/emu/finding.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>

namespace argent::emu {

namespace {

struct Module {
  std::string path;
  uintptr_t bias = 0;  // address in memory minus address in the file
};

Module module_of(uintptr_t pc) {
  struct Search {
    uintptr_t pc;
    Module found;
  } search{pc, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        for (int i = 0; i < info->dlpi_phnum; i++) {
          const auto& header = info->dlpi_phdr[i];
          const uintptr_t start = info->dlpi_addr + header.p_vaddr;
          if (header.p_type != PT_LOAD || search.pc < start || search.pc >= start + header.p_memsz) continue;
          search.found = {info->dlpi_name, info->dlpi_addr};
          return 1;
        }
        return 0;
      },
      &search);
  if (search.found.path.empty()) {  // the program itself
    std::array<char, 4096> path{};
    if (readlink("/proc/self/exe", path.data(), path.size() - 1) > 0) search.found.path = path.data();
  }
  return search.found;
}

// "dir/file:line (discriminator 3)" to "file:line".
std::string short_line(std::string line) {
  line.resize(line.find_first_of(" \n") == std::string::npos ? line.size() : line.find_first_of(" \n"));
  const size_t slash = line.rfind('/');
  return slash == std::string::npos ? line : line.substr(slash + 1);
}

// Kernels and what they include, not the shim around them.
bool names_kernel_text(const std::string& line) {
  return line.find(".metal:") != std::string::npos || line.find("/kernels/") != std::string::npos ||
         line.find("/quant/") != std::string::npos;
}

}  // namespace

std::string_view name_of(Fault fault) {
  switch (fault) {
    case Fault::out_of_bounds:
      return "out of bounds";
    case Fault::uninitialised:
      return "uninitialised";
    case Fault::write_to_const:
      return "write to const";
    case Fault::misaligned:
      return "misaligned";
    case Fault::race:
      return "race";
    case Fault::wrong_scope:
      return "wrong barrier scope";
    case Fault::race_of_threadgroups:
      return "race of threadgroups";
    case Fault::race_of_dispatches:
      return "race of dispatches";
    case Fault::divergence:
      return "divergence";
    case Fault::bad_index:
      return "bad index";
  }
  return "?";
}

std::string Finding::line() const {
  return fmt::format("{}: {}{}{}: {}", name_of(fault), kernel, where.empty() ? "" : " at ", where, text);
}

std::vector<std::string> source_lines(const std::vector<const void*>& pcs) {
  std::vector<std::string> lines(pcs.size());
  std::map<std::string, std::vector<std::pair<size_t, uintptr_t>>> by_module;
  for (size_t i = 0; i < pcs.size(); i++) {
    if (!pcs[i]) continue;
    const uintptr_t call = reinterpret_cast<uintptr_t>(pcs[i]) - 1;  // a return address: the call is before it
    const Module module = module_of(call);
    if (!module.path.empty()) by_module[module.path].push_back({i, call - module.bias});
  }
  for (const auto& [path, addresses] : by_module) {
    if (path.find('\'') != std::string::npos) continue;
    std::string command = fmt::format("addr2line -a -i -e '{}'", path);
    for (const auto& [i, address] : addresses) command += fmt::format(" {:#x}", address);
    FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
    if (!pipe) continue;
    std::array<char, 4096> buffer;
    size_t next = 0, current = SIZE_MAX;
    while (fgets(buffer.data(), int(buffer.size()), pipe)) {  // an address, then its chain of inlined frames
      const std::string line = buffer.data();
      if (line.starts_with("0x")) {
        current = next < addresses.size() ? addresses[next++].first : SIZE_MAX;
      } else if (current != SIZE_MAX && lines[current].empty() && names_kernel_text(line)) {
        lines[current] = short_line(line);
      }
    }
    pclose(pipe);
  }
  return lines;
}

}  // namespace argent::emu
