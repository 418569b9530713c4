// Weights re-laid for the CPU's matrix kernels: 16 rows interleaved, quants still packed. One panel is the 16 rows'
// columns in order; growth over the file is at most 3.6 % (6-bit scales become bytes).
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "quant/formats.h"

namespace argent::cpu {

inline constexpr uint32_t kPanelRows = 16;

struct PackedMatrix {
  Format format;
  uint32_t n_rows, n_cols;
  const uint8_t* data;  // packed_bytes(), 64-byte aligned
};

constexpr uint32_t n_panels(uint32_t n_rows) { return n_rows / kPanelRows + (n_rows % kPanelRows != 0); }

// Bytes of one panel of 16 rows of n_cols columns (a multiple of the format's block).
uint64_t panel_bytes(Format format, uint32_t n_cols);

inline uint64_t packed_bytes(Format format, uint32_t n_rows, uint32_t n_cols) {
  return n_panels(n_rows) * panel_bytes(format, n_cols);
}

struct PackKernels {
  // Packs panels [first_panel, first_panel + count) of the matrix whose rows lie at `rows` in the file's layout to
  // `out` (count * panel_bytes). Reads only rows < n_rows; missing rows of the last panel become zeros. Threads may
  // pack disjoint ranges at once.
  void (*pack)(Format format, const uint8_t* rows, uint32_t n_rows, uint32_t n_cols, uint32_t first_panel,
               uint32_t count, uint8_t* out);
  // Row `row` as n_cols floats, as decode_row gives it.
  void (*unpack_row)(const PackedMatrix& weights, uint32_t row, float* out);
};

// The kernels of a supported ISA.
const PackKernels& pack_kernels(Isa isa);

}  // namespace argent::cpu
