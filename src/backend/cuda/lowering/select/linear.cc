// Rules that choose the kernel of linear and grouped_linear, by tokens, weight format and device.
#include "backend/cuda/lowering/select/linear.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "backend/cuda/device/sync/grid_barrier.h"
#include "backend/cuda/lowering/select/estimate.h"
#include "backend/cuda/lowering/splitk_shape.h"

namespace dsv4::backend::cuda {
namespace {

bool FitsBlockScaledLinear(const LinearShape& s, const DeviceLimits& d) {
  return HasBlockScaled(d.block_scaled, s.weight);
}

// A part of a tile lies in one block of scales, so groups begin with blocks.
bool FitsTmaFp8(const LinearShape& s, const DeviceLimits& d) {
  const DeviceWeight& w = s.weight;
  if (d.fp8_products == Fp8Products::kOff) return false;
  if (d.fp8_products == Fp8Products::kMany && s.num_tokens < kMinFp8Tokens) return false;
  return w.quantized_x && CanPackFp8Weight(w) && w.block_rows % kGemmRows == 0 && w.block_cols % 128 == 0 &&
         (s.num_groups == 1 || s.rows_per_group() % kGemmRows == 0) &&
         CanPack(s.x, s.x_stride, s.num_groups * w.cols);
}

bool FitsGemvStream(const LinearShape& s, const DeviceLimits& d) {
  return s.num_tokens <= kMaxGemvTokens && CanStreamWeight(s.weight, s.rows_per_group()) &&
         CanStreamRows(s.x_dtype, s.x, s.weight.cols, s.x_stride, s.num_tokens, d.shared_bytes);
}

bool FitsGemmWgmma(const LinearShape& s, const DeviceLimits& d) {
  const int64_t row_tiles = CeilOf(s.rows_per_group(), kGemmRows) * s.num_groups;
  const bool tall = row_tiles >= d.num_sms;
  return d.has_wgmma() && s.num_tokens >= (tall ? kMinTallWgmmaTokens : kMinWgmmaTokens) &&
         FitsWgmma(s.weight) && (s.weight.kind != MatmulKind::kMmaFp8 || s.weight.rows % s.num_groups == 0) &&
         CanPack(s.x, s.x_stride, s.num_groups * s.weight.cols);
}

bool TakesSplitK(const LinearShape& s, const DeviceLimits& d) {
  const DeviceWeight& w = s.weight;
  if (!d.has_wgmma() || s.num_tokens > kMaxSplitKTokens || !CanStreamWeight(w, kGemvTileRows)) return false;
  const StreamShape shape = ShapeOf(w);
  if (IsFp4(shape.kind) || !IsAligned(w.data, 16) || s.x_dtype != DType::kBF16 || !IsAligned(s.x, 16) ||
      s.x_stride % 8 != 0) {
    return false;
  }
  // A thread's rows lie in one block of rows.
  if (shape.kind == StreamKind::kMxFp8 && s.num_groups > 1 && s.rows_per_group() % kGemvTileRows != 0)
    return false;
  // The rows of a tile share their scales.
  if (HasScaledSums(shape.kind) &&
      (w.block_rows % kSplitKRows != 0 || (s.num_groups > 1 && s.rows_per_group() % kSplitKRows != 0))) {
    return false;
  }
  const Slices slices = SlicesOf(shape, s.num_tokens);
  if (slices.count == 0) return false;
  const int64_t tiles =
      CeilOf(s.rows_per_group(), kSplitKRows) * s.num_groups * CeilOf(s.num_tokens, slices.tokens);
  return slices.count == 1 || tiles <= kNumGridBarriers * kArrivalsOfBarrier;
}

bool FitsSplitK(const LinearShape& s, const DeviceLimits& d) {
  return TakesSplitK(s, d) &&
         (!TakesSplitKOrWgmma(s, d) || LinearMicroseconds(LinearPath::kGemmSplitK, s, d) <=
                                           LinearMicroseconds(LinearPath::kGemmWgmma, s, d));
}

bool FitsTmaBf16(const LinearShape& s, const DeviceLimits& d) {
  const DeviceWeight& w = s.weight;
  if (!d.has_wgmma() || s.num_tokens < kMinTmaTokens || !CanPackWeight(w) ||
      !CanPack(s.x, s.x_stride, s.num_groups * w.cols)) {
    return false;
  }
  // Groups begin with tiles, whose rows are packed in groups of 16.
  if (s.num_groups > 1 && s.rows_per_group() % 16 != 0) return false;
  return w.kind == MatmulKind::kMmaFp8 ? w.block_rows % 2 == 0
                                       : SegmentColsOf(w.kind, w.cols) % kSplitKChunk == 0;
}

bool FitsMma(const LinearShape& s, const DeviceLimits&) { return s.weight.kind != MatmulKind::kGeneral; }

constexpr std::array<Rule<LinearPath, LinearShape>, 8> kLinearRules = {{
    {LinearPath::kBlockScaled, "sm100/block_scaled",
     "compute capability 10.0, DSV4_CUDA_BLOCK_SCALED, weights it takes", FitsBlockScaledLinear},
    {LinearPath::kGemmTmaFp8, "gemm/gemm_tma_fp8",
     "DSV4_CUDA_FP8_PRODUCTS=all, or =many from 256 tokens; FP8 in blocks of 128", FitsTmaFp8},
    {LinearPath::kGemvStream, "gemm/gemv_stream", "up to 8 tokens in bf16, rows in tiles of 16",
     FitsGemvStream},
    {LinearPath::kGemmSplitK, "gemm/gemm_splitk_wgmma",
     "up to 64 tokens in bf16, BF16 or FP8 weights; up to 895 where that takes less by estimate", FitsSplitK},
    {LinearPath::kGemmTmaBf16, "gemm/gemm_tma_bf16", "from 896 tokens, BF16 or FP8 weights", FitsTmaBf16},
    {LinearPath::kGemmWgmma, "gemm/gemm_wgmma",
     "from 65 tokens; from 33 with a tile of 128 rows for every SM; columns by 128", FitsGemmWgmma},
    {LinearPath::kGemmMma, "gemm/gemm_mma", "the rest that is exact in bf16", FitsMma, RuleKind::kAny},
    {LinearPath::kGemmFma, "gemm/gemm_fma", "the rest: fp32", FitsAll, RuleKind::kAny},
}};

}  // namespace

std::span<const Rule<LinearPath, LinearShape>> LinearRules() { return kLinearRules; }

Plan<LinearPath> ChooseLinear(const LinearShape& shape, const DeviceLimits& device) {
  Plan<LinearPath> plan = FirstFit(LinearRules(), shape, device);
  if (shape.num_tokens >= kMinWgmmaTokens &&
      (plan.kernel == LinearPath::kGemmSplitK || plan.kernel == LinearPath::kGemmWgmma))
    plan.microseconds = LinearMicroseconds(plan.kernel, shape, device);
  return plan;
}

// Fewer tokens never take gemm_wgmma where split-K fits.
bool TakesSplitKOrWgmma(const LinearShape& s, const DeviceLimits& d) {
  return s.num_tokens >= kMinWgmmaTokens && TakesSplitK(s, d) && FitsGemmWgmma(s, d);
}

bool ShareWgmma(const DeviceWeight& a, const DeviceWeight& b) {
  DeviceWeight other = b;
  other.data = a.data;
  other.scale = a.scale;
  other.rows = a.rows;
  other.global_scale = a.global_scale;
  other.scale_codes = a.scale_codes;
  return a == other;
}

LinearLaunches ChooseLinears(std::span<const LinearShape> linears, bool first_in_splitk,
                             const DeviceLimits& d) {
  // Linears that can share a launch of gemm_wgmma, by the first of them.
  std::vector<std::vector<size_t>> sets;
  for (size_t i = 0; i < linears.size(); ++i) {
    const auto shares = [&](const auto& set) {
      return ShareWgmma(linears[set[0]].weight, linears[i].weight);
    };
    const auto set = std::ranges::find_if(sets, shares);
    (set == sets.end() ? sets.emplace_back() : *set).push_back(i);
  }
  const auto time = [&](LinearPath path, const std::vector<size_t>& launch) {
    std::vector<LinearShape> some;
    for (const size_t i : launch) some.push_back(linears[i]);
    return LinearsMicroseconds(path, some, d);
  };
  LinearLaunches best;
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t wgmma_sets = 0; wgmma_sets < (1U << sets.size()); ++wgmma_sets) {
    if (first_in_splitk && (wgmma_sets & 1U) != 0) continue;
    LinearLaunches launches;
    for (size_t set = 0; set < sets.size(); ++set) {
      if ((wgmma_sets >> set & 1U) != 0)
        launches.wgmma.push_back(sets[set]);
      else
        launches.splitk.insert(launches.splitk.end(), sets[set].begin(), sets[set].end());
    }
    std::ranges::sort(launches.splitk);
    double sum = 0.0;
    if (!launches.splitk.empty()) sum = time(LinearPath::kGemmSplitK, launches.splitk);
    for (const auto& launch : launches.wgmma)
      sum += time(LinearPath::kGemmWgmma, launch) + (sum > 0.0 ? kSecondLaunchMicroseconds : 0.0);
    if (sum >= least) continue;
    least = sum;
    best = std::move(launches);
  }
  return best;
}

bool HasBlockScaled(BlockScaledMode mode, const DeviceWeight& w) {
  if (mode == BlockScaledMode::kOff || !IsAligned(w.data, 16) || RoundsFine(w)) return false;
  if (w.format == WeightFormat::kNvFp4)
    return !w.repacked && w.exact_x && TakesNvFp4(mode, w.cols, w.quantized_x) && IsAligned(w.scale, 4);
  switch (w.kind) {
    case MatmulKind::kMmaFp8:
      return w.quantized_x && w.scale_dtype == DType::kF8E8M0 && w.cols % 128 == 0 && w.block_cols % 128 == 0;
    case MatmulKind::kMmaMxFp4Stored:
      return w.quantized_x && w.cols % 128 == 0 && IsAligned(w.scale, 4);
    case MatmulKind::kMmaBf16:
    case MatmulKind::kMmaMxFp8:
    case MatmulKind::kMmaMxFp4:
    case MatmulKind::kMmaNvFp4:
    case MatmulKind::kGeneral:
      return false;
  }
  return false;
}

int SegmentColsOf(MatmulKind kind, int64_t cols) {
  constexpr int64_t kSegments = 8;
  const bool fp8 = kind == MatmulKind::kMmaFp8 || kind == MatmulKind::kMmaMxFp8;
  const int64_t unit = kind == MatmulKind::kMmaBf16 ? 32 : (fp8 ? 64 : 128);
  return static_cast<int>(CeilOf(CeilOf(cols, unit), kSegments) * unit);
}

bool FitsWgmma(const DeviceWeight& w) {
  if (w.kind == MatmulKind::kGeneral || w.cols % 128 != 0 || !IsAligned(w.data, 16)) return false;
  const bool fp4 = IsFp4(w.kind);
  const int64_t stages = w.kind == MatmulKind::kMmaBf16 ? 2 : (fp4 ? 6 : 4);
  return SegmentColsOf(w.kind, w.cols) % 64 == 0 && 2 * (w.cols / 128) >= stages - 1 &&
         (!(fp4 || w.kind == MatmulKind::kMmaMxFp8) || IsAligned(w.scale, 4));
}

}  // namespace dsv4::backend::cuda
