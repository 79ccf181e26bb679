// A table of rules chooses a kernel: the first rule that fits the shape. The same table is printed by `dsv4
// bench --explain` and as docs/cuda/kernels.md, and its thresholds are pinned by lowering/select_test.cc,
// which needs no GPU.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/lowering/device_limits.h"

namespace dsv4::backend::cuda {

// The kernels for sizes of the release, and the ones for all others. A release-sized op that ends there is
// worth a line in the log.
enum class RuleKind : uint8_t { kFast, kAny };

template <typename Kernel, typename Shape>
struct Rule {
  Kernel kernel;
  const char* file;  // File of the kernel, below kernels/, without its suffix.
  const char* when;  // For people.
  bool (*fits)(const Shape&, const DeviceLimits&);
  RuleKind kind = RuleKind::kFast;
};

template <typename Shape>
bool FitsAll(const Shape&, const DeviceLimits&) {
  return true;
}

inline constexpr int64_t CeilOf(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A kernel, and why. `reason` and `file` live as long as the program.
template <typename Kernel>
struct Plan {
  Kernel kernel;
  const char* file;
  const char* reason;
  RuleKind kind;
  double microseconds = 0.0;  // By estimate (lowering/estimate.h), where that chooses.
};

// The first rule that fits; the last one takes everything.
template <typename Kernel, typename Shape>
Plan<Kernel> FirstFit(std::span<const Rule<Kernel, Shape>> rules, const Shape& shape,
                      const DeviceLimits& device) {
  size_t i = 0;
  while (i + 1 < rules.size() && !rules[i].fits(shape, device)) ++i;
  return {rules[i].kernel, rules[i].file, rules[i].when, rules[i].kind};
}

inline bool IsAligned(const void* data, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

}  // namespace dsv4::backend::cuda
