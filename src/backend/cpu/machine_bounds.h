// Measured bounds of the machine, in the same process as the ops: the figures' percentages refer to them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/cpu/isa.h"
#include "base/huge_pages.h"
#include "base/parallel.h"
#include "base/status.h"

namespace dsv4::backend::cpu {

// 512 MB, far more than the caches, to be read from; in huge pages where the system has them, as weights are.
class ReadMemory {
 public:
  // ResourceExhausted without memory.
  static Result<ReadMemory> Allocate();

  int64_t num_bytes() const { return static_cast<int64_t>(words_.size_bytes()); }
  // Bytes per second of one pass by all threads together.
  double Bandwidth(ThreadPool& threads) const;

 private:
  std::span<uint64_t> words_;
  std::shared_ptr<const HugePages> pages_;
};

// Multiply-adds per second of all threads together, from registers: bf16 tiles on the tier amx, bf16 dot
// products on the bf16 tier, fp32 otherwise. A few milliseconds.
double MultiplyAddRate(ThreadPool& threads, Isa isa);
// The best of several.
double MultiplyAddPeak(ThreadPool& threads, Isa isa);

}  // namespace dsv4::backend::cpu
