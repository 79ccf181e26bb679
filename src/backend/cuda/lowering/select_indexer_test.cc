// Which kernels the indexer takes, how large their launches are, and what they hold: every threshold from
// both sides.
#include <gtest/gtest.h>

#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/lowering/select_testing.h"

namespace dsv4::backend::cuda {
namespace {

IndexerShape Indexer(int64_t num_tokens, int64_t max_visible, int64_t num_sequences = 1) {
  return {.dtype = DType::kBF16,
          .num_tokens = num_tokens,
          .num_sequences = num_sequences,
          .num_heads = 64,
          .width = 128,
          .max_visible = max_visible,
          .top_k = 512,
          .rows_per_page = 64,
          .clusters = [](int) { return 8; }};
}

TEST(ChooseIndexer, ByTokensAndEntries) {
  EXPECT_EQ(ChooseIndexer(Indexer(1, 1024), kH200).kernel, IndexerPath::kCluster);
  EXPECT_EQ(ChooseIndexer(Indexer(8, 4096), kH200).kernel, IndexerPath::kCluster);
  EXPECT_EQ(ChooseIndexer(Indexer(9, 4096), kH200).kernel, IndexerPath::kMma)
      << "clusters do not fit, scores are few";
  EXPECT_EQ(ChooseIndexer(Indexer(1, 8192), kH200).kernel, IndexerPath::kMma)
      << "more entries than a cluster scores";
  EXPECT_EQ(ChooseIndexer(Indexer(1, 512), kH200).kernel, IndexerPath::kMma) << "all are chosen";
  EXPECT_EQ(ChooseIndexer(Indexer(32, 4096), kH200).kernel, IndexerPath::kWgmma);
  EXPECT_EQ(ChooseIndexer(Indexer(31, 4096), kH200).kernel, IndexerPath::kMma)
      << "one token short of 2^17 scores";
  EXPECT_EQ(ChooseIndexer(Indexer(32, 4096, 5), kH200).kernel, IndexerPath::kMma) << "6.4 tokens a sequence";
  EXPECT_EQ(ChooseIndexer(Indexer(32, 4096, 4), kH200).kernel, IndexerPath::kWgmma) << "8 tokens a sequence";
  EXPECT_EQ(
      ChooseIndexer(Indexer(2048, 65536), DeviceLimits{.compute_capability = 100, .num_sms = 148}).kernel,
      IndexerPath::kMma);
  IndexerShape fp32 = Indexer(1, 1024);
  fp32.dtype = DType::kF32;
  EXPECT_EQ(ChooseIndexer(fp32, kH200).kernel, IndexerPath::kAny);
  EXPECT_EQ(ChooseScores(Indexer(1, 1024), kH200).kernel, IndexerPath::kMma) << "scores alone";
  for (IndexerShape packed : {Indexer(1, 1024), Indexer(1, 8192), Indexer(32, 4096)}) {
    const IndexerPath wide = ChooseIndexer(packed, kH200).kernel;
    packed.keys = StoredForm::kRelease;
    EXPECT_EQ(ChooseIndexer(packed, kH200).kernel, wide == IndexerPath::kMma ? IndexerPath::kDecode : wide);
    EXPECT_EQ(ChooseIndexer(packed, DeviceLimits{.compute_capability = 100, .num_sms = 148}).kernel,
              wide == IndexerPath::kWgmma ? IndexerPath::kMma : wide);
    packed.rows_per_page = 24;
    EXPECT_EQ(ChooseIndexer(packed, kH200).kernel, wide) << "sixteen keys that lie in two pages";
    packed.rows_per_page = 48;
    packed.num_heads = 48;
    EXPECT_NE(ChooseIndexer(packed, kH200).kernel, IndexerPath::kDecode) << "fewer heads";
    packed.num_heads = 64;
    packed.keys = StoredForm::kAny;
    EXPECT_EQ(ChooseIndexer(packed, kH200).kernel, IndexerPath::kAny) << "keys in a form without kernels";
  }
  const auto top_k = [](bool has_scores, int64_t max_visible) {
    return ChooseTopK({.has_scores = has_scores, .max_visible = max_visible}, kH200).kernel;
  };
  EXPECT_EQ(top_k(true, 4095), TopKPath::kBlock);
  EXPECT_EQ(top_k(true, 4096), TopKPath::kCluster);
  EXPECT_EQ(top_k(false, 65536), TopKPath::kBlock) << "all are chosen";
  int64_t room = 0;  // For clusters of 16.
  const auto blocks = [&](int64_t num_tokens, int64_t max_visible) {
    const auto of_sixteen = [&](int of) { return of == 16 ? room : 0; };
    return TopKClusterBlocks(num_tokens, max_visible, kH200, of_sixteen);
  };
  EXPECT_EQ(blocks(1, 262144), 8);
  EXPECT_EQ(blocks(33, 65536), 8);
  EXPECT_EQ(blocks(34, 65536), 4) << "264 blocks run at once";
  EXPECT_EQ(blocks(66, 65536), 4);
  EXPECT_EQ(blocks(67, 65536), 2);
  EXPECT_EQ(blocks(67, 65537), 4) << "more keys than blocks hold";
  EXPECT_EQ(blocks(512, 262144), 8);
  EXPECT_EQ(blocks(16, 4096), 8);
  EXPECT_EQ(blocks(17, 4096), 4) << "short pieces, where blocks are more than SMs";
  EXPECT_EQ(blocks(34, 4096), 2);
  EXPECT_EQ(blocks(33, 16384), 8);
  room = 9;
  EXPECT_EQ(blocks(1, 65535), 8);
  EXPECT_EQ(blocks(1, 65536), 16);
  EXPECT_EQ(blocks(9, 262144), 16);
  EXPECT_EQ(blocks(10, 262144), 8) << "more than there is room for";
  room = 100;
  EXPECT_EQ(blocks(16, 262144), 16);
  EXPECT_EQ(blocks(17, 262144), 8) << "264 blocks run at once";
}

// Sizes of launches: how many tokens' scores are made at a time, and how many tiles of keys a block goes
// through.
TEST(ChooseIndexer, SizesOfLaunches) {
  EXPECT_EQ(TokensScoredAtOnce(4096, 4096), 4096);
  EXPECT_EQ(TokensScoredAtOnce(4097, 4096), 4096) << "2^24 scores";
  EXPECT_EQ(TokensScoredAtOnce(8, int64_t{1} << 25), 1) << "one token has more";
  const auto mma = [](int64_t num_tokens, int64_t max_visible) {
    return ScoreTilesOfBlock(IndexerPath::kMma, num_tokens, max_visible, kH200);
  };
  EXPECT_EQ(mma(1, 64), 1);
  EXPECT_EQ(mma(1, 528 * 64), 1) << "a tile for each of four blocks of every SM";
  EXPECT_EQ(mma(1, 528 * 64 + 1), 2);
  EXPECT_EQ(mma(64, 65536), 16) << "the most";
  EXPECT_EQ(ScoreTilesOfBlock(IndexerPath::kMma, 1, 528 * 64, {.num_sms = 66}), 2) << "a smaller device";
  const auto wgmma = [](int64_t num_tokens, int64_t max_visible) {
    return ScoreTilesOfBlock(IndexerPath::kWgmma, num_tokens, max_visible, kH200);
  };
  EXPECT_EQ(wgmma(32, 4096), 4) << "two for each warpgroup, the fewest";
  EXPECT_EQ(wgmma(4 * 2112, 64 * 5), 6) << "whole warpgroups";
  EXPECT_EQ(wgmma(8192, 262144), 64) << "the most";
  EXPECT_EQ(DecodeScoreBlocks(64, 65536, kH200), 10) << "640 of the 660 blocks that run at once";
  EXPECT_EQ(DecodeScoreBlocks(1, 8192, kH200), 128) << "a tile for each";
  EXPECT_EQ(DecodeScoreBlocks(1, 262144, kH200), 660);
  EXPECT_EQ(DecodeScoreBlocks(661, 65536, kH200), 1);
}

// Refusals of ops: the shared memory of a block, and the grid.
TEST(ChooseIndexer, WhatKernelsHold) {
  EXPECT_TRUE(CanScore(kH200, 64, 128, 65536));
  EXPECT_TRUE(CanScore(kH200, 64, 128, int64_t{65535} * 32));
  EXPECT_FALSE(CanScore(kH200, 64, 128, int64_t{65535} * 32 + 1)) << "more tiles than a grid has";
  EXPECT_TRUE(CanScore(kH200, 384, 128, 1024));
  EXPECT_FALSE(CanScore(kH200, 448, 128, 1024)) << "a query that shared memory does not hold";
  EXPECT_FALSE(CanScore({.shared_bytes = size_t{100} * 1024}, 384, 128, 1024)) << "a smaller device";
  EXPECT_TRUE(HoldsCandidates(kH200, 25600));
  EXPECT_FALSE(HoldsCandidates(kH200, 25601));
  EXPECT_TRUE(HoldsMerge(kH200, 8 * 1024, 1024));
  EXPECT_TRUE(HoldsMerge(kH200, 16 * 1280, 2048));
  EXPECT_FALSE(HoldsMerge(kH200, 16 * 1280, 2049));
}

}  // namespace
}  // namespace dsv4::backend::cuda
