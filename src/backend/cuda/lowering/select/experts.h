// Which kernels multiply the chosen experts: routed_experts and expert_terms.
#pragma once

#include <span>

#include "backend/cuda/lowering/rule.h"
#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

struct ExpertsShape {
  bool alike = false;         // All experts are stored as these are.
  bool bulk_aligned = false;  // All lie where cp.async.bulk may begin.
  DeviceWeight w1;            // [width, dim]; w3 is like it.
  DeviceWeight w2;            // [dim, width]
  int64_t num_tokens = 0;
  int64_t top_k = 0;
  int64_t num_here = 0;     // Experts of this call,
  int64_t num_experts = 0;  // of so many.
  const void* x = nullptr;  // [num_tokens, dim], looked at for its alignment only.
  DType x_dtype = DType::kBF16;
  // Terms that expert_terms writes; null for routed_experts, which may sum at once.
  const void* terms = nullptr;
  bool exact_in_e4m3 = false;  // Finding of FindE4m3Experts; asked for where WantsE4m3.
  bool sums = false;           // routed_experts.

  int64_t num_assignments() const { return num_tokens * top_k; }
};

enum class ExpertsPath : uint8_t {
  kGroupedGemmFp8,
  kBlockScaled,
  kGemvJoint,
  kGemvExperts,
  kGroupedGemvRuns,
  kGroupedGemvStream,
  kGroupedGemmNarrow,
  kGroupedGemmWide,
  kGroupedGemmWgmma,
  kRoutedExperts,
};

std::span<const Rule<ExpertsPath, ExpertsShape>> ExpertsRules();
Plan<ExpertsPath> ChooseExperts(const ExpertsShape& shape, const DeviceLimits& device);

// Whether exact_in_e4m3 decides: finding it out waits for the device, once a layer.
bool WantsE4m3(const ExpertsShape& shape, const DeviceLimits& device);

// Assignments of one tile of grouped_gemv_runs, or of grouped_gemv_stream; 0: experts that the kernel does
// not take.
int RunTokensPerTile(const DeviceWeight& w1, const DeviceWeight& w2, const DeviceLimits& device);
int StreamTokensPerTile(const DeviceWeight& w1, const DeviceWeight& w2);

inline constexpr int64_t kMaxJointTopK = 32;
inline constexpr int64_t kMaxGroupedGemvTokens = 64;  // Tokens of a call.
inline constexpr int64_t kMaxGemvTokensOfExpert = 4;
inline constexpr int64_t kMinFp8TokensOfExpert = 128;  // Threshold of Fp8Products::kMany.

}  // namespace dsv4::backend::cuda
