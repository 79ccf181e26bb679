// What every op of a backend may use: memory, threads and a queue. Backends derive from it to add handles and
// scratch.
#pragma once

#include "base/parallel.h"
#include "tensor/tensor.h"

namespace dsv4::ops {

class OpContext {
 public:
  virtual ~OpContext() = default;
  virtual Memory& memory() = 0;
  // Host threads for the ops of a CPU backend. One op runs at a time per context.
  virtual ThreadPool& threads() = 0;
  // Null on the host: ops are then done when they return.
  virtual Stream stream() = 0;
};

}  // namespace dsv4::ops
