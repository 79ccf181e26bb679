// What the machine can do, measured in turn with the steps that `dsv4 bench` times: on a shared machine it is another from
// second to second.
#pragma once

#include <memory>
#include <vector>

#include "backend/cpu/machine_bounds.h"
#include "base/parallel.h"

namespace dsv4::apps {

// Zero: unknown. Percentages are then left out.
struct BenchMachine {
  double read_bandwidth = 0;  // Bytes a second.
  double multiply_adds = 0;   // A second.
};

// Medians of each.
BenchMachine Median(const std::vector<BenchMachine>& measured);

class BenchMeter {
 public:
  // Measures nothing: for backends that do not compute on the host.
  BenchMeter() = default;
  // `threads` outlives this object.
  BenchMeter(std::shared_ptr<const backend::cpu::ReadMemory> memory, ThreadPool& threads,
             backend::cpu::Isa isa)
      : memory_(std::move(memory)), threads_(&threads), isa_(isa) {}

  // About 20 ms.
  BenchMachine Measure() const;

 private:
  std::shared_ptr<const backend::cpu::ReadMemory> memory_;
  ThreadPool* threads_ = nullptr;
  backend::cpu::Isa isa_ = backend::cpu::Isa::kScalar;
};

}  // namespace dsv4::apps
