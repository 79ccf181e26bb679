// Which kernel each size takes: every threshold from both sides, on a device that is described, not present.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/lowering/launch/fusion_rules.h"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/lowering/select/estimate.h"
#include "backend/cuda/lowering/select/experts.h"
#include "backend/cuda/lowering/select/kernel_table_testing.h"
#include "backend/cuda/lowering/select/linear.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/lowering/select_testing.h"

namespace dsv4::backend::cuda {
namespace {

DeviceWeight Bf16(int64_t rows, int64_t cols) {
  return {.data = WeightData(), .rows = rows, .cols = cols, .kind = MatmulKind::kMmaBf16, .exact_x = true};
}
DeviceWeight General(int64_t rows, int64_t cols) {
  return {.data = WeightData(), .rows = rows, .cols = cols};
}

LinearShape Linear(const DeviceWeight& weight, int64_t num_tokens, int64_t num_groups = 1) {
  return {.weight = weight,
          .num_groups = num_groups,
          .num_tokens = num_tokens,
          .x = AtAddress(16384),
          .x_dtype = DType::kBF16,
          .x_stride = weight.cols * num_groups};
}

TEST(ChooseLinear, ByTokensAndWeight) {
  struct Case {
    const char* what;
    LinearShape shape;
    DeviceLimits device;
    LinearPath wanted;
  };
  const DeviceWeight fp8 = Fp8(4096, 4096);
  const DeviceWeight tall = Fp8(132 * 128, 4096);
  LinearShape crooked = Linear(fp8, 1);
  crooked.x = AtAddress(16384 + 2);
  LinearShape wide_stride = Linear(fp8, 9);
  wide_stride.x_stride = 4097;
  LinearShape fp32 = Linear(fp8, 8);
  fp32.x_dtype = DType::kF32;
  const std::vector<Case> cases = {
      {"one token", Linear(fp8, 1), kH200, LinearPath::kGemvStream},
      {"the last of the GEMV", Linear(fp8, 8), kH200, LinearPath::kGemvStream},
      {"the first of split-K", Linear(fp8, 9), kH200, LinearPath::kGemmSplitK},
      {"64 tokens, whatever the estimates", Linear(fp8, 64), kH200, LinearPath::kGemmSplitK},
      {"one tile of 128 tokens", Linear(fp8, 128), kH200, LinearPath::kGemmSplitK},
      {"two narrow tiles of tokens", Linear(fp8, 160), kH200, LinearPath::kGemmSplitK},
      {"two tiles of tokens, half of the SMs with a row tile", Linear(fp8, 193), kH200,
       LinearPath::kGemmWgmma},
      {"few rows stay in split-K", Linear(Fp8(1024, 4096), 512), kH200, LinearPath::kGemmSplitK},
      {"wq_b, waves of row tiles", Linear(Fp8(32768, 1024), 895), kH200, LinearPath::kGemmSplitK},
      {"wo_b, segments of 1024 columns: 256", Linear(Fp8(4096, 8192), 256), kH200, LinearPath::kGemmSplitK},
      {"wo_b: 512", Linear(Fp8(4096, 8192), 512), kH200, LinearPath::kGemmWgmma},
      {"wo_a: 64", Linear(Fp8(8192, 4096), 64, 8), kH200, LinearPath::kGemmSplitK},
      {"wo_a: 96", Linear(Fp8(8192, 4096), 96, 8), kH200, LinearPath::kGemmSplitK},
      {"wo_a: 97", Linear(Fp8(8192, 4096), 97, 8), kH200, LinearPath::kGemmWgmma},
      {"the last of wgmma", Linear(fp8, 895), kH200, LinearPath::kGemmWgmma},
      {"the first of TMA", Linear(fp8, 896), kH200, LinearPath::kGemmTmaBf16},
      {"bf16, TMA", Linear(Bf16(4096, 4096), 896), kH200, LinearPath::kGemmTmaBf16},
      {"bf16, split-K", Linear(Bf16(4096, 4096), 33), kH200, LinearPath::kGemmSplitK},
      {"a tall matrix stays in split-K", Linear(tall, 64), kH200, LinearPath::kGemmSplitK},
      {"FP4 has no split-K: 9", Linear(Fp4(4096, 4096, true), 9), kH200, LinearPath::kGemmMma},
      {"FP4, 64", Linear(Fp4(4096, 4096, true), 64), kH200, LinearPath::kGemmMma},
      {"FP4, 65", Linear(Fp4(4096, 4096, true), 65), kH200, LinearPath::kGemmWgmma},
      {"FP4 never takes TMA", Linear(Fp4(4096, 4096, true), 4096), kH200, LinearPath::kGemmWgmma},
      {"tall FP4, 32", Linear(Fp4(132 * 128, 4096, true), 32), kH200, LinearPath::kGemmMma},
      {"tall FP4, 33", Linear(Fp4(132 * 128, 4096, true), 33), kH200, LinearPath::kGemmWgmma},
      {"one tile short of the SMs", Linear(Fp4(131 * 128, 4096, true), 33), kH200, LinearPath::kGemmMma},
      {"tall for a smaller device",
       Linear(Fp4(114 * 128, 4096, true), 33),
       {.num_sms = 114},
       LinearPath::kGemmWgmma},
      {"x that no 16 bytes begin at", crooked, kH200, LinearPath::kGemmMma},
      {"rows of x that lie crookedly", wide_stride, kH200, LinearPath::kGemmMma},
      {"fp32 activations", fp32, kH200, LinearPath::kGemmMma},
      {"rows that are no tiles of 16", Linear(Fp8(4096 + 8, 4096), 1), kH200, LinearPath::kGemmSplitK},
      {"columns that are no units", Linear(Bf16(64, 48), 1), kH200, LinearPath::kGemmMma},
      {"what no tensor core takes", Linear(General(64, 64), 1), kH200, LinearPath::kGemmFma},
      {"groups, few", Linear(Fp8(8192, 1024), 4, 8), kH200, LinearPath::kGemvStream},
      {"groups of odd tiles, TMA", Linear(Bf16(8 * 24, 1024), 2048, 8), kH200, LinearPath::kGemmWgmma},
      {"no wgmma: 9", Linear(fp8, 9), Blackwell(), LinearPath::kGemmMma},
      {"no wgmma: 2048", Linear(fp8, 2048), Blackwell(), LinearPath::kGemmMma},
      {"no wgmma: GEMV", Linear(fp8, 8), Blackwell(), LinearPath::kGemvStream},
      {"FP8 products, many: 255", Linear(fp8, 255), WithFp8(Fp8Products::kMany), LinearPath::kGemmWgmma},
      {"FP8 products, many: 256", Linear(fp8, 256), WithFp8(Fp8Products::kMany), LinearPath::kGemmTmaFp8},
      {"FP8 products, all: 1", Linear(fp8, 1), WithFp8(Fp8Products::kAll), LinearPath::kGemmTmaFp8},
      {"FP8 products want FP8", Linear(Bf16(4096, 4096), 2048), WithFp8(Fp8Products::kAll),
       LinearPath::kGemmTmaBf16},
      {"block scales, FP8", Linear(fp8, 1), Blackwell(BlockScaledMode::kFp8), LinearPath::kBlockScaled},
      {"block scales, bf16", Linear(Bf16(4096, 4096), 1), Blackwell(BlockScaledMode::kFp8),
       LinearPath::kGemvStream},
  };
  for (const Case& c : cases) EXPECT_EQ(ChooseLinear(c.shape, c.device).kernel, c.wanted) << c.what;
}

// Linears of one layer's activations [512, 4096] and the like: which of them gemm_wgmma takes, bit by bit.
TEST(ChooseLinears, TheFewestMicrosecondsTogether) {
  const DeviceWeight router = Bf16(256, 4096);
  const DeviceWeight gate = Fp8(2048, 4096);
  const auto choose = [](const std::vector<DeviceWeight>& weights, int64_t num_tokens,
                         bool first_in_splitk = false) {
    std::vector<LinearShape> shapes;
    for (const DeviceWeight& weight : weights) shapes.push_back(Linear(weight, num_tokens));
    for (const LinearShape& shape : shapes) EXPECT_TRUE(TakesSplitKOrWgmma(shape, kH200));
    uint32_t wgmma = 0;
    for (const auto& launch : ChooseLinears(shapes, first_in_splitk, kH200).wgmma)
      for (const size_t i : launch) wgmma |= 1U << i;
    return wgmma;
  };
  EXPECT_EQ(choose({gate, gate}, 512), 0b11U) << "one wave of tiles";
  EXPECT_EQ(choose({router, gate, gate}, 512), 0b110U) << "the router has too few tiles";
  EXPECT_EQ(choose({router, gate, gate}, 512, true), 0b110U);
  EXPECT_EQ(choose({gate, gate, router}, 512, true), 0b100U) << "one is split-K's, and so are those like it";
  EXPECT_EQ(choose({router, gate, gate}, 256), 0U) << "a second launch does not pay";
  EXPECT_EQ(choose({Fp8(1024, 4096), Fp8(512, 4096)}, 512), 0b11U);
  EXPECT_EQ(choose({Fp8(1024, 4096), Fp8(512, 4096)}, 128), 0U);
  EXPECT_EQ(choose({Fp8(32768, 1024), Fp8(8192, 1024)}, 512), 0U);
  EXPECT_FALSE(TakesSplitKOrWgmma(Linear(gate, 64), kH200));
  EXPECT_FALSE(TakesSplitKOrWgmma(Linear(gate, 896), kH200));
  // Alone it is the kernel that ChooseLinear names.
  for (const int64_t tokens : {65, 128, 129, 256, 512, 895}) {
    for (const DeviceWeight& weight : {gate, router, Fp8(4096, 8192), Fp8(32768, 1024)}) {
      if (!TakesSplitKOrWgmma(Linear(weight, tokens), kH200)) continue;
      EXPECT_EQ(choose({weight}, tokens) == 1U,
                ChooseLinear(Linear(weight, tokens), kH200).kernel == LinearPath::kGemmWgmma)
          << weight.rows << " x " << weight.cols << ", " << tokens;
    }
  }
}

TEST(ChooseLinears, OneLaunchOfWgmmaDiffersInRowsOnly) {
  const DeviceWeight fp8 = Fp8(2048, 4096);
  EXPECT_TRUE(ShareWgmma(fp8, Fp8(512, 4096)));
  EXPECT_FALSE(ShareWgmma(fp8, Bf16(2048, 4096)));
  DeviceWeight other = fp8;
  other.global_scale = 2.0F;
  EXPECT_TRUE(ShareWgmma(fp8, other));
  other.scale_dtype = DType::kBF16;
  EXPECT_FALSE(ShareWgmma(fp8, other));
  other = fp8;
  other.block_rows_log2 = 6;
  EXPECT_FALSE(ShareWgmma(fp8, other));
  other = fp8;
  other.x_group = 32;
  EXPECT_FALSE(ShareWgmma(fp8, other));
}

ExpertsShape Experts(int64_t num_tokens, bool nvfp4, bool sums) {
  return {.alike = true,
          .bulk_aligned = true,
          .w1 = Fp4(2048, 4096, nvfp4),
          .w2 = Fp4(4096, 2048, nvfp4),
          .num_tokens = num_tokens,
          .top_k = 6,
          .num_here = 256,
          .num_experts = 256,
          .x = AtAddress(16384),
          .x_dtype = DType::kBF16,
          .terms = AtAddress(65536),
          .sums = sums};
}

// MXFP4 in the order of the file.
ExpertsShape AsStored(ExpertsShape shape) {
  shape.w1.kind = shape.w2.kind = MatmulKind::kMmaMxFp4Stored;
  return shape;
}

ExpertsShape ExactInFp8(int64_t num_tokens) {
  ExpertsShape shape = AsStored(Experts(num_tokens, false, true));
  shape.exact_in_e4m3 = true;
  return shape;
}

TEST(ChooseExperts, OrderOfMxFp4ChoosesNoOtherKernel) {
  for (const int64_t tokens : {1, 8, 9, 64, 65, 256, 512, 8192}) {
    const ExpertsShape shape = Experts(tokens, false, true);
    EXPECT_EQ(ChooseExperts(AsStored(shape), kH200).kernel, ChooseExperts(shape, kH200).kernel) << tokens;
  }
}

TEST(ChooseExperts, ByTokensAndFormat) {
  struct Case {
    const char* what;
    ExpertsShape shape;
    DeviceLimits device;
    ExpertsPath wanted;
  };
  const auto with = [](ExpertsShape shape, auto&& change) {
    change(shape);
    return shape;
  };
  const auto narrow = [](ExpertsShape shape) {
    shape.w1 = Fp4(512, 1024, true);
    shape.w2 = Fp4(1024, 512, true);
    return shape;
  };
  const auto stored = [&](ExpertsShape shape, DeviceWeight (*make)(int64_t, int64_t)) {
    shape.w1 = make(2048, 4096);
    shape.w2 = make(4096, 2048);
    return shape;
  };
  const std::vector<Case> cases = {
      {"one token", Experts(1, true, true), kH200, ExpertsPath::kGemvJoint},
      {"eight", Experts(8, true, true), kH200, ExpertsPath::kGemvJoint},
      {"eight, terms", Experts(8, true, false), kH200, ExpertsPath::kGroupedGemvRuns},
      {"nine", Experts(9, true, true), kH200, ExpertsPath::kGroupedGemvRuns},
      {"33 choices a token", with(narrow(Experts(1, true, true)), [](auto& s) { s.top_k = 33; }), kH200,
       ExpertsPath::kGemvExperts},
      {"32 choices a token", with(narrow(Experts(1, true, true)), [](auto& s) { s.top_k = 32; }), kH200,
       ExpertsPath::kGemvJoint},
      {"choices whose rows fit no block", with(Experts(1, true, true), [](auto& s) { s.top_k = 24; }), kH200,
       ExpertsPath::kGroupedGemvRuns},
      {"not bulk aligned", with(Experts(1, true, true), [](auto& s) { s.bulk_aligned = false; }), kH200,
       ExpertsPath::kGemvExperts},
      {"mixed formats", with(Experts(1, true, true), [](auto& s) { s.alike = false; }), kH200,
       ExpertsPath::kRoutedExperts},
      {"FP8, few", stored(Experts(8, true, true), Fp8), kH200, ExpertsPath::kGemvExperts},
      {"FP8, some", stored(Experts(64, true, true), Fp8), kH200, ExpertsPath::kGroupedGemvStream},
      {"FP8, 65", stored(Experts(65, true, true), Fp8), kH200, ExpertsPath::kGroupedGemmWgmma},
      {"64 tokens", Experts(64, true, true), kH200, ExpertsPath::kGroupedGemvRuns},
      {"65 tokens, 390 assignments", Experts(65, true, true), kH200, ExpertsPath::kGroupedGemvRuns},
      {"165 tokens: runs take least", Experts(165, true, true), kH200, ExpertsPath::kGroupedGemvRuns},
      {"166 tokens: tiles of 32", Experts(166, true, true), kH200, ExpertsPath::kGroupedGemmNarrow},
      {"167 tokens, MXFP4", Experts(167, false, true), kH200, ExpertsPath::kGroupedGemvRuns},
      {"168 tokens, MXFP4", Experts(168, false, true), kH200, ExpertsPath::kGroupedGemmNarrow},
      {"188 tokens, terms of half of the experts",
       with(Experts(188, true, false), [](auto& s) { s.num_here = 128; }), kH200,
       ExpertsPath::kGroupedGemvRuns},
      {"189 tokens, terms of half of the experts",
       with(Experts(189, true, false), [](auto& s) { s.num_here = 128; }), kH200,
       ExpertsPath::kGroupedGemmNarrow},
      {"1489 tokens", Experts(1489, true, true), kH200, ExpertsPath::kGroupedGemmNarrow},
      {"1490 tokens: tiles of 128", Experts(1490, true, true), kH200, ExpertsPath::kGroupedGemmWide},
      {"columns of four ranks",
       with(Experts(216, true, false),
            [](auto& s) {
              s.w1 = Fp4(512, 4096, true);
              s.w2 = Fp4(4096, 512, true);
            }),
       kH200, ExpertsPath::kGroupedGemvRuns},
      {"rows that are no blocks of 256: 171",
       with(Experts(171, true, true), [](auto& s) { s.w1.rows = 1984; }), kH200,
       ExpertsPath::kGroupedGemmWgmma},
      {"no wgmma, 4 tokens each", Experts(170, true, true), Blackwell(), ExpertsPath::kGroupedGemvRuns},
      {"no wgmma, more", Experts(171, true, true), Blackwell(), ExpertsPath::kRoutedExperts},
      {"few experts: 4 tokens each",
       with(Experts(64, true, true), [](auto& s) { s.num_here = s.num_experts = 96; }), kH200,
       ExpertsPath::kGroupedGemvRuns},
      {"few experts: more than 4 tokens each",
       with(Experts(64, true, true), [](auto& s) { s.num_here = s.num_experts = 64; }), kH200,
       ExpertsPath::kGroupedGemmNarrow},
      {"MXFP4 wide", Experts(2048, false, true), kH200, ExpertsPath::kGroupedGemmWide},
      {"no wgmma", Experts(512, true, true), Blackwell(), ExpertsPath::kRoutedExperts},
      {"FP8 products, not exact", AsStored(Experts(8192, false, true)), WithFp8(Fp8Products::kMany),
       ExpertsPath::kGroupedGemmWide},
      {"FP8 products, exact", ExactInFp8(8192), WithFp8(Fp8Products::kMany), ExpertsPath::kGroupedGemmFp8},
      {"FP8 products, 127 each", ExactInFp8(5461), WithFp8(Fp8Products::kMany),
       ExpertsPath::kGroupedGemmWide},
      {"FP8 products, 128 each", ExactInFp8(5462), WithFp8(Fp8Products::kMany), ExpertsPath::kGroupedGemmFp8},
      {"FP8 products of NVFP4", with(Experts(8192, true, true), [](auto& s) { s.exact_in_e4m3 = true; }),
       WithFp8(Fp8Products::kAll), ExpertsPath::kGroupedGemmWide},
      {"FP8 products, all, one token", ExactInFp8(1), WithFp8(Fp8Products::kAll),
       ExpertsPath::kGroupedGemmFp8},
      {"block scales", AsStored(Experts(1, false, true)), Blackwell(BlockScaledMode::kFp8),
       ExpertsPath::kBlockScaled},
  };
  for (const Case& c : cases) EXPECT_EQ(ChooseExperts(c.shape, c.device).kernel, c.wanted) << c.what;
}

// More tokens a second with every size.
TEST(ChooseExperts, TokensASecondGrowWithTheBatch) {
  for (const bool nvfp4 : {true, false}) {
    double before = 1e9;
    for (const int64_t tokens : {65, 72, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 2048, 4096}) {
      const double of_token =
          ChooseExperts(Experts(tokens, nvfp4, true), kH200).microseconds / static_cast<double>(tokens);
      EXPECT_GT(of_token, 0.0) << tokens;
      EXPECT_LT(of_token, before) << tokens;
      before = of_token;
    }
  }
}

TEST(ChooseExperts, TilesOfAnExpert) {
  EXPECT_NEAR(TilesOfExpert(1.0, 1), 1.0, 1e-9);                      // All assignments.
  EXPECT_NEAR(TilesOfExpert(4.0, 1000), 1.0 - std::exp(-4.0), 1e-9);  // Whether there are any.
  EXPECT_NEAR(TilesOfExpert(6.0, 8), 1.15, 0.01);
}

TEST(ChooseExperts, TilesFitBesideTheRing) {
  EXPECT_EQ(RunTokensPerTile(Fp4(2048, 4096, true), Fp4(4096, 2048, true), kH200), 8);
  EXPECT_EQ(RunTokensPerTile(Fp4(3072, 7168, true), Fp4(7168, 3072, true), kH200), 4);
  EXPECT_EQ(RunTokensPerTile(Fp8(2048, 4096), Fp8(4096, 2048), kH200), 0);
  EXPECT_EQ(RunTokensPerTile(Fp4(2048, 4096, true), Fp4(4096, 2048, false), kH200), 0);
  EXPECT_EQ(StreamTokensPerTile(Fp8(2048, 4096), Fp8(4096, 2048)), 4);
  EXPECT_EQ(StreamTokensPerTile(Fp8(2048, 65536), Fp8(65536, 2048)), 1);
}

AttentionShape Attention(int64_t num_tokens, int64_t max_keys, int64_t head_dim = 512) {
  return {.dtype = DType::kBF16,
          .num_tokens = num_tokens,
          .num_heads = 64,
          .head_dim = head_dim,
          .max_keys = max_keys,
          .q = AtAddress(4096),
          .o = AtAddress(8192),
          .column_clusters = [](int blocks) { return int64_t{132 / blocks}; }};
}

TEST(ChooseAttention, ByTokensAndKeys) {
  struct Case {
    const char* what;
    AttentionShape shape;
    AttentionPath wanted;
  };
  AttentionShape crooked = Attention(65, 640);
  crooked.o = AtAddress(8192 + 8);
  AttentionShape crooked_q = Attention(2048, 4096);
  crooked_q.q = AtAddress(4096 + 2);
  AttentionShape fp32 = Attention(1, 128);
  fp32.dtype = DType::kF32;
  const std::vector<Case> cases = {
      {"one token", Attention(1, 640), AttentionPath::kDecodeCluster},
      {"8 tokens, the most keys", Attention(8, 2048), AttentionPath::kDecodeCluster},
      {"a key more", Attention(8, 2049), AttentionPath::kMma},
      {"9 tokens", Attention(9, 640), AttentionPath::kHopperClusterColumns},
      {"9 tokens, the most keys", Attention(9, 1280), AttentionPath::kHopperClusterColumns},
      {"9 tokens, a key more", Attention(9, 1281), AttentionPath::kMma},
      {"39 tokens, a key more", Attention(39, 1281), AttentionPath::kMma},
      {"40 tokens, a key more", Attention(40, 1281), AttentionPath::kHopperTwoPass},
      {"clusters of two fit", Attention(66, 640), AttentionPath::kHopperClusterColumns},
      {"clusters do not fit", Attention(67, 640), AttentionPath::kHopperInRegisters},
      {"many keys", Attention(67, 641), AttentionPath::kHopperTwoPass},
      {"crooked output", crooked, AttentionPath::kHopperClusterColumns},
      {"crooked queries", crooked_q, AttentionPath::kMma},
      {"another width", Attention(2048, 640, 128), AttentionPath::kMma},
      {"an odd width", Attention(1, 640, 64), AttentionPath::kAny},
      {"fp32", fp32, AttentionPath::kAny},
  };
  for (const Case& c : cases) EXPECT_EQ(ChooseAttention(c.shape, kH200).kernel, c.wanted) << c.what;
  EXPECT_EQ(ChooseAttention(Attention(2048, 640), Blackwell()).kernel, AttentionPath::kMma);
  // The release's packed rows take what wide ones take; others' are not read by Hopper's kernels.
  for (const auto& [num_tokens, max_keys] :
       {std::pair{1, 640}, {8, 2049}, {9, 640}, {66, 1280}, {67, 640}, {67, 641}, {2048, 4096}}) {
    AttentionShape packed = Attention(num_tokens, max_keys);
    const AttentionPath wide = ChooseAttention(packed, kH200).kernel;
    packed.rows = StoredForm::kRelease;
    EXPECT_EQ(ChooseAttention(packed, kH200).kernel, wide)
        << num_tokens << " tokens, " << max_keys << " keys";
    packed.rows = StoredForm::kAny;
    EXPECT_EQ(ChooseAttention(packed, kH200).kernel,
              wide == AttentionPath::kDecodeCluster ? wide : AttentionPath::kMma)
        << num_tokens << " tokens, " << max_keys << " keys";
  }
  EXPECT_EQ(BlocksOfColumns(Attention(16, 640)), 8);
  EXPECT_EQ(BlocksOfColumns(Attention(17, 640)), 4);
  EXPECT_EQ(BlocksOfColumns(Attention(33, 640)), 4);
  EXPECT_EQ(BlocksOfColumns(Attention(34, 640)), 2);
  EXPECT_EQ(BlocksOfColumns(Attention(67, 640)), 0);
}

// Room for 7 clusters of 16 blocks, 14 of 8 and 30 of 4, and 64 heads a token.
TEST(AttentionChoice, BlocksOfADecodeCluster) {
  const auto blocks = [](int64_t tiles, int64_t tokens) {
    return BlocksOfDecodeCluster(tiles, tokens * 4, [](int of) { return of == 16 ? 7 : of == 8 ? 14 : 30; });
  };
  EXPECT_EQ(blocks(2, 1), 8);
  EXPECT_EQ(blocks(8, 1), 8);
  EXPECT_EQ(blocks(12, 1), 16);
  EXPECT_EQ(blocks(32, 1), 16);
  EXPECT_EQ(blocks(12, 2), 8);  // All clusters of 16 have no room, and 8 take two tiles a block.
  EXPECT_EQ(blocks(3, 3), 8);
  EXPECT_EQ(blocks(3, 4), 4);  // 16 clusters: those of 8 would take turns.
  EXPECT_EQ(blocks(8, 4), 8);  // As many turns either way.
  EXPECT_EQ(blocks(12, 4), 4);
  EXPECT_EQ(blocks(12, 6), 4);
  EXPECT_EQ(blocks(24, 4), 8);  // A block of 4 would not hold its tiles.
  EXPECT_EQ(blocks(3, 8), 4);
  EXPECT_EQ(BlocksOfDecodeCluster(3, 16, [](int) { return 0; }), 8);
}

TEST(ChooseAttention, WidensRowsThatAreReadOften) {
  const auto widens = [](StoredForm rows, int64_t num_tokens, int64_t num_rows, int64_t num_reads) {
    return WidensFirst(
        {.rows = rows, .num_tokens = num_tokens, .num_rows = num_rows, .num_reads = num_reads});
  };
  EXPECT_TRUE(widens(StoredForm::kRelease, 512, 9000, 512 * 640));
  EXPECT_FALSE(widens(StoredForm::kWide, 512, 9000, 512 * 640));
  EXPECT_FALSE(widens(StoredForm::kAny, 512, 9000, 512 * 640));
  EXPECT_FALSE(widens(StoredForm::kRelease, 64, 128, 64 * 128)) << "few tokens";
  EXPECT_FALSE(widens(StoredForm::kRelease, 128, 128 * 640, 128 * 640))
      << "one token of each of many sequences";
  EXPECT_FALSE(widens(StoredForm::kRelease, 4096, 65537, 4096 * 640)) << "more than memory is taken for";
}

TEST(ChooseAttention, PartsByWidth) {
  const auto part = [](DType dtype, int64_t head_dim) {
    return ChooseAttentionPart({.dtype = dtype, .head_dim = head_dim}, kH200).kernel;
  };
  EXPECT_EQ(part(DType::kBF16, 512), AttentionPartPath::kMma);
  EXPECT_EQ(part(DType::kBF16, 128), AttentionPartPath::kMma);
  EXPECT_EQ(part(DType::kBF16, 256), AttentionPartPath::kAny);
  EXPECT_EQ(part(DType::kF32, 512), AttentionPartPath::kAny);
}

TEST(ChooseAttention, SizesGoInSteps) {
  const std::map<int64_t, int64_t> steps = {{0, 1}, {1, 1}, {2, 2},  {3, 3},   {4, 4},
                                            {5, 6}, {7, 8}, {9, 12}, {13, 16}, {25, 32}};
  for (const auto& [count, wanted] : steps) EXPECT_EQ(InSteps(count), wanted) << count;
}

TEST(ChooseRows, ByRowsAndTokens) {
  const auto heads = [](int64_t tokens, int64_t count, int64_t width) {
    return HeadsShape{
        .num_tokens = tokens, .num_heads = count, .width = width, .x = AtAddress(64), .y = AtAddress(64)};
  };
  EXPECT_EQ(FirstFit(HeadNormRules(), heads(256, 64, 512), kH200).kernel, HeadsPath::kRows);
  EXPECT_EQ(FirstFit(HeadNormRules(), heads(257, 64, 512), kH200).kernel, HeadsPath::kManyHeads);
  EXPECT_EQ(FirstFit(HeadNormRules(), heads(257, 7, 512), kH200).kernel, HeadsPath::kRows);
  EXPECT_EQ(FirstFit(HeadNormRules(), heads(257, 8, 256), kH200).kernel, HeadsPath::kRows);
  EXPECT_EQ(FirstFit(RopeRules(), heads(257, 8, 256), kH200).kernel, HeadsPath::kManyHeads);
  EXPECT_EQ(FirstFit(RopeRules(), heads(256, 8, 256), kH200).kernel, HeadsPath::kRows);
  const auto rows = [](int64_t num_rows, bool norm, bool of_heads) {
    return RowsShape{.num_rows = num_rows, .norm_first = norm, .of_heads = of_heads};
  };
  EXPECT_EQ(FirstFit(RowsRules(), rows(1023, false, true), kH200).kernel, RowsPath::kRowTracks);
  EXPECT_EQ(FirstFit(RowsRules(), rows(1024, false, true), kH200).kernel, RowsPath::kHeadRows);
  EXPECT_EQ(FirstFit(RowsRules(), rows(256, true, false), kH200).kernel, RowsPath::kRowTracks);
  EXPECT_EQ(FirstFit(RowsRules(), rows(257, true, false), kH200).kernel, RowsPath::kManyRows);
  const auto elements = [](int64_t count) {
    return ElementsShape{
        .count = count, .width = 1024, .a = AtAddress(16), .b = AtAddress(16), .y = AtAddress(16)};
  };
  EXPECT_EQ(FirstFit(SwigluRules(), elements((1 << 20) - 8), kH200).kernel, ElementsPath::kEach);
  EXPECT_EQ(FirstFit(SwigluRules(), elements(1 << 20), kH200).kernel, ElementsPath::kSeveral);
  EXPECT_EQ(FirstFit(MoeCombineRules(), elements((1 << 20) - 4), kH200).kernel, ElementsPath::kEach);
  EXPECT_EQ(FirstFit(MoeCombineRules(), elements(1 << 20), kH200).kernel, ElementsPath::kSeveral);
}

TEST(ChooseRows, ScalesPoolsAndStores) {
  const auto scale = [](int64_t count) { return FirstFit(ScaleRules(), {.count = count}, kH200).kernel; };
  EXPECT_EQ(scale(16384), ScalePath::kRows);
  EXPECT_EQ(scale(16385), ScalePath::kEach);

  const auto pool = [](DType dtype, int64_t tokens, int64_t width) {
    return FirstFit(PoolRules(), {.dtype = dtype, .tokens_of_entry = tokens, .width = width}, kH200).kernel;
  };
  EXPECT_EQ(pool(DType::kBF16, 8, 512), PoolPath::kRows) << "ratio 4 with overlap";
  EXPECT_EQ(pool(DType::kBF16, 9, 512), PoolPath::kPool);
  EXPECT_EQ(pool(DType::kBF16, 128, 512), PoolPath::kPool);
  EXPECT_EQ(pool(DType::kBF16, 8, 513), PoolPath::kPool);
  EXPECT_EQ(pool(DType::kBF16, 8, 510), PoolPath::kPool) << "not by four columns";
  EXPECT_EQ(pool(DType::kF32, 8, 512), PoolPath::kPool);

  const StoreShape rows = {.dtype = DType::kBF16, .num_runs = 64, .continues_rows = true};
  const auto store = [&](auto&& change) {
    StoreShape shape = rows;
    change(shape);
    return FirstFit(StoreRules(), shape, kH200).kernel;
  };
  EXPECT_EQ(store([](StoreShape&) {}), StorePath::kRows);
  EXPECT_EQ(store([](StoreShape& s) { s.packs = true; }), StorePath::kRows);
  EXPECT_EQ(store([](StoreShape& s) { s.dtype = DType::kF32; }), StorePath::kRows);
  EXPECT_EQ(store([](StoreShape& s) { s.num_runs = 65; }), StorePath::kCopy);
  EXPECT_EQ(store([](StoreShape& s) { s.continues_rows = false; }), StorePath::kCopy);
  EXPECT_EQ(store([](StoreShape& s) { s.dtype = DType::kI32; }), StorePath::kCopy) << "no numbers of steps";
  EXPECT_EQ(store([](StoreShape& s) {
              s.packs = true;
              s.continues_rows = false;
            }),
            StorePath::kPack);
  EXPECT_EQ(store([](StoreShape& s) {
              s.packs = true;
              s.scale = CacheScale::kE4m3;
            }),
            StorePath::kPack)
      << "scales that are no powers of two";

  EXPECT_TRUE(PacksInRegisters(CacheFormat::Fp8(448, 64), 512));
  EXPECT_FALSE(PacksInRegisters(CacheFormat::Fp8(448, 64), 513));
  EXPECT_TRUE(PacksInRegisters(CacheFormat::Fp8(448, 32), 512));
  EXPECT_FALSE(PacksInRegisters(CacheFormat::Fp8(448, 16), 512));
  EXPECT_TRUE(PacksInRegisters(CacheFormat::Fp4(128, 32), 128));
  EXPECT_FALSE(PacksInRegisters(CacheFormat::Fp4(96, 32), 128)) << "columns that have no codes";
}

// The last rule takes everything, and no reason is empty.
TEST(KernelTable, HasARowForEveryShape) {
  EXPECT_EQ(ChooseLinear({}, kH200).kernel, LinearPath::kGemmFma);
  EXPECT_EQ(ChooseExperts({.num_experts = 1}, kH200).kernel, ExpertsPath::kRoutedExperts);
  for (const KernelRow& row : KernelTable()) {
    EXPECT_NE(std::string(row.file).find('/'), std::string::npos) << row.op;
    EXPECT_FALSE(std::string(row.when).empty()) << row.op;
  }
}

// The part of a document between its markers; with DSV4_WRITE_DOCS=1 it is written anew.
void ExpectInDocument(const std::string& path, const std::string& table) {
  constexpr std::string_view kBegin = "<!-- rules: begin -->\n";
  constexpr std::string_view kEnd = "<!-- rules: end -->";
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t begin = text.find(kBegin);
  const size_t end = text.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos && begin < end)
      << path << ": no markers";
  const size_t first = begin + kBegin.size();
  const char* const write = std::getenv("DSV4_WRITE_DOCS");
  if (write != nullptr && std::string_view(write) == "1") {
    text.replace(first, end - first, table);
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text.substr(first, end - first), table)
      << path << " is stale: DSV4_WRITE_DOCS=1 kernel_choice_test";
}

TEST(KernelTable, TheDocumentsHaveIt) {
  ExpectInDocument("docs/cuda/kernels.md", KernelTableMarkdown());
  ExpectInDocument("docs/cuda/fusion.md", FusionTableMarkdown());
}

TEST(FusionRules, RowsStandInTheOrderOfTheirNames) {
  for (size_t i = 0; i < FusionRows().size(); ++i) EXPECT_EQ(static_cast<size_t>(FusionRows()[i].rule), i);
  EXPECT_EQ(FusionRows().size(), static_cast<size_t>(FusionRule::kAttentionOverRanks) + 1);
}

}  // namespace
}  // namespace dsv4::backend::cuda
