// Rules that choose the kernel of sample: a cluster a row, or one block.
#include "backend/cuda/lowering/select/sampling.h"

#include <array>

namespace dsv4::backend::cuda {
namespace {

bool FitsSampleCluster(const SampleShape& s, const DeviceLimits& d) {
  constexpr size_t kOfKernel = size_t{42} * 1024;  // Histograms and what else the kernel has by name.
  return d.has_clusters() && SamplePieceBytes(s.vocab_size) + kOfKernel <= d.shared_bytes;
}

constexpr std::array<Rule<SamplePath, SampleShape>, 2> kSampleRules = {{
    {SamplePath::kCluster, "sampling/sample_cluster",
     "Hopper or later: eight blocks a row, which hold the logits", FitsSampleCluster},
    {SamplePath::kRow, "sampling/sample", "the rest: a block a row",
     [](const SampleShape&, const DeviceLimits&) { return true; }},
}};

}  // namespace

std::span<const Rule<SamplePath, SampleShape>> SampleRules() { return kSampleRules; }

}  // namespace dsv4::backend::cuda
