// The functions behind op_encoder().
#pragma once

#include "backends/cuda/part/encode.h"

namespace argent::cuda {

// encode_products.cc
void encode_embed(Encoder& e, const Node& node, size_t index);
void encode_matmul(Encoder& e, const Node& node, size_t index);
void encode_glu(Encoder& e, const Node& node, size_t index);
uint64_t glu_workspace(const Graph& graph, const Node& node, uint32_t n_rows);
void encode_qkv(Encoder& e, const Node& node, size_t index);
void encode_qkv_store(Encoder& e, const Node& node, size_t index);
uint64_t qkv_store_workspace(const Graph& graph, const Node& node, uint32_t n_rows);
void encode_kv_store(Encoder& e, const Node& node, size_t index);
void encode_attention(Encoder& e, const Node& node, size_t index);

// encode_sample.cc
void encode_adjust(Encoder& e, const Node& node, size_t index);
void encode_argmax(Encoder& e, const Node& node, size_t index);
void encode_top_k(Encoder& e, const Node& node, size_t index);
void encode_filter(Encoder& e, const Node& node, size_t index);
void encode_draw(Encoder& e, const Node& node, size_t index);
uint64_t sample_scratch(const Graph& graph, const Node& node, uint32_t n_rows);

// encode_rows.cc
void encode_norm(Encoder& e, const Node& node, size_t index);
void encode_add_norm_mul(Encoder& e, const Node& node, size_t index);
void encode_norm_mul_add(Encoder& e, const Node& node, size_t index);
void encode_norm_add_norm(Encoder& e, const Node& node, size_t index);
void encode_row_vector(Encoder& e, const Node& node, size_t index);
void encode_map(Encoder& e, const Node& node, size_t index);
void encode_zip(Encoder& e, const Node& node, size_t index);
void encode_rope_table(Encoder& e, const Node& node, size_t index);
void encode_rope(Encoder& e, const Node& node, size_t index);
void encode_gather_rows(Encoder& e, const Node& node, size_t index);

}  // namespace argent::cuda
