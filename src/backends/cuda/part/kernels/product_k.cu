// Products of the K formats.
#include "backends/cuda/part/kernels/product_many.cuh"

namespace argent::cuda {

template void product_of<Format::q2_k>(Launch&, ProductArgs);
template void product_of<Format::q3_k>(Launch&, ProductArgs);
template void product_of<Format::q4_k>(Launch&, ProductArgs);
template void product_of<Format::q5_k>(Launch&, ProductArgs);
template void product_of<Format::q6_k>(Launch&, ProductArgs);

}  // namespace argent::cuda
