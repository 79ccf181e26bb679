// Rules that choose the kernel of routed_experts and expert_terms, by tokens, format and estimated time.
#include "backend/cuda/lowering/select/experts.h"

#include <algorithm>
#include <array>

#include "backend/cuda/device/sync/grid_barrier.h"
#include "backend/cuda/lowering/gemv_shape.h"
#include "backend/cuda/lowering/select/estimate.h"
#include "backend/cuda/lowering/select/linear.h"

namespace dsv4::backend::cuda {
namespace {

// Conditions of every kernel for packed tokens. These are one format, rows that can be packed, terms that can
// be written several at once, and no more assignments than its numbers hold.
bool CanGroupAndPack(const ExpertsShape& s) {
  return s.alike && s.x_dtype == DType::kBF16 && s.num_assignments() < int64_t{1} << 24 &&
         IsAligned(s.terms, 16) && CanPack(s.x, s.w1.cols, s.w1.cols);
}

// grouped_gemm_fp8: MXFP4 whose activations are rounded to FP8, rows for a cluster of two blocks of 64.
bool FitsFp8(const DeviceWeight& w) {
  return w.kind == MatmulKind::kMmaMxFp4Stored && w.x_group == kActivationBlock && w.rows % 128 == 0 &&
         w.cols % 128 == 0 && w.scale_cols == w.cols / kMxFp4Block && IsAligned(w.data, 16) &&
         IsAligned(w.scale, 4);
}

// grouped_gemm_wide and _narrow: FP4, rows for a cluster of two blocks of 128 or for a block of 256.
bool FitsWide(const DeviceWeight& w) {
  const bool nvfp4 = w.kind == MatmulKind::kMmaNvFp4;
  return IsFp4(w.kind) && w.rows % 256 == 0 && w.cols % 128 == 0 &&
         w.scale_cols == w.cols / (nvfp4 ? kNvFp4Block : kMxFp4Block) && IsAligned(w.data, 16) &&
         IsAligned(w.scale, nvfp4 ? 2 : 1);
}

bool AreFp4(const ExpertsShape& s) {
  return IsFp4(StreamKindOf(s.w1)) && StreamKindOf(s.w2) == StreamKindOf(s.w1);
}

bool CanStreamBoth(const ExpertsShape& s) {
  return s.alike && CanStreamWeight(s.w1, s.w1.rows) && CanStreamWeight(s.w2, s.w2.rows);
}

bool FitsGroupedGemmFp8(const ExpertsShape& s, const DeviceLimits& d) {
  return WantsE4m3(s, d) && s.exact_in_e4m3;
}

bool FitsBlockScaled(const ExpertsShape& s, const DeviceLimits& d) {
  return s.alike && HasBlockScaled(d.block_scaled, s.w1) && HasBlockScaled(d.block_scaled, s.w2);
}

bool FitsGemvExperts(const ExpertsShape& s, const DeviceLimits& d) {
  return s.sums && CanStreamBoth(s) && s.num_tokens <= kMaxGemvTokens &&
         CanStreamRows(s.x_dtype, s.x, s.w1.cols, s.w1.cols, 1, d.shared_bytes) &&
         CanStreamRows(s.x_dtype, s.x, s.w2.cols, s.w2.cols, s.top_k, d.shared_bytes);
}

bool FitsGemvJoint(const ExpertsShape& s, const DeviceLimits& d) {
  return d.has_tma() && FitsGemvExperts(s, d) && AreFp4(s) && s.num_tokens <= kNumGridBarriers &&
         s.top_k <= kMaxJointTopK && s.bulk_aligned;
}

bool FitsStream(const ExpertsShape& s, const DeviceLimits& d) {
  return s.num_tokens <= kMaxGroupedGemvTokens && CanStreamBoth(s) &&
         s.num_assignments() <= kMaxGemvTokensOfExpert * s.num_experts &&
         CanStreamRows(s.x_dtype, s.x, s.w1.cols, s.w1.cols, 1, d.shared_bytes) &&
         CanStreamRows(s.x_dtype, s.x, s.w2.cols, s.w2.cols, 1, d.shared_bytes);
}

bool CanGroupWide(const ExpertsShape& s, const DeviceLimits& d) {
  const bool many =
      s.num_tokens >= kMinWgmmaTokens || s.num_assignments() > kMaxGemvTokensOfExpert * s.num_experts;
  return d.has_wgmma() && many && FitsWide(s.w1) && FitsWide(s.w2) && CanGroupAndPack(s);
}

// The least of the estimates of those that fit.
bool TakesLeast(ExpertsPath path, const ExpertsShape& s, const DeviceLimits& d) {
  const double own = ExpertsMicroseconds(path, s, d);
  return own <= ExpertsMicroseconds(ExpertsPath::kGroupedGemmNarrow, s, d) &&
         own <= ExpertsMicroseconds(ExpertsPath::kGroupedGemmWide, s, d);
}

// Without the other two, as many tokens an expert as one tile has.
bool FitsRuns(const ExpertsShape& s, const DeviceLimits& d) {
  if (RunTokensPerTile(s.w1, s.w2, d) == 0 || !CanStreamBoth(s) ||
      !CanStreamRows(s.x_dtype, s.x, s.w1.cols, s.w1.cols, 1, d.shared_bytes) ||
      !CanStreamRows(s.x_dtype, s.x, s.w2.cols, s.w2.cols, 1, d.shared_bytes)) {
    return false;
  }
  return CanGroupWide(s, d) ? TakesLeast(ExpertsPath::kGroupedGemvRuns, s, d)
                            : s.num_assignments() <= kMaxGemvTokensOfExpert * s.num_experts;
}

bool FitsGroupedNarrow(const ExpertsShape& s, const DeviceLimits& d) {
  return CanGroupWide(s, d) && TakesLeast(ExpertsPath::kGroupedGemmNarrow, s, d);
}

bool FitsGroupedWide(const ExpertsShape& s, const DeviceLimits& d) { return CanGroupWide(s, d); }

bool FitsGroupedWgmma(const ExpertsShape& s, const DeviceLimits& d) {
  return d.has_wgmma() && s.num_tokens >= kMinWgmmaTokens && FitsWgmma(s.w1) && FitsWgmma(s.w2) &&
         s.w1.rows % 64 == 0 && s.w2.rows % 2 == 0 && CanGroupAndPack(s);
}

constexpr std::array<Rule<ExpertsPath, ExpertsShape>, 10> kExpertsRules = {{
    {ExpertsPath::kGroupedGemmFp8, "moe/grouped_gemm_fp8",
     "DSV4_CUDA_FP8_PRODUCTS=all, or =many from 128 tokens an expert; MXFP4 that is exact in e4m3",
     FitsGroupedGemmFp8},
    {ExpertsPath::kBlockScaled, "sm100/block_scaled",
     "compute capability 10.0, DSV4_CUDA_BLOCK_SCALED, experts it takes", FitsBlockScaled},
    {ExpertsPath::kGemvJoint, "moe/gemv_joint",
     "routed_experts of up to 8 tokens, FP4; two launches where its blocks cannot be resident together",
     FitsGemvJoint},
    {ExpertsPath::kGemvExperts, "moe/gemv_experts", "routed_experts of up to 8 tokens", FitsGemvExperts},
    {ExpertsPath::kGroupedGemvRuns, "moe/grouped_gemv_runs",
     "FP4, at most 4 tokens an expert on average, or where that takes least by estimate", FitsRuns},
    {ExpertsPath::kGroupedGemvStream, "moe/grouped_gemv_stream",
     "at most 4 tokens an expert on average; up to 64 tokens", FitsStream},
    {ExpertsPath::kGroupedGemmNarrow, "moe/grouped_gemm_narrow",
     "FP4, from 65 tokens or more than 4 an expert on average, where that takes least by estimate",
     FitsGroupedNarrow},
    {ExpertsPath::kGroupedGemmWide, "moe/grouped_gemm_wide",
     "FP4, from 65 tokens or more than 4 an expert on average", FitsGroupedWide},
    {ExpertsPath::kGroupedGemmWgmma, "moe/grouped_gemm_wgmma", "from 65 tokens", FitsGroupedWgmma},
    {ExpertsPath::kRoutedExperts, "moe/routed_experts", "the rest", FitsAll, RuleKind::kAny},
}};

int LargestTile(const DeviceWeight& w1, const DeviceWeight& w2, int most, size_t most_bytes) {
  for (int tokens = most; tokens > 0; tokens /= 2) {
    if (StreamRowsBytes(std::max(w1.cols, w2.cols), tokens) <= most_bytes) return tokens;
  }
  return 0;
}

}  // namespace

std::span<const Rule<ExpertsPath, ExpertsShape>> ExpertsRules() { return kExpertsRules; }

Plan<ExpertsPath> ChooseExperts(const ExpertsShape& shape, const DeviceLimits& device) {
  Plan<ExpertsPath> plan = FirstFit(ExpertsRules(), shape, device);
  if (CanGroupWide(shape, device) &&
      (plan.kernel == ExpertsPath::kGroupedGemvRuns || plan.kernel == ExpertsPath::kGroupedGemmNarrow ||
       plan.kernel == ExpertsPath::kGroupedGemmWide))
    plan.microseconds = ExpertsMicroseconds(plan.kernel, shape, device);
  return plan;
}

bool WantsE4m3(const ExpertsShape& s, const DeviceLimits& d) {
  if (d.fp8_products == Fp8Products::kOff) return false;
  if (d.fp8_products == Fp8Products::kMany && s.num_assignments() < kMinFp8TokensOfExpert * s.num_experts)
    return false;
  return FitsFp8(s.w1) && FitsFp8(s.w2) && CanGroupAndPack(s);
}

int RunTokensPerTile(const DeviceWeight& w1, const DeviceWeight& w2, const DeviceLimits& device) {
  // Activations of a tile, beside the ring of weights, sums, and what is known of runs.
  constexpr size_t kMost = size_t{68} * 1024;
  constexpr size_t kOthers = WarpRingsBytes(1) + size_t{2 * 8 + 5} * 1024;
  const size_t most_bytes = std::min(kMost, device.shared_bytes - kOthers);
  if (!IsFp4(StreamKindOf(w1)) || StreamKindOf(w2) != StreamKindOf(w1)) return 0;
  return LargestTile(w1, w2, static_cast<int>(kMaxGemvTokens), most_bytes);
}

int StreamTokensPerTile(const DeviceWeight& w1, const DeviceWeight& w2) {
  // Bytes that two blocks of an SM leave beside rings and sums.
  constexpr size_t kMostBytes = size_t{36} * 1024;
  return std::max(1, LargestTile(w1, w2, static_cast<int>(kMaxGemvTokensOfExpert), kMostBytes));
}

}  // namespace dsv4::backend::cuda
