// Products of many rows of the formats of levels.
#include "backends/cuda/part/kernels/product_wide.cuh"

namespace argent::cuda {

template void product_wide<Format::iq4_nl>(Launch&, const ProductArgs&);
template void product_wide<Format::iq4_xs>(Launch&, const ProductArgs&);
template void product_wide<Format::mxfp4>(Launch&, const ProductArgs&);

}  // namespace argent::cuda
