// Rows and words moved as they are: no arithmetic, so every bit pattern arrives.
//
// gather_rows  a thread a column of a row, columns being width / 4 where that is whole, else width. Grid {columns /
//              threads.x, n_ids / threads.y}, rounded up; threads {x, 256 / x}, x the power of two from columns on, at
//              most 64.
// copy_words   a thread four words, or one of the n % 4 last: n / 4 + n % 4 threads. Grid {that / 256, rounded up},
//              threads {256}.
//
// Buffers begin at multiples of 16 bytes; inputs and outputs lie apart. No threadgroup memory.
#include "backends/metal/kernels/args_elementwise.h"
#include "backends/metal/kernels/dialect.h"

using namespace metal;
using namespace argent;

template <class T>
inline void gather_column(device const T* x, device T* y, uint columns, uint column, uint from, uint to) {
  if (column < columns) {
    y[ulong(to) * columns + column] = x[ulong(from) * columns + column];
  }
}

// The host refuses ids that are not below args.rows; here such an id reads the last row, nothing outside of x.
kernel void gather_rows(constant GatherRowsArgs& args [[buffer(0)]],   //
                        device const uint* x [[buffer(1)]],            // [rows][width]
                        device const uint* ids [[buffer(2)]],          // [n_ids]
                        device uint* y [[buffer(3)]],                  // [n_ids][width]
                        uint3 position [[thread_position_in_grid]]) {  //
  if (position.y < args.n_ids) {
    const uint from = min(ids[position.y], args.rows - 1);
    if (args.width % 4 == 0) {
      gather_column(reinterpret_cast<device const uint4*>(x), reinterpret_cast<device uint4*>(y), args.width / 4,
                    position.x, from, position.y);
    } else {
      gather_column(x, y, args.width, position.x, from, position.y);
    }
  }
}

kernel void copy_words(constant CopyArgs& args [[buffer(0)]],  //
                       device const uint* x [[buffer(1)]],     // [n]
                       device uint* y [[buffer(2)]],           // [n]
                       uint i [[thread_position_in_grid]]) {
  const uint fours = args.n / 4;
  if (i < fours) {
    reinterpret_cast<device uint4*>(y)[i] = reinterpret_cast<device const uint4*>(x)[i];
  } else if (i < fours + args.n % 4) {
    y[3 * fours + i] = x[3 * fours + i];
  }
}
