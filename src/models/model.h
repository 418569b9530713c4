// A model as its file describes it: sizes and the graph that computes it. An architecture is one file in this room.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"
#include "graph/kv_layout.h"

namespace argent {

struct Model {
  std::string arch;
  std::string name;  // general.name, for people
  uint32_t n_layer = 0, n_embd = 0, n_vocab = 0;
  uint32_t n_ctx_train = 0;  // positions that the model was trained for
  uint64_t n_params = 0;
  Graph graph;
  KvLayout kv;
};

// Reads a model of any architecture in the registry. Errors: a missing or misshapen key or tensor, by name, with what
// was seen and wanted; unsupported: an architecture (with the list of those known), or a key or tensor that would
// change the result and is not understood. The file must outlive the model.
Result<Model> build_model(const gguf::File& file);

// The architectures of this build, sorted.
std::vector<std::string_view> architectures();

}  // namespace argent
