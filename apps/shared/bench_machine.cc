// Measured bandwidth and multiply-adds beside timed steps.
#include "apps/shared/bench_machine.h"

#include <chrono>
#include <utility>
#include <vector>

#include "diag/statistics.h"

namespace dsv4::apps {

BenchMachine Median(const std::vector<BenchMachine>& measured) {
  std::vector<double> reads;
  std::vector<double> multiply_adds;
  for (const BenchMachine& machine : measured) {
    reads.push_back(machine.read_bandwidth);
    multiply_adds.push_back(machine.multiply_adds);
  }
  return {.read_bandwidth = diag::Median(std::move(reads)),
          .multiply_adds = diag::Median(std::move(multiply_adds))};
}

Result<BenchMeter> BenchMeter::OfDevice(Memory& memory) {
  constexpr size_t kBytes = size_t{512} << 20;  // Much more than a cache.
  BenchMeter meter;
  meter.device_memory_ = &memory;
  DSV4_ASSIGN_OR_RETURN(meter.from_, memory.Allocate(kBytes));
  DSV4_ASSIGN_OR_RETURN(meter.to_, memory.Allocate(kBytes));
  return meter;
}

double BenchMeter::CopyBandwidth() const {
  using Clock = std::chrono::steady_clock;
  // Seconds of so many copies, the wait for them included; negative after an error, which the next run will
  // meet.
  const auto copy = [&](int count) {
    std::byte byte = {};
    const Clock::time_point begin = Clock::now();
    Status status;
    for (int i = 0; i < count && status.ok(); ++i)
      status = device_memory_->Copy(to_.data(), from_.data(), from_.num_bytes(), nullptr);
    if (status.ok()) status = device_memory_->CopyToHost(&byte, to_.data(), 1, nullptr);
    return status.ok() ? std::chrono::duration<double>(Clock::now() - begin).count() : -1.0;
  };
  constexpr int kCopies = 20;
  const double few = copy(1);
  const double many = copy(1 + kCopies);
  return few < 0 || many <= few ? 0 : 2.0 * kCopies * static_cast<double>(from_.num_bytes()) / (many - few);
}

BenchMachine BenchMeter::Measure() const {
  if (device_memory_ != nullptr) return {.read_bandwidth = CopyBandwidth(), .multiply_adds = 0};
  if (memory_ == nullptr) return {};
  return {.read_bandwidth = memory_->Bandwidth(*threads_),
          .multiply_adds = backend::cpu::MultiplyAddRate(*threads_, isa_)};
}

}  // namespace dsv4::apps
