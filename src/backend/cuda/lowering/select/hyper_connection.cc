// Rules that choose the kernels of hc_pre, hc_head and hc_post, by tokens, width and room for clusters.
#include "backend/cuda/lowering/select/hyper_connection.h"

#include <array>

namespace dsv4::backend::cuda {
namespace {

constexpr int64_t kColumnsOfThread = 8;

bool FitsCluster(const HcPreShape& s, const DeviceLimits& d) {
  return d.has_clusters() && s.dtype == DType::kBF16 && s.num_tokens <= kMaxHcClusterTokens &&
         s.dim <= kMaxHcClusterDim && HasHcRuns(s) && s.clusters && s.clusters() > 0;
}
bool FitsTokenTiles(const HcPreShape& s, const DeviceLimits& d) {
  return s.dtype == DType::kBF16 && s.num_tokens <= kMaxHcStepTokens && HasHcRuns(s) &&
         HcTokenTilesSharedBytes(HcRuns(s.dim)) <= d.shared_bytes;
}

bool FitsManyDots(const HcPreShape& s, const DeviceLimits& d) {
  return s.num_tokens > kMaxHcDotsTokens && HasHcRuns(s) &&
         (s.num_rows == kHcMult || s.num_rows == kHcMixRows) &&
         HcDotsSharedBytes(HcRuns(s.dim)) <= d.shared_bytes;
}
bool FitsDotsOfRuns(const HcPreShape& s, const DeviceLimits&) { return HasHcRuns(s); }

bool FitsManyMixes(const HcPreShape& s, const DeviceLimits&) {
  return s.num_tokens > kMaxHcMixTokens && s.mult == kHcMult && s.dim % kColumnsOfThread == 0 &&
         s.dtype == DType::kBF16 && IsAligned(s.streams, 16) && IsAligned(s.u, 16);
}

bool FitsPostOfFour(const HcPostShape& s, const DeviceLimits&) {
  return s.mult == kHcMult && s.dim % kColumnsOfThread == 0 && IsAligned(s.y, 16) && IsAligned(s.out, 16) &&
         IsAligned(s.residual, 16);
}

constexpr std::array<Rule<HcPrePath, HcPreShape>, 3> kPreRules = {{
    {HcPrePath::kCluster, "hyper_connection/hc_cluster",
     "up to 8 tokens in bf16, four streams up to 8192 wide, as long as a cluster fits an SM cluster",
     FitsCluster},
    {HcPrePath::kTokenTiles, "hyper_connection/hc_token_tiles", "up to 256 tokens in bf16, four streams",
     FitsTokenTiles},
    {HcPrePath::kDotsThenMix, "hyper_connection/hyper_connection", "the rest: dot products, then the mix",
     FitsAll<HcPreShape>},
}};
constexpr std::array<Rule<HcDotsPath, HcPreShape>, 3> kDotsRules = {{
    {HcDotsPath::kManyTokens, "hyper_connection/hc_dots",
     "from 257 tokens, four streams, as long as a part of the matrix fits in shared memory", FitsManyDots},
    {HcDotsPath::kRuns, "hyper_connection/hc_dots", "four streams", FitsDotsOfRuns},
    {HcDotsPath::kAny, "hyper_connection/hc_dots", "the rest", FitsAll<HcPreShape>, RuleKind::kAny},
}};
constexpr std::array<Rule<HcMixPath, HcPreShape>, 2> kMixRules = {{
    {HcMixPath::kManyTokens, "hyper_connection/hc_many", "from 1025 tokens in bf16, four streams",
     FitsManyMixes},
    {HcMixPath::kToken, "hyper_connection/hyper_connection", "the rest", FitsAll<HcPreShape>},
}};
constexpr std::array<Rule<HcPostPath, HcPostShape>, 2> kPostRules = {{
    {HcPostPath::kOfFour, "hyper_connection/hc_post", "four streams, columns by 8", FitsPostOfFour},
    {HcPostPath::kAny, "hyper_connection/hc_post", "the rest", FitsAll<HcPostShape>, RuleKind::kAny},
}};

}  // namespace

bool HasHcRuns(const HcPreShape& s) {
  return s.mult == kHcMult && s.dim % (kHcRunColumns * HcParts(s.dim)) == 0 && IsAligned(s.streams, 16) &&
         IsAligned(s.fn, 16);
}

std::span<const Rule<HcPrePath, HcPreShape>> HcPreRules() { return kPreRules; }
std::span<const Rule<HcDotsPath, HcPreShape>> HcDotsRules() { return kDotsRules; }
std::span<const Rule<HcMixPath, HcPreShape>> HcMixRules() { return kMixRules; }
std::span<const Rule<HcPostPath, HcPostShape>> HcPostRules() { return kPostRules; }

}  // namespace dsv4::backend::cuda
