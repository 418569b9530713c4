// Products of many rows of the older formats.
#include "backends/cuda/part/kernels/product_wide.cuh"

namespace argent::cuda {

template void product_wide<Format::q4_0>(Launch&, const ProductArgs&);
template void product_wide<Format::q4_1>(Launch&, const ProductArgs&);
template void product_wide<Format::q5_0>(Launch&, const ProductArgs&);
template void product_wide<Format::q5_1>(Launch&, const ProductArgs&);
template void product_wide<Format::q8_0>(Launch&, const ProductArgs&);

}  // namespace argent::cuda
