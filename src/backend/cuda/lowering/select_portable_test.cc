// Which kernels devices take that have less than Hopper: code without clusters, TMA and wgmma, and blocks
// with less shared memory.
#include <gtest/gtest.h>

#include "backend/cuda/lowering/launch/fusion_rules_testing.h"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/lowering/select/experts.h"
#include "backend/cuda/lowering/select/hyper_connection.h"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/lowering/select/linear.h"
#include "backend/cuda/lowering/select/sampling.h"
#include "backend/cuda/lowering/select_testing.h"

namespace dsv4::backend::cuda {
namespace {

constexpr DeviceLimits kA100 = {
    .compute_capability = 80, .code_capability = 80, .num_sms = 108, .shared_bytes = size_t{163} * 1024};
constexpr DeviceLimits kRtx3090 = {
    .compute_capability = 86, .code_capability = 86, .num_sms = 82, .shared_bytes = size_t{99} * 1024};
constexpr DeviceLimits kRtx5090 = {
    .compute_capability = 120, .code_capability = 120, .num_sms = 170, .shared_bytes = size_t{99} * 1024};
// Limits in tests: Ampere's code on Hopper.
constexpr DeviceLimits kAmpereCode = {
    .compute_capability = 90, .code_capability = 80, .num_sms = 132, .shared_bytes = size_t{163} * 1024};

const void* Aligned() { return At('A'); }

LinearPath Linear(const DeviceWeight& weight, int64_t num_tokens, const DeviceLimits& device) {
  return ChooseLinear({.weight = weight,
                       .num_tokens = num_tokens,
                       .x = Aligned(),
                       .x_dtype = DType::kBF16,
                       .x_stride = weight.cols},
                      device)
      .kernel;
}
ExpertsPath Experts(int64_t num_tokens, const DeviceLimits& device) {
  return ChooseExperts({.alike = true,
                        .bulk_aligned = true,
                        .w1 = Fp4(2048, 4096, /*nvfp4=*/true),
                        .w2 = Fp4(4096, 2048, /*nvfp4=*/true),
                        .num_tokens = num_tokens,
                        .top_k = 6,
                        .num_here = 256,
                        .num_experts = 256,
                        .x = Aligned(),
                        .terms = Aligned(),
                        .sums = true},
                       device)
      .kernel;
}
AttentionPath Attention(int64_t num_tokens, int64_t head_dim, const DeviceLimits& device) {
  return ChooseAttention({.num_tokens = num_tokens,
                          .num_heads = 64,
                          .head_dim = head_dim,
                          .max_keys = 640,
                          .q = Aligned(),
                          .o = Aligned(),
                          .column_clusters = [](int) { return int64_t{66}; }},
                         device)
      .kernel;
}
IndexerPath Indexer(int64_t num_tokens, int64_t max_visible, const DeviceLimits& device) {
  return ChooseIndexer({.num_tokens = num_tokens,
                        .num_sequences = 1,
                        .num_heads = 64,
                        .width = 128,
                        .max_visible = max_visible,
                        .top_k = 512,
                        .keys = StoredForm::kRelease,
                        .rows_per_page = 64,
                        .clusters = [](int) { return 8; }},
                       device)
      .kernel;
}
HcPrePath HcPre(int64_t num_tokens, const DeviceLimits& device) {
  return ChooseHcPre({.num_tokens = num_tokens,
                      .mult = kHcMult,
                      .dim = 4096,
                      .num_rows = kHcMixRows,
                      .streams = Aligned(),
                      .fn = Aligned(),
                      .u = Aligned(),
                      .clusters = [](int) { return 1; }},
                     device)
      .kernel;
}

TEST(ChooseWithoutHopper, LinearsOfAmpere) {
  for (const DeviceLimits& device : {kA100, kAmpereCode}) {
    EXPECT_EQ(Linear(Fp8(4096, 4096), 8, device), LinearPath::kGemvStream);
    for (const int64_t num_tokens : {9, 64, 65, 1024, 4096})
      EXPECT_EQ(Linear(Fp8(4096, 4096), num_tokens, device), LinearPath::kGemmMma) << num_tokens;
  }
  EXPECT_EQ(Linear(Fp8(4096, 4096), 4, kRtx3090), LinearPath::kGemvStream);
  EXPECT_EQ(Linear(Fp8(4096, 4096), 5, kRtx3090), LinearPath::kGemmMma) << "rows of x that do not fit 99 KB";
  EXPECT_EQ(Linear(Fp8(4096, 8192), 2, kRtx3090), LinearPath::kGemvStream);
  EXPECT_EQ(Linear(Fp8(4096, 8192), 3, kRtx3090), LinearPath::kGemmMma);
}

TEST(ChooseWithoutHopper, ExpertsWithoutTma) {
  for (const DeviceLimits& device : {kA100, kAmpereCode, kRtx3090}) {
    EXPECT_EQ(Experts(1, device), ExpertsPath::kGemvExperts);
    EXPECT_EQ(Experts(8, device), ExpertsPath::kGemvExperts);
    EXPECT_EQ(Experts(9, device), ExpertsPath::kGroupedGemvRuns);
    EXPECT_EQ(Experts(64, device), ExpertsPath::kGroupedGemvRuns);
    EXPECT_EQ(Experts(2048, device), ExpertsPath::kRoutedExperts);
  }
  EXPECT_EQ(Experts(1, kRtx5090), ExpertsPath::kGemvJoint)
      << "TMA; whether its blocks have room is asked later";
  EXPECT_EQ(Experts(2048, kRtx5090), ExpertsPath::kRoutedExperts);
}

TEST(ChooseWithoutHopper, TilesOfRunsFollowSharedMemory) {
  const DeviceWeight w1 = Fp4(2048, 4096, /*nvfp4=*/true);
  const DeviceWeight w2 = Fp4(4096, 2048, /*nvfp4=*/true);
  EXPECT_EQ(RunTokensPerTile(w1, w2, kH200), 8);
  EXPECT_EQ(RunTokensPerTile(w1, w2, kA100), 8);
  EXPECT_EQ(RunTokensPerTile(w1, w2, kRtx3090), 4);
}

TEST(ChooseWithoutHopper, AttentionWithoutClusters) {
  for (const DeviceLimits& device : {kA100, kAmpereCode, kRtx3090}) {
    for (const int64_t num_tokens : {1, 8, 9, 66, 2048})
      EXPECT_EQ(Attention(num_tokens, 512, device), AttentionPath::kMma) << num_tokens;
  }
  EXPECT_EQ(Attention(1, 512, kRtx5090), AttentionPath::kMma) << "clusters, but no room for what tiles give";
  EXPECT_EQ(Attention(1, 128, kRtx5090), AttentionPath::kDecodeCluster);
}

TEST(ChooseWithoutHopper, IndexerAndTopKWithoutClusters) {
  for (const DeviceLimits& device : {kA100, kAmpereCode, kRtx3090}) {
    for (const int64_t num_tokens : {1, 8, 2048})
      EXPECT_EQ(Indexer(num_tokens, 4096, device), IndexerPath::kMma) << num_tokens;
    EXPECT_EQ(ChooseTopK({.has_scores = true, .max_visible = 1 << 20}, device).kernel, TopKPath::kBlock);
  }
  EXPECT_EQ(Indexer(8, 4096, kRtx5090), IndexerPath::kCluster);
  EXPECT_EQ(ChooseTopK({.has_scores = true, .max_visible = 1 << 20}, kRtx5090).kernel, TopKPath::kCluster);
}

TEST(ChooseWithoutHopper, HyperConnectionsFollowSharedMemory) {
  EXPECT_EQ(HcPre(1, kH200), HcPrePath::kCluster);
  EXPECT_EQ(HcPre(1, kA100), HcPrePath::kTokenTiles);
  EXPECT_EQ(HcPre(1, kAmpereCode), HcPrePath::kTokenTiles);
  EXPECT_EQ(HcPre(1, kRtx3090), HcPrePath::kDotsThenMix);
}

TEST(ChooseWithoutHopper, Samples) {
  constexpr int64_t kVocabulary = 129280;
  EXPECT_EQ(ChooseSample({kVocabulary}, kH200).kernel, SamplePath::kCluster);
  EXPECT_EQ(ChooseSample({kVocabulary}, kAmpereCode).kernel, SamplePath::kRow);
  EXPECT_EQ(ChooseSample({kVocabulary}, kRtx5090).kernel, SamplePath::kRow) << "logits that do not fit";
  EXPECT_EQ(ChooseSample({65536}, kRtx5090).kernel, SamplePath::kCluster);
}

// wgmma and block-scaled products are machine code of one generation, and modes that want them are refused
// elsewhere.
TEST(ChooseWithoutHopper, FeaturesAreThoseOfTheCode) {
  EXPECT_TRUE(kH200.has_wgmma() && kH200.has_clusters() && kH200.has_tma());
  EXPECT_FALSE(kAmpereCode.has_wgmma() || kAmpereCode.has_clusters() || kAmpereCode.has_tma());
  EXPECT_TRUE(kRtx5090.has_clusters() && kRtx5090.has_tma());
  EXPECT_FALSE(kRtx5090.has_wgmma() || kRtx5090.has_block_scaled());
  EXPECT_TRUE((DeviceLimits{.compute_capability = 100, .code_capability = 100}.has_block_scaled()));
  EXPECT_FALSE((DeviceLimits{.compute_capability = 103, .code_capability = 100}.has_block_scaled()));
}

}  // namespace
}  // namespace dsv4::backend::cuda
