// The null backend: plans and steps are checked as strictly as anywhere, nothing is computed, and samples follow a
// script. In plans that hand out logits, a row's scripted token has 1 and the others 0. KV blocks hold fingerprints of
// their tokens, and a step that would read those of another text is refused. Schedulers, KV policies and
// servers are tested on it, thousands of steps a second.
#pragma once

#include "backends/backend.h"

namespace argent::null {

// Since the backend was made.
struct Counters {
  uint64_t loads = 0, compiles = 0, runs = 0, copies = 0, saves = 0, restores = 0, measures = 0;
  uint64_t rows = 0, output_rows = 0;  // of all runs
};

// What the null backend "samples" for a row: a hash of seed (the slot where a step has no parameters), sample index and
// position, so that it depends neither on the batch nor on the schedule. In [0, n_vocab).
int32_t scripted_token(uint64_t seed, uint32_t sample_index, uint32_t position, uint32_t n_vocab);

class NullBackend : public Backend {
 public:
  virtual const Counters& counters() const = 0;
  // What allocate() may hold before it says out_of_memory; no limit at first.
  virtual void set_memory(uint64_t bytes) = 0;
  // Weights are mapped, and no longer resident; whether they count against that memory.
  virtual void set_mapped(bool count) = 0;
  // Its memory is not the host's: models that do not fit are shared with the CPU.
  virtual void set_own_memory() = 0;
  virtual void set_runs_ahead() = 0;  // from now on its caps say that it does
};

std::unique_ptr<NullBackend> make_backend(const BackendOptions& options);

}  // namespace argent::null
