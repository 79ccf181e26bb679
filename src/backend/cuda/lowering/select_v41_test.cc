// Kernels for DeepSeek-V4.1's weights and activations: FP8 in blocks of 32 x 32, MXFP4, groups of 32 columns.
#include <gtest/gtest.h>

#include <vector>

#include "backend/cuda/lowering/select/experts.h"
#include "backend/cuda/lowering/select/linear.h"
#include "backend/cuda/lowering/select_testing.h"

namespace dsv4::backend::cuda {
namespace {

constexpr DeviceLimits kH200;
DeviceLimits Blackwell(BlockScaledMode mode = BlockScaledMode::kOff) {
  return {.compute_capability = 100, .num_sms = 148, .block_scaled = mode};
}
DeviceLimits WithFp8(Fp8Products mode) { return {.fp8_products = mode}; }

LinearShape Linear(const DeviceWeight& weight, int64_t num_tokens, int64_t num_groups = 1) {
  return {.weight = weight,
          .num_groups = num_groups,
          .num_tokens = num_tokens,
          .x = WeightData(),
          .x_dtype = DType::kBF16,
          .x_stride = weight.cols * num_groups};
}

// As stored, before prepare_weight.
Weight Stored(WeightFormat format, int64_t rows, int64_t cols) {
  static uint8_t byte = 0;
  Weight weight{.format = format, .rows = rows, .cols = cols, .activation = ActivationQuant::kFp8Columns32};
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

// The kernel's view of a weight behind prepare_weight, in front of activations that a launch of their own has rounded.
DeviceWeight Prepared(Weight weight) {
  if (WidensToBf16(weight)) {
    weight.format = WeightFormat::kPlain;
    weight.data.dtype = DType::kBF16;
    weight.scale = {};
  }
  weight.activation = ActivationQuant::kNone;
  DeviceWeight device = MakeDeviceWeight(weight, DType::kBF16);
  device.data = WeightData();
  device.scale = WeightScale();
  return device;
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
        EXPECT_NE(ChooseLinear(Linear(Prepared(weight), tokens), device).kernel, LinearPath::kGemmFma)
            << "[" << weight.rows << ", " << weight.cols << "], " << tokens << " tokens, compute capability "
            << device.compute_capability;
      }
    }
  }
  // wo_a: eight groups.
  Weight wo_a = Stored(WeightFormat::kFp8Block, 8192, 4096);
  for (const int64_t tokens : {1, 64, 2048})
    EXPECT_NE(ChooseLinear(Linear(Prepared(wo_a), tokens, 8), kH200).kernel, LinearPath::kGemmFma) << tokens;
  // As stored it would.
  EXPECT_EQ(KindOf(weights[0], DType::kBF16), MatmulKind::kGeneral);
}

// A kernel that rounds activations by 128 columns never meets those of 32.
TEST(ChooseLinearOfV41, KernelsThatRoundBy128LeaveGroupsOf32Alone) {
  Weight fp8 = Stored(WeightFormat::kFp8Block, 4096, 4096);
  fp8.block_rows = fp8.block_cols = 128;
  for (const Weight& weight : {fp8, Stored(WeightFormat::kMxFp4, 4096, 4096)}) {
    DeviceWeight device = MakeDeviceWeight(weight, DType::kBF16);
    device.data = WeightData();
    device.scale = WeightScale();
    ASSERT_EQ(device.x_group, 32);
    for (const int64_t tokens : {1, 9, 65, 300, 2048}) {
      for (const DeviceLimits& limits : {kH200, WithFp8(Fp8Products::kAll), Blackwell(BlockScaledMode::kFp8),
                                         Blackwell(BlockScaledMode::kFp4)})
        EXPECT_EQ(ChooseLinear(Linear(device, tokens), limits).kernel, LinearPath::kGemmMma) << tokens;
    }
  }
}

TEST(ChooseExpertsOfV41, GroupsOf32AreRoundedInFront) {
  for (const int64_t tokens : {1, 8, 64, 65, 4096}) {
    ExpertsShape shape = {.alike = true,
                          .bulk_aligned = true,
                          .w1 = Fp4(2304, 5120, false),
                          .w2 = Fp4(5120, 2304, false),
                          .num_tokens = tokens,
                          .top_k = 6,
                          .num_here = 384,
                          .num_experts = 384,
                          .x = WeightData(),
                          .x_dtype = DType::kBF16,
                          .terms = WeightData(),
                          .sums = true};
    EXPECT_NE(ChooseExperts(shape, kH200).kernel, ExpertsPath::kRoutedExperts) << tokens;
    shape.w1.x_group = shape.w2.x_group = 32;
    for (const DeviceLimits& limits : {kH200, WithFp8(Fp8Products::kAll), Blackwell(BlockScaledMode::kFp8),
                                       Blackwell(BlockScaledMode::kFp4)})
      EXPECT_EQ(ChooseExperts(shape, limits).kernel, ExpertsPath::kRoutedExperts) << tokens;
  }
}

}  // namespace
}  // namespace dsv4::backend::cuda
