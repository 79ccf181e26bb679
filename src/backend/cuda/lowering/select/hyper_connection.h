// Which kernels run hc_pre, hc_head and hc_post.
#pragma once

#include <cstddef>
#include <span>

#include "backend/cuda/lowering/room_for.h"
#include "backend/cuda/lowering/rule.h"
#include "tensor/dtype.h"

namespace dsv4::backend::cuda {

// The release's streams: four, and rows of fn for them (pre, post, comb).
inline constexpr int kHcMult = 4;
inline constexpr int kHcMixRows = (2 + kHcMult) * kHcMult;
// Dot products of four streams are cut alike in every kernel. Columns come in runs of 32, dealt out in turn
// to as many parts as the norm of such a row has warps.
inline constexpr int kHcRunColumns = 32;
inline constexpr int64_t kMaxNarrowRow = 1024;
inline constexpr int kNarrowRowThreads = 128;
inline constexpr int kWideRowThreads = 512;
inline constexpr int64_t HcParts(int64_t dim) {
  return (dim <= kMaxNarrowRow ? kNarrowRowThreads : kWideRowThreads) / 32;
}
inline constexpr int HcRuns(int64_t dim) { return static_cast<int>(dim / (HcParts(dim) * kHcRunColumns)); }

// streams [num_tokens, mult, dim], fn [num_rows, mult * dim].
struct HcPreShape {
  DType dtype = DType::kBF16;
  int64_t num_tokens = 0;
  int64_t mult = 0;
  int64_t dim = 0;
  int64_t num_rows = 0;
  const void* streams = nullptr;
  const void* fn = nullptr;
  const void* u = nullptr;  // Mixed operand; null for hc_head.
  RoomFor clusters;         // For hc_cluster, whose clusters all have as many blocks.
};

// Whether streams and fn can be read in runs, by 16 bytes.
bool HasHcRuns(const HcPreShape& shape);

enum class HcPrePath : uint8_t { kCluster, kTokenTiles, kDotsThenMix };
std::span<const Rule<HcPrePath, HcPreShape>> HcPreRules();
inline Plan<HcPrePath> ChooseHcPre(const HcPreShape& shape, const DeviceLimits& device) {
  return FirstFit(HcPreRules(), shape, device);
}
// The dot products of kDotsThenMix and of hc_head,
enum class HcDotsPath : uint8_t { kManyTokens, kRuns, kAny };
std::span<const Rule<HcDotsPath, HcPreShape>> HcDotsRules();
inline Plan<HcDotsPath> ChooseHcDots(const HcPreShape& shape, const DeviceLimits& device) {
  return FirstFit(HcDotsRules(), shape, device);
}
// and the mix of the streams.
enum class HcMixPath : uint8_t { kManyTokens, kToken };
std::span<const Rule<HcMixPath, HcPreShape>> HcMixRules();
inline Plan<HcMixPath> ChooseHcMix(const HcPreShape& shape, const DeviceLimits& device) {
  return FirstFit(HcMixRules(), shape, device);
}

struct HcPostShape {
  DType dtype = DType::kBF16;
  int64_t num_tokens = 0;
  int64_t mult = 0;
  int64_t dim = 0;
  const void* y = nullptr;
  const void* out = nullptr;
  const void* residual = nullptr;
};
enum class HcPostPath : uint8_t { kOfFour, kAny };
std::span<const Rule<HcPostPath, HcPostShape>> HcPostRules();
inline Plan<HcPostPath> ChooseHcPost(const HcPostShape& shape, const DeviceLimits& device) {
  return FirstFit(HcPostRules(), shape, device);
}

inline constexpr int64_t kMaxHcClusterTokens = 8;
inline constexpr int64_t kMaxHcClusterDim = 8192;  // 16 blocks of 16 runs.
inline constexpr int64_t kMaxHcStepTokens = 256;
inline constexpr int64_t kMaxHcDotsTokens =
    256;  // Up to so many, blocks of few tokens fill the device better.
inline constexpr int64_t kMaxHcMixTokens = 1024;  // Up to so many, one launch takes less than two.

// Shared memory of a block of hc_dots with the rows of hc_pre, and of hc_token_tiles.
constexpr size_t HcDotsSharedBytes(int runs) {
  return static_cast<size_t>(runs) * kHcMult * kHcMixRows * kHcRunColumns * sizeof(float);
}
constexpr size_t HcTokenTilesSharedBytes(int runs) {
  const size_t streams = size_t{8} * kHcMult * static_cast<size_t>(runs | 1) * kHcRunColumns * 2;
  return HcDotsSharedBytes(runs) + streams + size_t{8} * (kHcMult + kHcMult * kHcMult) * sizeof(float);
}

}  // namespace dsv4::backend::cuda
