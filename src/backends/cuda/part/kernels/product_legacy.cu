// Products of the formats with a scale, or a scale and a min, for every 32 columns.
#include "backends/cuda/part/kernels/product_many.cuh"

namespace argent::cuda {

template void product_of<Format::q4_0>(Launch&, ProductArgs);
template void product_of<Format::q4_1>(Launch&, ProductArgs);
template void product_of<Format::q5_0>(Launch&, ProductArgs);
template void product_of<Format::q5_1>(Launch&, ProductArgs);
template void product_of<Format::q8_0>(Launch&, ProductArgs);

}  // namespace argent::cuda
