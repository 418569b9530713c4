// Rows of a table by their ids, as floats: embeddings of tokens. A thread decodes eight elements; the grid has a row of
// threads for each id. The host refuses ids that are not below args.rows; here such an id reads the last row, so that
// nothing outside the table is read.
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/weights.h"

using namespace metal;
using namespace argent;

template <class Reader>
inline void get_rows(constant GetRowsArgs& args, device const typename Reader::Block* w, device const uint* ids,
                     device float* y, uint i, uint t) {
  if (i < args.cols / 8) {
    float4 low;
    float4 high;
    eight_of_row<Reader>(w, min(ids[t], args.rows - 1), args.cols, i, low, high);
    device float4* to = reinterpret_cast<device float4*>(y + ulong(t) * args.y_stride + 8 * i);
    to[0] = low;
    to[1] = high;
  }
}

#define FORMAT(name, NAME, id, elements, bytes)                                                                        \
  kernel void get_rows_##name(constant GetRowsArgs& args [[buffer(0)]],                                                \
                              device const NAME##Reader::Block* w [[buffer(1)]], device const uint* ids [[buffer(2)]], \
                              device float* y [[buffer(3)]], uint3 position [[thread_position_in_grid]]) {             \
    get_rows<NAME##Reader>(args, w, ids, y, position.x, position.y);                                                   \
  }
#define KNOWN(NAME, id, elements, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
