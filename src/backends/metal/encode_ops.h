// The functions behind op_encoder(), and the parts of ops that others are made of.
#pragma once

#include "backends/metal/encode.h"

namespace argent::metal {

// encode_matmul.cc
void encode_embed(Encoder& e, const Node& node, size_t index);
void encode_matmul(Encoder& e, const Node& node, size_t index);
// y [n_rows][rows of the weight] = x [n_rows][its columns] * weight^T
void product(Encoder& e, const Place& x, ValueId weight, const Place& y, uint32_t n_rows);

// encode_fused.cc
void encode_glu(Encoder& e, const Node& node, size_t index);
uint64_t glu_workspace(const Graph& graph, const Node& node, uint32_t n_rows, const Variants& variants);
void encode_qkv(Encoder& e, const Node& node, size_t index);
void encode_kv_store(Encoder& e, const Node& node, size_t index);
void encode_qkv_store(Encoder& e, const Node& node, size_t index);
uint64_t qkv_store_workspace(const Graph& graph, const Node& node, uint32_t n_rows, const Variants& variants);

// encode_attention.cc
// Which lists of StepBuffers the node reads.
size_t attention_lists(const Graph& graph, const Node& node, const Memory& memory);
void encode_attention(Encoder& e, const Node& node, size_t index);
uint64_t attention_workspace(const Graph& graph, const Node& node, uint32_t n_rows, const Variants& variants);

// encode_sample.cc
void encode_adjust(Encoder& e, const Node& node, size_t index);
void encode_argmax(Encoder& e, const Node& node, size_t index);
void encode_top_k(Encoder& e, const Node& node, size_t index);
void encode_filter(Encoder& e, const Node& node, size_t index);
uint64_t sample_workspace(const Graph& graph, const Node& node, uint32_t n_rows, const Variants& variants);
// Before the first node: tokens that are still in slots. After the last one: what was sampled, to the slots.
void resolve_tokens(Encoder& e);
void store_tokens(Encoder& e, ValueId sampled);

// encode_rows.cc
void encode_norm(Encoder& e, const Node& node, size_t index);
void encode_add_norm_mul(Encoder& e, const Node& node, size_t index);
void encode_norm_mul_add(Encoder& e, const Node& node, size_t index);
void encode_norm_add_norm(Encoder& e, const Node& node, size_t index);
void encode_row_vector(Encoder& e, const Node& node, size_t index);
void encode_elements(Encoder& e, const Node& node, size_t index);
void encode_rope_table(Encoder& e, const Node& node, size_t index);
void encode_rope(Encoder& e, const Node& node, size_t index);
void encode_gather_rows(Encoder& e, const Node& node, size_t index);
void encode_copy(Encoder& e, const Node& node, size_t index);
std::vector<std::byte> rope_constants(const Graph& graph, const Node& node);
// Heads of x normalised, in place; a vector added to every row, in place; heads rotated.
void norm_heads(Encoder& e, const Place& x, ValueId w, uint32_t n_elements, uint32_t d_head, float eps);
void add_vector(Encoder& e, const Place& x, ValueId vector, uint32_t n_elements);
void rotate(Encoder& e, const Attrs& a, uint32_t n_head, const Place& x, const Place& table, const Place& y,
            uint32_t rows);
// Heads of q and of k, in place.
void rotate_in_place(Encoder& e, const Attrs& a, const Place& q, const Place& k, const Place& table, uint32_t rows);
// y = act(gate) * up
void gate_up(Encoder& e, Activation act, const Place& gate, const Place& up, const Place& y, uint32_t n_elements);

}  // namespace argent::metal
