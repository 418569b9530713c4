// The functions behind op_encoder(), by room: encode_matmul.cc and its neighbours.
#pragma once

#include "backends/metal/encode.h"

namespace argent::metal {

void encode_embed(Encoder& e, const Node& node, size_t index);
void encode_matmul(Encoder& e, const Node& node, size_t index);

}  // namespace argent::metal
