// Kernels for DeepSeek-V4.1's weights and activations: FP8 in blocks of 32 x 32, MXFP4, groups of 32 columns.
#include <gtest/gtest.h>

#include <vector>

#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/lowering/select/estimate.h"
#include "backend/cuda/lowering/select/experts.h"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/lowering/select/linear.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/lowering/select_testing.h"

namespace dsv4::backend::cuda {
namespace {

LinearShape Linear(const DeviceWeight& weight, int64_t num_tokens, int64_t num_groups = 1) {
  return {.weight = weight,
          .num_groups = num_groups,
          .num_tokens = num_tokens,
          .x = WeightData(),
          .x_dtype = DType::kBF16,
          .x_stride = weight.cols * num_groups};
}

// As stored, with scales as a release has them.
Weight Stored(WeightFormat format, int64_t rows, int64_t cols) {
  static uint8_t byte = 0;
  Weight weight{.format = format, .rows = rows, .cols = cols, .activation = ActivationQuant::kFp8Columns32};
  weight.scale_codes = {.least = 110, .largest = 122};
  switch (format) {
    case WeightFormat::kFp8Block:
      weight.block_rows = weight.block_cols = 32;
      weight.data = TensorView::Contiguous(&byte, DType::kF8E4M3, {rows, cols});
      weight.scale = TensorView::Contiguous(&byte, DType::kF8E8M0, {(rows + 31) / 32, (cols + 31) / 32});
      break;
    case WeightFormat::kMxFp4:
      weight.data = TensorView::Contiguous(&byte, DType::kI8, {rows, cols / 2});
      weight.scale = TensorView::Contiguous(&byte, DType::kF8E8M0, {rows, cols / 32});
      break;
    default:
      weight.data = TensorView::Contiguous(&byte, DType::kBF16, {rows, cols});
      weight.activation = ActivationQuant::kNone;
  }
  return weight;
}

// A kernel's view of a weight.
DeviceWeight OnDevice(const Weight& weight) {
  DeviceWeight device = MakeDeviceWeight(weight, DType::kBF16);
  device.data = WeightData();
  device.scale = WeightScale();
  return device;
}

// Scales by which a code's bits cannot be multiplied at once take fp32 multiply-adds: beyond 2 of MXFP4, 128 of FP8.
TEST(ChooseLinearOfV41, LargeScalesTakeFp32) {
  for (const WeightFormat format : {WeightFormat::kMxFp4, WeightFormat::kFp8Block}) {
    Weight weight = Stored(format, 1280, 5120);
    const uint8_t most = format == WeightFormat::kMxFp4 ? 128 : 134;
    for (const int more : {0, 1}) {
      weight.scale_codes.largest = static_cast<uint8_t>(most + more);
      EXPECT_EQ(ChooseLinear(Linear(OnDevice(weight), 1), kH200).kernel == LinearPath::kGemmFma, more == 1);
    }
  }
}

// Every linear of DeepSeek-V4.1-Flash in every size, on tensor cores.
TEST(ChooseLinearOfV41, NoneTakesFp32) {
  const std::vector<Weight> weights = {
      Stored(WeightFormat::kFp8Block, 1280, 5120),  Stored(WeightFormat::kFp8Block, 32768, 1280),
      Stored(WeightFormat::kFp8Block, 512, 5120),   Stored(WeightFormat::kFp8Block, 5120, 8192),
      Stored(WeightFormat::kFp8Block, 4096, 1280),  Stored(WeightFormat::kFp8Block, 2304, 5120),
      Stored(WeightFormat::kFp8Block, 5120, 2304),  Stored(WeightFormat::kFp8Block, 25600, 6144),
      Stored(WeightFormat::kFp8Block, 5120, 15360), Stored(WeightFormat::kPlain, 512, 5120),
      Stored(WeightFormat::kPlain, 128, 512),       Stored(WeightFormat::kPlain, 32, 5120),
      Stored(WeightFormat::kPlain, 384, 5120),      Stored(WeightFormat::kPlain, 129280, 5120),
      Stored(WeightFormat::kPlain, 129280, 256),    Stored(WeightFormat::kMxFp4, 2304, 5120),
      Stored(WeightFormat::kMxFp4, 5120, 2304)};
  for (const Weight& weight : weights) {
    for (const int64_t tokens : {1, 2, 8, 9, 64, 65, 512, 1023, 1024, 8192}) {
      for (const DeviceLimits& device : {kH200, Blackwell(), DeviceLimits{.compute_capability = 80}}) {
        EXPECT_NE(ChooseLinear(Linear(OnDevice(weight), tokens), device).kernel, LinearPath::kGemmFma)
            << "[" << weight.rows << ", " << weight.cols << "], " << tokens << " tokens, compute capability "
            << device.compute_capability;
      }
    }
  }
  // wo_a: eight groups.
  Weight wo_a = Stored(WeightFormat::kFp8Block, 8192, 4096);
  for (const int64_t tokens : {1, 64, 2048})
    EXPECT_NE(ChooseLinear(Linear(OnDevice(wo_a), tokens, 8), kH200).kernel, LinearPath::kGemmFma) << tokens;
}

// FP8 stays FP8 in memory, and has the fast kernels; a row's products are the same in all of them.
TEST(ChooseLinearOfV41, Fp8InBlocksOf32IsWidenedInRegisters) {
  const DeviceWeight q_a = OnDevice(Stored(WeightFormat::kFp8Block, 1280, 5120));
  EXPECT_EQ(q_a.kind, MatmulKind::kMmaMxFp8);
  EXPECT_EQ(q_a.x_group, 32);
  const auto kernel = [&](const DeviceWeight& weight, int64_t tokens, int64_t groups = 1) {
    return ChooseLinear(Linear(weight, tokens, groups), kH200).kernel;
  };
  EXPECT_EQ(kernel(q_a, 1), LinearPath::kGemvStream);
  EXPECT_EQ(kernel(q_a, 8), LinearPath::kGemvStream);
  EXPECT_EQ(kernel(q_a, 9), LinearPath::kGemmSplitK);
  EXPECT_EQ(kernel(q_a, 64), LinearPath::kGemmSplitK);
  EXPECT_EQ(kernel(q_a, 1024), LinearPath::kGemmTmaBf16);
  DeviceWeight wo_a = OnDevice(Stored(WeightFormat::kFp8Block, 8192, 4096));
  wo_a.x_group = 0;
  wo_a.quantized_x = false;
  EXPECT_EQ(kernel(wo_a, 1, 8), LinearPath::kGemvStream);
  EXPECT_EQ(kernel(wo_a, 64, 8), LinearPath::kGemmSplitK);
  EXPECT_EQ(kernel(wo_a, 2048, 8), LinearPath::kGemmTmaBf16);
  // Segments of three units: split-K takes them by two.
  const DeviceWeight q_b = OnDevice(Stored(WeightFormat::kFp8Block, 32768, 1280));
  EXPECT_EQ(kernel(q_b, 8), LinearPath::kGemvStream);
  EXPECT_EQ(kernel(q_b, 9), LinearPath::kGemmMma);
  EXPECT_EQ(kernel(q_b, 33), LinearPath::kGemmWgmma);
  // Blocks of other sizes, other scales.
  Weight odd = Stored(WeightFormat::kFp8Block, 1280, 5120);
  odd.block_cols = 16;
  EXPECT_EQ(KindOf(odd, DType::kBF16), MatmulKind::kGeneral);
  odd = Stored(WeightFormat::kFp8Block, 1280, 5120);
  odd.scale.dtype = DType::kF32;
  EXPECT_EQ(KindOf(odd, DType::kBF16), MatmulKind::kGeneral);
}

// Products in FP8 round activations by 128 columns: they leave groups of 32 alone.
TEST(ChooseLinearOfV41, ProductsInFp8LeaveGroupsOf32Alone) {
  Weight fp8 = Stored(WeightFormat::kFp8Block, 4096, 4096);
  fp8.block_rows = fp8.block_cols = 128;
  for (const Weight& weight : {fp8, Stored(WeightFormat::kMxFp4, 4096, 4096)}) {
    const DeviceWeight device = OnDevice(weight);
    ASSERT_EQ(device.x_group, 32);
    for (const int64_t tokens : {1, 9, 65, 300, 2048}) {
      const auto kernel = ChooseLinear(Linear(device, tokens), kH200).kernel;
      EXPECT_NE(kernel, LinearPath::kGemmFma);
      for (const DeviceLimits& limits : {WithFp8(Fp8Products::kAll), WithFp8(Fp8Products::kMany)})
        EXPECT_EQ(ChooseLinear(Linear(device, tokens), limits).kernel, kernel) << tokens;
      for (const BlockScaledMode mode : {BlockScaledMode::kFp8, BlockScaledMode::kFp4})
        EXPECT_NE(ChooseLinear(Linear(device, tokens), Blackwell(mode)).kernel, LinearPath::kBlockScaled);
    }
  }
}

ExpertsShape Experts(int64_t num_tokens, int64_t num_experts) {
  return {.alike = true,
          .bulk_aligned = true,
          .w1 = Fp4(2304, 5120, false),
          .w2 = Fp4(5120, 2304, false),
          .num_tokens = num_tokens,
          .top_k = 6,
          .num_here = num_experts,
          .num_experts = num_experts,
          .x = WeightData(),
          .x_dtype = DType::kBF16,
          .terms = WeightData(),
          .sums = true};
}

// As with groups of 128, but for the options.
TEST(ChooseExpertsOfV41, HaveTheKernelsOfMxFp4) {
  for (const int64_t tokens : {1, 8, 64, 65, 4096}) {
    ExpertsShape shape = Experts(tokens, 384);
    const auto kernel = ChooseExperts(shape, kH200).kernel;
    EXPECT_NE(kernel, ExpertsPath::kRoutedExperts) << tokens;
    shape.w1.x_group = shape.w2.x_group = 32;
    for (const DeviceLimits& limits : {kH200, WithFp8(Fp8Products::kAll)})
      EXPECT_EQ(ChooseExperts(shape, limits).kernel, kernel) << tokens;
    for (const BlockScaledMode mode : {BlockScaledMode::kFp8, BlockScaledMode::kFp4})
      EXPECT_NE(ChooseExperts(shape, Blackwell(mode)).kernel, ExpertsPath::kBlockScaled) << tokens;
  }
}

// Between a few tokens and tiles of many, however many experts share them.
TEST(ChooseExpertsOfV41, FewExpertsHaveFastKernelsToo) {
  for (const int64_t num_experts : {8, 16, 48, 64, 128, 384}) {
    for (const int64_t tokens : {1, 8, 9, 16, 33, 64, 65, 512}) {
      const ExpertsShape shape = Experts(tokens, num_experts);
      EXPECT_NE(ChooseExperts(shape, kH200).kernel, ExpertsPath::kRoutedExperts)
          << num_experts << " experts, " << tokens << " tokens";
    }
  }
}

// As many tokens as a pass can have, also where experts are few: the mean of an expert's is in the thousands.
TEST(ChooseExpertsOfV41, ManyTokensTakeWideTiles) {
  for (const int64_t num_experts : {8, 48, 384}) {
    for (const int64_t tokens : {8192, 65536}) {
      const ExpertsShape shape = Experts(tokens, num_experts);
      EXPECT_EQ(ChooseExperts(shape, kH200).kernel, ExpertsPath::kGroupedGemmWide)
          << num_experts << " experts, " << tokens << " tokens";
      double before = 0.0;
      for (int64_t few = tokens / 64; few <= tokens; few *= 2) {
        ExpertsShape of_few = shape;
        of_few.num_tokens = few;
        const double time = ExpertsMicroseconds(ExpertsPath::kGroupedGemmWide, of_few, kH200);
        EXPECT_GE(time, before) << few;
        before = time;
      }
    }
  }
}

// A few tokens read rows as they are stored; Hopper's kernels want them widened in front.
TEST(ChooseAttentionOfV41, RowsAreWidenedFromNineTokensOn) {
  const auto widens = [](int64_t num_tokens, int64_t num_rows, int64_t num_reads) {
    return WidensFirst(
        {.rows = StoredForm::kV41, .num_tokens = num_tokens, .num_rows = num_rows, .num_reads = num_reads});
  };
  EXPECT_TRUE(widens(9, 640, 9 * 640));
  EXPECT_FALSE(widens(8, 640, 8 * 640));
  EXPECT_FALSE(widens(64, 64 * 640, 64 * 640)) << "a token of each of many sequences";
  EXPECT_TRUE(widens(2048, 262144, 2048 * 640));
  EXPECT_FALSE(widens(2048, 262145, 2048 * 640));
  AttentionShape shape = {.num_tokens = 1, .num_heads = 64, .head_dim = 512, .max_keys = 640};
  shape.rows = StoredForm::kV41;
  EXPECT_EQ(ChooseAttention(shape, kH200).kernel, AttentionPath::kDecodeCluster);
  shape.num_tokens = 2048;
  EXPECT_EQ(ChooseAttention(shape, kH200).kernel, AttentionPath::kMma);
}

// One launch that scores and chooses knows no candidate blocks.
TEST(ChooseIndexerOfV41, CandidateBlocksAreChosenBehindScores) {
  IndexerShape shape = {.num_tokens = 1,
                        .num_sequences = 1,
                        .num_heads = 32,
                        .width = 128,
                        .max_visible = 4096,
                        .top_k = 512,
                        .keys = StoredForm::kRelease,
                        .rows_per_page = 64,
                        .clusters = [](int) { return 8; }};
  EXPECT_EQ(ChooseIndexer(shape, kH200).kernel, IndexerPath::kCluster);
  shape.blocks = true;
  EXPECT_EQ(ChooseIndexer(shape, kH200).kernel, IndexerPath::kMma);
}

TEST(ChooseRowsOfV41, RoundingOfManyRowsIsALaunch) {
  const auto kernel = [](int64_t num_rows, int64_t group, DType dtype = DType::kBF16) {
    return FirstFit(RoundRules(),
                    {.dtype = dtype, .num_rows = num_rows, .width = 512, .group = group, .x = WeightData()},
                    kH200)
        .kernel;
  };
  EXPECT_EQ(kernel(1023, 32), RoundPath::kRows);
  EXPECT_EQ(kernel(1024, 32), RoundPath::kEights);
  EXPECT_EQ(kernel(1024, 16), RoundPath::kEights);
  EXPECT_EQ(kernel(1024, 64), RoundPath::kRows);
  EXPECT_EQ(kernel(1024, 32, DType::kF32), RoundPath::kRows);
  EXPECT_TRUE(PacksInRegisters(CacheFormat::Fp8(512, 32), 512));
  EXPECT_FALSE(PacksInRegisters(CacheFormat::Fp4WithE4m3Scales(512, 16), 512));
}

}  // namespace
}  // namespace dsv4::backend::cuda
