#include "backends/cpu/isa.h"

#include <initializer_list>
#include <utility>

#include "base/cpu_features.h"

namespace argent::cpu {
namespace {

constexpr std::pair<const char*, Isa> kNames[] = {{"baseline", Isa::baseline}, {"avx2", Isa::avx2},
                                                  {"avxvnni", Isa::avxvnni},   {"avx512", Isa::avx512},
                                                  {"neon", Isa::neon},         {"i8mm", Isa::i8mm}};

}  // namespace

const char* isa_name(Isa isa) { return kNames[size_t(isa)].first; }

std::optional<Isa> isa_named(std::string_view name) {
  for (const auto& [known, isa] : kNames)
    if (known == name) return isa;
  return std::nullopt;
}

bool isa_supported(Isa isa) {
  const CpuFeatures& f = cpu_features();
  const bool avx2 = f.avx2 && f.fma && f.f16c;
  switch (isa) {
    case Isa::baseline:
      return true;
    case Isa::avx2:
      return avx2;
    case Isa::avxvnni:
      return avx2 && f.avx_vnni;
    case Isa::avx512:
      return avx2 && f.avx512f && f.avx512bw && f.avx512vl && f.avx512dq && f.avx512vnni && f.avx512vbmi;
    case Isa::neon:
      return f.dotprod;
    case Isa::i8mm:
      return f.dotprod && f.i8mm;
  }
  return false;
}

Isa best_isa() {
  for (const Isa isa : {Isa::avx512, Isa::avxvnni, Isa::avx2, Isa::i8mm, Isa::neon})
    if (isa_supported(isa)) return isa;
  return Isa::baseline;
}

}  // namespace argent::cpu
