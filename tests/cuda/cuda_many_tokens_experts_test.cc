// Experts of many tokens against those of few: a token's result is the same bits whatever it shares a call
// with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/device_tensors.h"
#include "tests/cuda/mixes.h"

namespace dsv4::testing {
namespace {

constexpr float kLimit = 7.0F;  // Limit of SwiGLU.

Status RunExperts(Device& device, const Cut& cut, const DeviceTensor& x, const DeviceTensor& indices,
                  const DeviceTensor& routing, const std::vector<ops::ExpertWeights>& experts,
                  const DeviceTensor& y) {
  return device.table().routed_experts(device.context(), {.x = Rows(x.view, cut),
                                                          .indices = Rows(indices.view, cut),
                                                          .weights = Rows(routing.view, cut),
                                                          .experts = experts,
                                                          .limit = kLimit,
                                                          .y = Rows(y.view, cut)});
}

TEST(CudaManyTokens, RoutedExpertsGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 700;
  constexpr int64_t kTopK = 3;
  constexpr int64_t kDim = 1024;
  constexpr int64_t kExperts = 7;
  std::mt19937 random(9);
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < kTokens * kTopK; ++i) {
    // One expert that most choose, one that none does.
    const auto expert = static_cast<int32_t>(random() % (2 * kExperts));
    chosen.push_back(expert >= kExperts || expert == 5 ? 2 : expert);
  }
  const DeviceTensor indices = device.Copy(DType::kI32, {kTokens, kTopK}, chosen);
  const DeviceTensor routing = device.Copy(DType::kF32, {kTokens, kTopK}, Normals(kTokens * kTopK, 10, 0.3F));
  const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, kDim}, Bf16s(Normals(kTokens * kDim, 11)));
  const DeviceTensor y = device.New(DType::kF32, {kTokens, kDim});
  // 512 is what a rank of four has of Flash: fewer stages of columns than the ring of weights takes.
  for (const int64_t width : {768, 512}) {
    for (const Format format : kFormats) {
      const std::vector<ops::ExpertWeights> experts =
          RandomExperts(device, format, kExperts, kDim, width, kExperts);
      ExpectTheSameInAnyCut(
          device, y.view, FormatText(format) + ", width " + std::to_string(width),
          [&](const Cut& cut) { return RunExperts(device, cut, x, indices, routing, experts, y); });
    }
  }
}

// So few blocks for a token that each adds up several rounds of row tiles, and waits for more weights than it
// has room for.
TEST(CudaManyTokens, RoutedExpertsOfManyTilesABlockGiveTheBitsOfOneToken) {
  Device device;
  constexpr int64_t kTokens = 8;
  constexpr int64_t kTopK = 6;
  constexpr int64_t kExperts = 7;
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < kTokens * kTopK; ++i) chosen.push_back(static_cast<int32_t>(i * 5 % kExperts));
  const DeviceTensor indices = device.Copy(DType::kI32, {kTokens, kTopK}, chosen);
  const DeviceTensor routing = device.Copy(DType::kF32, {kTokens, kTopK}, Normals(kTokens * kTopK, 10, 0.3F));
  // Gate and up in rounds, and down.
  for (const auto& [dim, width] : {std::pair<int64_t, int64_t>{256, 2048}, {2048, 256}}) {
    const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, dim}, Bf16s(Normals(kTokens * dim, 11)));
    const DeviceTensor all = device.New(DType::kF32, {kTokens, dim});
    const DeviceTensor single = device.New(DType::kF32, {kTokens, dim});
    for (const Format format : {Format::kNvFp4, Format::kMxFp4, Format::kFineMxFp4}) {
      const std::vector<ops::ExpertWeights> experts =
          RandomExperts(device, format, kExperts, dim, width, kExperts);
      const std::string what = FormatText(format) + ", dim " + std::to_string(dim);
      ASSERT_TRUE(RunExperts(device, {0, kTokens}, x, indices, routing, experts, all).ok()) << what;
      for (int64_t i = 0; i < kTokens; ++i)
        ASSERT_TRUE(RunExperts(device, {i, i + 1}, x, indices, routing, experts, single).ok()) << what;
      EXPECT_EQ(device.Bytes(all.view), device.Bytes(single.view)) << what;
    }
  }
}

// Experts divided into three parts, for numbers of tokens that take every kernel of experts. The sums of
// terms are the bits of all experts at once. Terms of other parts stay as they were.
TEST(CudaManyTokens, TermsOfPartsOfExpertsSumToTheBitsOfAll) {
  Device device;
  constexpr int64_t kTopK = 6;
  constexpr int64_t kDim = 1024;
  constexpr int64_t kWidth = 768;
  constexpr int64_t kExperts = 48;
  const std::vector<int64_t> begins = {0, 16, 17, kExperts};
  const auto num_parts = std::ssize(begins) - 1;
  for (const int64_t tokens : {1, 4, 9, 64, 128, 700}) {
    std::mt19937 random(9);
    std::vector<int32_t> chosen;
    for (int64_t i = 0; i < tokens * kTopK; ++i) chosen.push_back(static_cast<int32_t>(random() % kExperts));
    const DeviceTensor indices = device.Copy(DType::kI32, {tokens, kTopK}, chosen);
    const DeviceTensor routing = device.Copy(DType::kF32, {tokens, kTopK}, Normals(tokens * kTopK, 10, 0.3F));
    const DeviceTensor x = device.Copy(DType::kBF16, {tokens, kDim}, Bf16s(Normals(tokens * kDim, 11)));
    const DeviceTensor want = device.New(DType::kF32, {tokens, kDim});
    const DeviceTensor got = device.New(DType::kF32, {tokens, kDim});
    constexpr size_t kRowBytes = kDim * 2;
    const int64_t num_rows = num_parts * tokens * kTopK;
    const std::vector<std::byte> untouched(static_cast<size_t>(num_rows) * kRowBytes, std::byte{0x5A});
    for (const Format format : kFormats) {
      const std::string what = FormatText(format) + ", " + std::to_string(tokens) + " tokens";
      const std::vector<ops::ExpertWeights> experts =
          RandomExperts(device, format, kExperts, kDim, kWidth, 5);
      ASSERT_TRUE(RunExperts(device, {0, tokens}, x, indices, routing, experts, want).ok()) << what;
      const DeviceTensor parts = device.Copy(DType::kBF16, {num_parts, tokens, kTopK, kDim}, untouched);
      for (int64_t part = 0; part < num_parts; ++part) {
        const int64_t begin = begins[static_cast<size_t>(part)];
        const int64_t count = begins[static_cast<size_t>(part) + 1] - begin;
        const Status status = device.table().expert_terms(
            device.context(),
            {.x = x.view,
             .indices = indices.view,
             .weights = routing.view,
             .experts = std::span(experts).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
             .first_expert = begin,
             .num_experts = kExperts,
             .limit = kLimit,
             .terms = parts.view.Rows(part, part + 1).Reshaped({tokens, kTopK, kDim})});
        ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
      }
      const Status status = device.table().sum_terms(
          device.context(), {.parts = parts.view, .indices = indices.view, .begins = begins, .y = got.view});
      ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
      EXPECT_EQ(device.Bytes(got.view), device.Bytes(want.view)) << what;
      const std::vector<std::byte> rows = device.Bytes(parts.view);
      int64_t wrong = 0;
      for (int64_t row = 0; row < num_rows; ++row) {
        const auto part = static_cast<size_t>(row / (tokens * kTopK));
        const int32_t expert = chosen[static_cast<size_t>(row % (tokens * kTopK))];
        const bool here = expert >= begins[part] && expert < begins[part + 1];
        const bool written =
            std::memcmp(&rows[static_cast<size_t>(row) * kRowBytes], untouched.data(), kRowBytes) != 0;
        if (here != written) ++wrong;
      }
      EXPECT_EQ(wrong, 0) << what << ", rows that should be written and are not, or the other way round";
    }
  }
}

// So many tokens an expert that tiles of experts have up to 128 of them. Cuts have too few an expert for the
// kernel with such tiles.
TEST(CudaManyTokens, ExpertsOfSomeHundredTokensGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 840;
  constexpr int64_t kTopK = 3;
  constexpr int64_t kExperts = 8;
  std::mt19937 random(9);
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < kTokens * kTopK; ++i) {
    // More than two tiles of tokens, tiles of every size, and no token.
    constexpr int32_t kChoices[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 6, 6};
    const int32_t expert = kChoices[random() % std::size(kChoices)];
    chosen.push_back(expert == 6 && i % 16 != 0 ? 7 : expert);
  }
  const DeviceTensor indices = device.Copy(DType::kI32, {kTokens, kTopK}, chosen);
  const DeviceTensor routing = device.Copy(DType::kF32, {kTokens, kTopK}, Normals(kTokens * kTopK, 10, 0.3F));
  struct ExpertShape {
    int64_t dim;
    int64_t width;
  };
  for (const auto& [dim, width] : {ExpertShape{1024, 768}, ExpertShape{512, 1024}}) {
    const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, dim}, Bf16s(Normals(kTokens * dim, 11)));
    const DeviceTensor y = device.New(DType::kF32, {kTokens, dim});
    for (const Format format : {Format::kMxFp4, Format::kNvFp4, Format::kNvFp4Divides, Format::kFineMxFp4}) {
      const std::vector<ops::ExpertWeights> experts =
          RandomExperts(device, format, kExperts, dim, width, kExperts);
      std::vector<Cut> cuts;
      constexpr int64_t kCutTokens = 30;
      static_assert(kTokens % kCutTokens == 0);
      for (int64_t begin = 0; begin < kTokens; begin += kCutTokens)
        cuts.push_back({begin, begin + kCutTokens});
      ExpectTheSameInCuts(
          device, y.view, cuts, FormatText(format) + ", dim " + std::to_string(dim),
          [&](const Cut& cut) { return RunExperts(device, cut, x, indices, routing, experts, y); });
    }
  }
}

// The same with tiles of each size that the kernel knows, and one more and one less than it takes. Columns
// are fewer than are asked for ahead, or leave the last turn one or two stages. Tiles are fewer than SMs, and
// more.
TEST(CudaManyTokens, ExpertsOfEachSizeOfTileGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kCounts[] = {1,   20,  33,  64,  65,  80,  81,  88,  89,  96,  97,  104,
                                 105, 112, 113, 128, 129, 192, 224, 256, 257, 300, 300, 300};
  constexpr auto kExperts = static_cast<int64_t>(std::size(kCounts));
  constexpr int64_t kTopK = 6;
  std::vector<int32_t> chosen;
  for (size_t e = 0; e < std::size(kCounts); ++e)
    chosen.insert(chosen.end(), static_cast<size_t>(kCounts[e]), static_cast<int32_t>(e));
  std::shuffle(chosen.begin(), chosen.end(), std::mt19937(9));
  const auto tokens = std::ssize(chosen) / kTopK;
  ASSERT_EQ(tokens * kTopK, std::ssize(chosen));
  ASSERT_GE(std::ssize(chosen), 128 * kExperts);
  const DeviceTensor indices = device.Copy(DType::kI32, {tokens, kTopK}, chosen);
  const DeviceTensor routing = device.Copy(DType::kF32, {tokens, kTopK}, Normals(tokens * kTopK, 10, 0.3F));
  std::vector<Cut> cuts;
  constexpr int64_t kCutTokens = 40;  // Fewer an expert than that kernel takes.
  for (int64_t begin = 0; begin < tokens; begin += kCutTokens)
    cuts.push_back({begin, std::min(begin + kCutTokens, tokens)});
  for (const auto& [dim, width] : {std::pair<int64_t, int64_t>{256, 512}, {1280, 256}, {768, 1024}}) {
    const DeviceTensor x = device.Copy(DType::kBF16, {tokens, dim}, Bf16s(Normals(tokens * dim, 11)));
    const DeviceTensor y = device.New(DType::kF32, {tokens, dim});
    for (const Format format : {Format::kMxFp4, Format::kNvFp4, Format::kNvFp4Divides, Format::kFineMxFp4}) {
      std::vector<ops::ExpertWeights> experts = RandomExperts(device, format, kExperts, dim, width, 5);
      // Scale of a matrix of zeros: the largest number that fp4 and its scales give, over the largest weight.
      if (format == Format::kNvFp4Divides)
        experts[3].w2.global_scale = std::numeric_limits<float>::infinity();
      ExpectTheSameInCuts(
          device, y.view, cuts, FormatText(format) + ", dim " + std::to_string(dim),
          [&](const Cut& cut) { return RunExperts(device, cut, x, indices, routing, experts, y); });
    }
  }
}

// A few dozen tokens, most of whose experts are chosen once or twice: experts are streamed past the tokens
// that chose them.
TEST(CudaManyTokens, ManyExpertsOfSomeTensOfTokensGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 150;
  constexpr int64_t kTopK = 3;
  constexpr int64_t kExperts = 48;
  constexpr int64_t kDifferent = 5;
  std::mt19937 random(9);
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < kTokens * kTopK; ++i) {
    // One expert that many choose, one that none does; a token may choose an expert twice.
    const auto expert = static_cast<int32_t>(random() % (kExperts + 12));
    chosen.push_back(expert >= kExperts || expert == 5 ? 2 : expert);
  }
  const DeviceTensor indices = device.Copy(DType::kI32, {kTokens, kTopK}, chosen);
  const DeviceTensor routing = device.Copy(DType::kF32, {kTokens, kTopK}, Normals(kTokens * kTopK, 10, 0.3F));
  struct ExpertShape {
    int64_t dim;
    int64_t width;
  };
  // Tiles of four tokens and of two; rows that leave the last block with fewer. In the last three rows are
  // too long to come whole, first of gate and up, then of down. Then down goes one row tile at a time, with
  // spread scales (RunKernel).
  for (const auto& [dim, width] : {ExpertShape{1024, 768}, ExpertShape{5120, 256}, ExpertShape{384, 2176},
                                   ExpertShape{6144, 256}, ExpertShape{256, 6144}, ExpertShape{256, 3328}}) {
    const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, dim}, Bf16s(Normals(kTokens * dim, 11)));
    const DeviceTensor y = device.New(DType::kF32, {kTokens, dim});
    for (const Format format : kFormats) {
      const std::vector<ops::ExpertWeights> experts =
          RandomExperts(device, format, kExperts, dim, width, kDifferent);
      ExpectTheSameInAnyCut(
          device, y.view, FormatText(format) + ", dim " + std::to_string(dim),
          [&](const Cut& cut) { return RunExperts(device, cut, x, indices, routing, experts, y); });
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
