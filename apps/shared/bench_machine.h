// Measured bounds of the machine, in turn with the steps that `dsv4 bench` times: on a shared machine it is
// another from second to second.
#pragma once

#include <memory>
#include <vector>

#include "backend/cpu/machine_bounds.h"
#include "base/parallel.h"
#include "tensor/tensor.h"

namespace dsv4::apps {

// Zero: unknown. Percentages are then left out.
struct BenchMachine {
  double read_bandwidth = 0;  // Bytes a second. On a device what a copy within its memory reads and writes.
  double multiply_adds = 0;   // A second.
};

// Medians of each.
BenchMachine Median(const std::vector<BenchMachine>& measured);

class BenchMeter {
 public:
  // Measures nothing.
  BenchMeter() = default;
  // Meter of a device: how fast it copies within its memory, which outlives this object. ResourceExhausted
  // without room for what is copied.
  static Result<BenchMeter> OfDevice(Memory& memory);
  // Bytes that it takes of a device.
  int64_t device_bytes() const { return static_cast<int64_t>(from_.num_bytes() + to_.num_bytes()); }
  // `threads` outlives this object.
  BenchMeter(std::shared_ptr<const backend::cpu::ReadMemory> memory, ThreadPool& threads,
             backend::cpu::Isa isa)
      : memory_(std::move(memory)), threads_(&threads), isa_(isa) {}

  // About 20 ms.
  BenchMachine Measure() const;

 private:
  double CopyBandwidth() const;

  std::shared_ptr<const backend::cpu::ReadMemory> memory_;
  Memory* device_memory_ = nullptr;
  Buffer from_;  // On the device,
  Buffer to_;    // as large.
  ThreadPool* threads_ = nullptr;
  backend::cpu::Isa isa_ = backend::cpu::Isa::kScalar;
};

}  // namespace dsv4::apps
