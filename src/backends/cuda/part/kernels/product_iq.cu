// Products of the formats whose quants are looked up.
#include "backends/cuda/part/kernels/product_many.cuh"

namespace argent::cuda {

template void product_of<Format::iq4_nl>(Launch&, ProductArgs);
template void product_of<Format::iq4_xs>(Launch&, ProductArgs);
template void product_of<Format::mxfp4>(Launch&, ProductArgs);

}  // namespace argent::cuda
