// Products on Blackwell's block-scaled tensor cores against the reference. Never run: no such card has been
// at hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "tests/cuda/device_tensors.h"

namespace dsv4::testing {
namespace {

using backend::cuda::BlockScaledMode;

// Every test of the program: none runs without a card of this generation, and CTest says so.
class NeedsBlackwell final : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto devices = backend::CudaDevices();
    if (devices.empty() || devices.front().major != 10 || !backend::HasCodeFor(devices.front()))
      GTEST_SKIP() << "no CUDA device of capability 10.0 that this build has code for";
  }
};
const ::testing::Environment* const kNeedsBlackwell = ::testing::AddGlobalTestEnvironment(new NeedsBlackwell);

std::vector<float> Floats(Device& device, const TensorView& view) {
  const std::vector<std::byte> bytes = device.Bytes(view);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// A sum of some thousand products in fp32 is off by about 1e-6 of itself. Hopper's tensor cores (wgmma),
// which keeps about 13 bits of FP8 sums, would be off by 1e-4.
constexpr double kFp32Sums = 1e-5;

// Rows of x as block_scaled.h rounds them in front of NVFP4 weights: a factor of its own for every row.
std::vector<float> RoundedToNvFp4(const std::vector<float>& x, int64_t cols) {
  std::vector<float> rounded(x.size());
  for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(cols)) {
    const QuantizedMatrix row =
        QuantizeNvFp4(std::span(x).subspan(begin, static_cast<size_t>(cols)), 1, cols);
    DequantizeRow(row.View(), 0, rounded.data() + begin);
  }
  return rounded;
}

TensorView HostView(std::vector<float>& values, const Shape& shape) {
  return TensorView::Contiguous(values.data(), DType::kF32, shape);
}

void ExpectLinear(BlockScaledMode mode, Format format, int64_t rows, int64_t cols) {
  constexpr int64_t kTokens = 150;
  const std::string what = FormatText(format) + ", " + std::to_string(rows) + " x " + std::to_string(cols);
  Device device({.block_scaled = mode});
  const ops::Backend judge = backend::MakeReferenceBackend(1);
  HostWeight host = RandomHostWeight(format, rows, cols, 3);
  const Weight weight = device.Prepare(host.weight);
  std::vector<float> x = Normals(kTokens * cols, 4);
  // Rows of very different sizes: what one is rounded to must not touch another.
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t c = 0; c < cols; ++c)
      x[static_cast<size_t>(t * cols + c)] *= std::ldexp(1.0F, static_cast<int>(t % 9));
  }
  const std::vector<uint16_t> bits = Bf16s(x);
  std::transform(bits.begin(), bits.end(), x.begin(), FloatFromBf16);
  const DeviceTensor device_x = device.Copy(DType::kBF16, {kTokens, cols}, bits);
  const DeviceTensor y = device.New(DType::kF32, {kTokens, rows});
  ExpectTheSameInAnyCut(device, y.view, what, [&](const Cut& cut) {
    return device.table().linear(device.context(),
                                 {.x = Rows(device_x.view, cut), .weight = &weight, .y = Rows(y.view, cut)});
  });

  if (mode == BlockScaledMode::kFp4) x = RoundedToNvFp4(x, cols);
  std::vector<float> want(static_cast<size_t>(kTokens * rows));
  const Status status = judge.table.linear(
      *judge.context,
      {.x = HostView(x, {kTokens, cols}), .weight = &host.weight, .y = HostView(want, {kTokens, rows})});
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_LT(RelativeError(Floats(device, y.view), want), kFp32Sums) << what;
}

TEST(CudaBlockScaled, LinearWithActivationsInFp8) {
  for (const Format format : {Format::kFp8, Format::kMxFp4}) {
    for (const int64_t cols : {int64_t{128}, int64_t{1152}, int64_t{4096}}) {
      ExpectLinear(BlockScaledMode::kFp8, format, 65, cols);
      ExpectLinear(BlockScaledMode::kFp8, format, 384, cols);
    }
  }
}

TEST(CudaBlockScaled, LinearWithActivationsInNvFp4) {
  for (const Format format : {Format::kNvFp4, Format::kNvFp4Divides}) {
    for (const int64_t cols : {int64_t{256}, int64_t{1280}, int64_t{4096}}) {
      ExpectLinear(BlockScaledMode::kFp4, format, 65, cols);
      ExpectLinear(BlockScaledMode::kFp4, format, 384, cols);
    }
  }
}

TEST(CudaBlockScaled, ScalesOfEveryRowAndBlockAreTheirOwn) {
  // Weights of 1 with scales that all differ, times rows of which one block of 32 columns is 1: each result
  // is one scale.
  constexpr int64_t kRows = 160;
  constexpr int64_t kCols = 512;
  constexpr int64_t kBlocks = kCols / kMxFp4Block;
  Device device({.block_scaled = BlockScaledMode::kFp8});
  HostWeight host = RandomHostWeight(Format::kMxFp4, kRows, kCols, 1);
  std::fill(host.matrix.data.begin(), host.matrix.data.end(), uint8_t{0x22});
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t block = 0; block < kBlocks; ++block)
      host.matrix.scale[static_cast<size_t>(row * kBlocks + block)] =
          static_cast<uint8_t>(100 + (row * 7 + block * 3) % 41);
  }
  const Weight weight = device.Prepare(host.weight);
  std::vector<float> x(static_cast<size_t>(kBlocks * kCols));
  for (int64_t i = 0; i < kBlocks * kCols; ++i)
    x[static_cast<size_t>(i)] = i / kCols == i % kCols / kMxFp4Block ? 1.0F : 0.0F;
  const DeviceTensor device_x = device.Copy(DType::kBF16, {kBlocks, kCols}, Bf16s(x));
  const DeviceTensor y = device.New(DType::kF32, {kBlocks, kRows});
  const Status status =
      device.table().linear(device.context(), {.x = device_x.view, .weight = &weight, .y = y.view});
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::vector<float> got = Floats(device, y.view);
  int64_t wrong = 0;
  for (int64_t block = 0; block < kBlocks; ++block) {
    for (int64_t row = 0; row < kRows; ++row) {
      const float want = std::ldexp(32.0F, static_cast<int>(100 + (row * 7 + block * 3) % 41) - 127);
      wrong += got[static_cast<size_t>(block * kRows + row)] != want ? 1 : 0;
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << got.size();
}

TEST(CudaBlockScaled, ARowWithANaNOrAnInfinityIsNaNAndNoOther) {
  constexpr int64_t kTokens = 5;
  constexpr int64_t kRows = 128;
  constexpr int64_t kCols = 512;
  for (const auto& [mode, format] :
       {std::pair{BlockScaledMode::kFp8, Format::kMxFp4}, std::pair{BlockScaledMode::kFp8, Format::kFp8},
        std::pair{BlockScaledMode::kFp4, Format::kNvFp4}}) {
    Device device({.block_scaled = mode});
    const Weight weight = RandomWeight(device, format, kRows, kCols, 2);
    std::vector<uint16_t> x = Bf16s(Normals(kTokens * kCols, 3));
    x[1 * kCols + 70] = 0x7FC0;
    x[3 * kCols + 300] = 0x7F80;
    const DeviceTensor device_x = device.Copy(DType::kBF16, {kTokens, kCols}, x);
    const DeviceTensor y = device.New(DType::kF32, {kTokens, kRows});
    const Status status =
        device.table().linear(device.context(), {.x = device_x.view, .weight = &weight, .y = y.view});
    ASSERT_TRUE(status.ok()) << status.ToString();
    const std::vector<float> got = Floats(device, y.view);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t row = 0; row < kRows; ++row) {
        ASSERT_EQ(std::isnan(got[static_cast<size_t>(t * kRows + row)]), t == 1 || t == 3)
            << FormatText(format) << ", token " << t << ", row " << row;
      }
    }
  }
}

TEST(CudaBlockScaled, GroupedLinear) {
  constexpr int64_t kTokens = 140;
  constexpr int64_t kGroups = 3;
  constexpr int64_t kRank = 128;
  constexpr int64_t kWidth = 1024;
  Device device({.block_scaled = BlockScaledMode::kFp8});
  const ops::Backend judge = backend::MakeReferenceBackend(1);
  HostWeight host = RandomHostWeight(Format::kFp8, kGroups * kRank, kWidth, 5);
  const Weight weight = device.Prepare(host.weight);
  const std::vector<uint16_t> bits = Bf16s(Normals(kTokens * kGroups * kWidth, 6));
  std::vector<float> x(bits.size());
  std::transform(bits.begin(), bits.end(), x.begin(), FloatFromBf16);
  const DeviceTensor device_x = device.Copy(DType::kBF16, {kTokens, kGroups, kWidth}, bits);
  const DeviceTensor y = device.New(DType::kF32, {kTokens, kGroups, kRank});
  ExpectTheSameInAnyCut(device, y.view, "grouped", [&](const Cut& cut) {
    return device.table().grouped_linear(
        device.context(), {.x = Rows(device_x.view, cut), .weight = &weight, .y = Rows(y.view, cut)});
  });
  std::vector<float> want(static_cast<size_t>(kTokens * kGroups * kRank));
  const Status status =
      judge.table.grouped_linear(*judge.context, {.x = HostView(x, {kTokens, kGroups, kWidth}),
                                                  .weight = &host.weight,
                                                  .y = HostView(want, {kTokens, kGroups, kRank})});
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_LT(RelativeError(Floats(device, y.view), want), kFp32Sums);
}

TEST(CudaBlockScaled, RoutedExperts) {
  constexpr int64_t kTokens = 300;
  constexpr int64_t kTopK = 3;
  constexpr int64_t kDim = 1024;
  constexpr int64_t kWidth = 768;
  constexpr int64_t kExperts = 7;
  std::mt19937 random(9);
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < kTokens * kTopK; ++i) {
    // One expert that most choose, one that nobody does.
    const auto expert = static_cast<int32_t>(random() % (2 * kExperts));
    chosen.push_back(expert >= kExperts || expert == 5 ? 2 : expert);
  }
  std::vector<float> routing = Normals(kTokens * kTopK, 10, 0.3F);
  std::vector<uint16_t> x = Bf16s(Normals(kTokens * kDim, 11));
  const ops::Backend judge = backend::MakeReferenceBackend(1);
  for (const auto& [mode, format, bound] :
       {std::tuple{BlockScaledMode::kFp8, Format::kFp8, 2e-3},
        std::tuple{BlockScaledMode::kFp8, Format::kMxFp4, 2e-3},
        // The judge's activations are not rounded to NVFP4: each of two roundings is off by about a tenth.
        std::tuple{BlockScaledMode::kFp4, Format::kNvFp4, 0.3}}) {
    Device device({.block_scaled = mode});
    const DeviceTensor device_x = device.Copy(DType::kBF16, {kTokens, kDim}, x);
    const DeviceTensor device_indices = device.Copy(DType::kI32, {kTokens, kTopK}, chosen);
    const DeviceTensor device_routing = device.Copy(DType::kF32, {kTokens, kTopK}, routing);
    const DeviceTensor y = device.New(DType::kF32, {kTokens, kDim});
    std::vector<HostWeight> host;
    for (uint32_t e = 0; e < kExperts; ++e) {
      host.push_back(RandomHostWeight(format, kWidth, kDim, 20 + e));
      host.push_back(RandomHostWeight(format, kDim, kWidth, 40 + e));
      host.push_back(RandomHostWeight(format, kWidth, kDim, 60 + e));
    }
    std::vector<ops::ExpertWeights> host_experts;
    std::vector<ops::ExpertWeights> experts;
    for (size_t e = 0; e < kExperts; ++e) {
      host_experts.push_back(
          {.w1 = host[3 * e].weight, .w2 = host[3 * e + 1].weight, .w3 = host[3 * e + 2].weight});
      experts.push_back({.w1 = device.Prepare(host[3 * e].weight),
                         .w2 = device.Prepare(host[3 * e + 1].weight),
                         .w3 = device.Prepare(host[3 * e + 2].weight)});
    }
    ExpectTheSameInAnyCut(device, y.view, FormatText(format), [&](const Cut& cut) {
      return device.table().routed_experts(device.context(), {.x = Rows(device_x.view, cut),
                                                              .indices = Rows(device_indices.view, cut),
                                                              .weights = Rows(device_routing.view, cut),
                                                              .experts = experts,
                                                              .limit = 7.0F,
                                                              .y = Rows(y.view, cut)});
    });
    std::vector<float> want(static_cast<size_t>(kTokens * kDim));
    const Status status = judge.table.routed_experts(
        *judge.context, {.x = TensorView::Contiguous(x.data(), DType::kBF16, {kTokens, kDim}),
                         .indices = TensorView::Contiguous(chosen.data(), DType::kI32, {kTokens, kTopK}),
                         .weights = HostView(routing, {kTokens, kTopK}),
                         .experts = host_experts,
                         .limit = 7.0F,
                         .y = HostView(want, {kTokens, kDim})});
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_LT(RelativeError(Floats(device, y.view), want), bound) << FormatText(format);
  }
}

}  // namespace
}  // namespace dsv4::testing
