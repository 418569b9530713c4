// Products of many rows of the K formats.
#include "backends/cuda/part/kernels/product_wide.cuh"

namespace argent::cuda {

template void product_wide<Format::q2_k>(Launch&, const ProductArgs&);
template void product_wide<Format::q3_k>(Launch&, const ProductArgs&);
template void product_wide<Format::q4_k>(Launch&, const ProductArgs&);
template void product_wide<Format::q5_k>(Launch&, const ProductArgs&);
template void product_wide<Format::q6_k>(Launch&, const ProductArgs&);

}  // namespace argent::cuda
