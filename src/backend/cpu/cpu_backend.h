// The CPU backend: every op in every stored format, at the speed of memory (decode) or of the vector units
// (prefill). The page docs/cpu-backend.md says how the kernels work.
//
// Numerics keep all rounding points of the contracts. Sums of GEMMs and attention are in fp32 (exact products
// for bf16 operands), all else in double as in the reference. A row's result depends neither on the other
// rows of the batch nor on the number of threads. It may differ between instruction-set tiers in the last
// bits of fp32 sums.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backend/cpu/isa.h"
#include "ops/op_table.h"

namespace dsv4::backend {

struct CpuOptions {
  int num_threads = 1;               // >= 1, counts the calling thread.
  std::optional<cpu::Isa> isa = {};  // Default: DSV4_CPU_ISA, else the best tier of this machine.
  std::vector<std::vector<int>> cpus_of_nodes = {};    // As ThreadPoolOptions.
  std::optional<std::chrono::microseconds> spin = {};  // The same, where DSV4_SPIN_US says nothing.
  // Is told which bytes of experts are multiplied next, in order, before they are touched; returns at once.
  // False: it has no use for that, since all are in memory. May be empty, as the ranges may, which asks just
  // that.
  std::function<bool(std::span<const std::span<const std::byte>>)> will_read = {};
};

// The name is "cpu" and the tier: "cpu (avx512bf16)". Threads spin for DSV4_SPIN_US before they sleep.
// Errors: as ChooseIsa; InvalidArgument when DSV4_SPIN_US is not a number of microseconds.
Result<ops::Backend> MakeCpuBackend(const CpuOptions& options);

// InvalidArgument for a value that DSV4_CPU_ISA or DSV4_SPIN_US has on no machine.
Status CheckCpuVariables();

}  // namespace dsv4::backend
