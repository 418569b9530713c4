// The reference backend's own options, for tests; make_reference_backend(options) of backends/backend.h has the
// defaults.
#pragma once

#include "backends/backend.h"

namespace argent::reference {

struct Options {
  // Fills the KV cache once and the arena before each step with NaNs, so that a read of what nobody wrote shows.
#ifdef NDEBUG
  bool poison = false;
#else
  bool poison = true;
#endif
};

Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options, const Options& own);

}  // namespace argent::reference
