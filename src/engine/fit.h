// How much of a model goes to a device of its own memory: a pure function of sizes.
#pragma once

#include <cstdint>
#include <vector>

namespace argent {

// Contexts below it are not worth having the whole model on the device: rather some layers go to the CPU.
inline constexpr uint32_t kFitContext = 4096;

// Sizes in bytes on the device, but for the host's own.
struct FitSizes {
  struct Context {
    uint32_t n_ctx = 0;              // positions of a sequence
    std::vector<uint64_t> kv_bytes;  // of the KV cache, by layer
  };
  std::vector<uint64_t> layer_bytes;        // weights, by layer
  uint64_t head_bytes = 0;                  // weights behind the layers
  uint64_t model_bytes = 0;                 // all weights: a matrix that is both embeddings and head counts once
  uint64_t workspace_bytes = 0;             // of a plan of the whole model; parts need no more
  uint64_t reserve_bytes = 0;               // to stay free, on either side
  uint64_t device_free = 0, host_free = 0;  // 0: unknown, and taken to be enough
  std::vector<Context> contexts;            // those that may be had, the longest first
};

struct Fit {
  bool whole = false;     // everything is on the device, embeddings too
  uint32_t n_layers = 0;  // the last ones, which are there with the head; 0 and not whole: all on the CPU
  uint32_t n_ctx = 0;
  bool operator==(const Fit&) const = default;
};

// The whole model with the longest context of at least kFitContext positions (or the longest there is, where that is
// less) that fits; else the most layers that fit with the head at the longest context, while caches and workspace of
// the others fit the host, whose weights may stay in the file; with shorter ones where that would be none.
Fit fit_layers(const FitSizes& sizes);

}  // namespace argent
