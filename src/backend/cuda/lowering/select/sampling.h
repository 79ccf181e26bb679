// Which kernel chooses tokens: sample.
#pragma once

#include <cstddef>
#include <span>

#include "backend/cuda/lowering/rule.h"

namespace dsv4::backend::cuda {

struct SampleShape {
  int64_t vocab_size = 0;
};
enum class SamplePath : uint8_t { kCluster, kRow };
std::span<const Rule<SamplePath, SampleShape>> SampleRules();
inline Plan<SamplePath> ChooseSample(const SampleShape& shape, const DeviceLimits& device) {
  return FirstFit(SampleRules(), shape, device);
}

inline constexpr int kSampleClusterBlocks = 8;
// The logits of a block of kCluster.
constexpr size_t SamplePieceBytes(int64_t vocab_size) {
  return static_cast<size_t>((vocab_size + kSampleClusterBlocks - 1) / kSampleClusterBlocks) * sizeof(float);
}

}  // namespace dsv4::backend::cuda
