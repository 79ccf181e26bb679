// Common parts of every op: a context, and a list of its operands. The context has memory, threads and a
// queue; backends derive from it to add handles and scratch.
#pragma once

#include <tuple>

#include "tensor/tensor.h"

namespace dsv4 {
class ThreadPool;  // base/parallel.h
}

namespace dsv4::ops {

class StepReplayer;  // ops/step_replay.h

class OpContext {
 public:
  virtual ~OpContext() = default;
  virtual Memory& memory() = 0;
  // Host threads for the ops of a CPU backend. One op runs at a time per context.
  virtual ThreadPool& threads() = 0;
  // Null on the host: ops are then done when they return.
  virtual Stream stream() = 0;
  // Null where steps are walked: the backend cannot replay them, or an op is watched.
  virtual StepReplayer* replayer() { return nullptr; }
};

// In every Args: its members that lie in memory (tensors, weights, experts, rows of caches), those that tell
// calls apart first. What is kept of a call, what it costs, and where its operands are is read from this
// list.
#define DSV4_OPERANDS(...)                          \
  auto Operands() { return std::tie(__VA_ARGS__); } \
  auto Operands() const { return std::tie(__VA_ARGS__); }

// Calls visit(operand) for each of them.
template <typename Args, typename Visit>
void VisitOperands(Args& args, [[maybe_unused]] Visit&& visit) {
  std::apply([&](auto&... operands) { (visit(operands), ...); }, args.Operands());
}

}  // namespace dsv4::ops
