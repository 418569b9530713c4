// What the passes ask a device: has it a kernel for this node, and what scratch does the kernel want.
#pragma once

#include <string>

#include "graph/graph.h"

namespace argent {

struct Kernel {
  bool available = false;
  std::string reason;  // why not: "NONE: ..." names the op, its shapes and what the device has
};

class KernelTable {
 public:
  virtual ~KernelTable() = default;
  virtual std::string device_name() const = 0;
  virtual Kernel find(const Graph& graph, const Node& node) const = 0;
  // Does this device gain from the fused op? Only asked for ops that find() has a kernel for.
  virtual bool wants_fused(Op) const { return true; }
  // Scratch bytes of the node when it runs on up to n_rows rows.
  virtual uint64_t workspace(const Graph&, const Node&, uint32_t /*n_rows*/) const { return 0; }
};

}  // namespace argent
