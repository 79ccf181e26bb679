// Kernels for many tokens against those for few: a token's result is the same bits whatever it shares a call with.
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

TEST(CudaManyTokens, LinearGivesTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 331;
  struct MatrixShape {
    int64_t rows;
    int64_t cols;
  };
  // Rows by sixteens for the kernel of a few tokens, in part without whole tiles of many; and rows that it does not take.
  constexpr MatrixShape kShapes[] = {{208, 1024}, {384, 1536}, {65, 1536},
                                     {208, 4096}, {200, 4096}, {256, 512}};
  for (const Format format : kFormats) {
    for (const auto& [rows, cols] : kShapes) {
      const Weight weight = RandomWeight(device, format, rows, cols, 3);
      const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, cols}, Bf16s(Normals(kTokens * cols, 4)));
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const DeviceTensor y = device.New(dtype, {kTokens, rows});
        ExpectTheSameInAnyCut(device, y.view,
                              FormatText(format) + ", " + y.view.shape.ToString() + " of " +
                                  std::to_string(cols) + ", " + std::string(DTypeName(dtype)),
                              [&](const Cut& cut) {
                                return device.table().linear(
                                    device.context(),
                                    {.x = Rows(x.view, cut), .weight = &weight, .y = Rows(y.view, cut)});
                              });
      }
    }
  }
}

// Nine to 64 tokens: columns that are one slice and columns that are eight, rows that leave tiles in part empty.
TEST(CudaManyTokens, LinearsOfSomeTensOfTokensGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 8 + 9 + 32 + 33 + 64;
  const std::vector<Cut> cuts = {{0, 8}, {8, 17}, {17, 49}, {49, 82}, {82, kTokens}};
  struct MatrixShape {
    int64_t rows;
    int64_t cols;
  };
  constexpr MatrixShape kShapes[] = {{320, 1024}, {4160, 768}, {80, 4096}, {640, 2048}, {128, 1664}};
  for (const Format format : {Format::kBf16, Format::kFp8, Format::kFp8NaN}) {
    for (const auto& [rows, cols] : kShapes) {
      const Weight weight = RandomWeight(device, format, rows, cols, 3);
      const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, cols}, Bf16s(Normals(kTokens * cols, 4)));
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const DeviceTensor y = device.New(dtype, {kTokens, rows});
        ExpectTheSameInCuts(device, y.view, cuts,
                            FormatText(format) + ", " + y.view.shape.ToString() + " of " +
                                std::to_string(cols) + ", " + std::string(DTypeName(dtype)),
                            [&](const Cut& cut) {
                              return device.table().linear(
                                  device.context(),
                                  {.x = Rows(x.view, cut), .weight = &weight, .y = Rows(y.view, cut)});
                            });
      }
    }
  }
}

TEST(CudaManyTokens, GroupedLinearOfSomeTensOfTokensGivesTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 8 + 9 + 32 + 33 + 64;
  const std::vector<Cut> cuts = {{0, 8}, {8, 17}, {17, 49}, {49, 82}, {82, kTokens}};
  constexpr int64_t kGroups = 3;
  constexpr int64_t kRank = 128;
  for (const Format format : {Format::kBf16, Format::kFp8NaN}) {
    for (const int64_t width : {1024, 2048}) {
      const Weight weight = RandomWeight(device, format, kGroups * kRank, width, 5);
      const DeviceTensor x =
          device.Copy(DType::kBF16, {kTokens, kGroups, width}, Bf16s(Normals(kTokens * kGroups * width, 6)));
      const DeviceTensor y = device.New(DType::kBF16, {kTokens, kGroups, kRank});
      ExpectTheSameInCuts(
          device, y.view, cuts, FormatText(format) + ", width " + std::to_string(width), [&](const Cut& cut) {
            return device.table().grouped_linear(
                device.context(), {.x = Rows(x.view, cut), .weight = &weight, .y = Rows(y.view, cut)});
          });
    }
  }
}

// Weights of more row tiles than there are SMs take the kernel of many tokens earlier.
TEST(CudaManyTokens, TallLinearsOfSomeTensOfTokensGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 8 + 32 + 33 + 57 + 64;
  const std::vector<Cut> cuts = {{0, 8}, {8, 40}, {40, 73}, {73, 130}, {130, kTokens}};
  constexpr int64_t kRows = 22'032;
  constexpr int64_t kCols = 768;
  const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, kCols}, Bf16s(Normals(kTokens * kCols, 4)));
  const DeviceTensor y = device.New(DType::kBF16, {kTokens, kRows});
  for (const Format format : kFormats) {
    const Weight weight = RandomWeight(device, format, kRows, kCols, 3);
    ExpectTheSameInCuts(device, y.view, cuts, FormatText(format), [&](const Cut& cut) {
      return device.table().linear(device.context(),
                                   {.x = Rows(x.view, cut), .weight = &weight, .y = Rows(y.view, cut)});
    });
  }
}

struct Product {
  Format format;
  int64_t rows;
  DType y;
};

// Linears that follow each other and read the same activations are one launch; each gives what it gives alone.
void ExpectOneLaunch(const std::vector<Product>& products, int64_t cols, int64_t tokens) {
  const std::string what = std::to_string(products.size()) + " linears, the first " +
                           FormatText(products.front().format) + " [" +
                           std::to_string(products.front().rows) + ", " + std::to_string(cols) + "], " +
                           std::to_string(tokens) + " tokens";
  Device device;
  const DeviceTensor x = device.Copy(DType::kBF16, {tokens, cols}, Bf16s(Normals(tokens * cols, 4)));
  std::vector<Weight> weights;
  std::vector<DeviceTensor> y;
  for (const Product& product : products) {
    weights.push_back(
        RandomWeight(device, product.format, product.rows, cols, static_cast<uint32_t>(7 + weights.size())));
    y.push_back(device.New(product.y, {tokens, product.rows}));
  }
  const auto run = [&](size_t i) {
    const Status status =
        device.table().linear(device.context(), {.x = x.view, .weight = &weights[i], .y = y[i].view});
    EXPECT_TRUE(status.ok()) << what << ": " << status.ToString();
  };
  // Each alone: reading its result hands its launch to the device.
  std::vector<std::vector<std::byte>> alone;
  for (size_t i = 0; i < weights.size(); ++i) {
    run(i);
    alone.push_back(device.Bytes(y[i].view));
    const std::vector<std::byte> other(alone.back().size(), std::byte{0x5A});
    ASSERT_TRUE(device.memory().CopyFromHost(y[i].view.data, other.data(), other.size(), nullptr).ok());
  }
  // Twice: scratch that grows for all of them sends off what was collected.
  int64_t launches_before = 0;
  for (int round = 0; round < 2; ++round) {
    device.Bytes(x.view);
    launches_before = device.launches();
    for (size_t i = 0; i < weights.size(); ++i) run(i);
    device.Bytes(x.view);
  }
  EXPECT_EQ(device.launches() - launches_before, 1) << what;
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_EQ(device.Bytes(y[i].view) == alone[i], true) << what << ", product " << i;
}

TEST(CudaFewTokens, LinearsOfTheSameActivationsAreOneLaunchAndDoNotMeet) {
  const std::vector<std::vector<Product>> lists = {
      {{Format::kBf16, 64, DType::kF32}, {Format::kBf16, 4112, DType::kBF16}},
      {{Format::kFp8, 1024, DType::kBF16}, {Format::kFp8, 512, DType::kBF16}},
      {{Format::kMxFp4, 48, DType::kBF16},
       {Format::kMxFp4, 2048, DType::kF32},
       {Format::kMxFp4, 16, DType::kBF16}},
      {{Format::kNvFp4, 512, DType::kF32}, {Format::kNvFp4Divides, 512, DType::kBF16}},
      // What stands in front of the release's attention, and of its experts.
      {{Format::kFp8, 1024, DType::kBF16},
       {Format::kFp8, 512, DType::kBF16},
       {Format::kBf16, 64, DType::kBF16},
       {Format::kBf16, 256, DType::kF32},
       {Format::kBf16, 256, DType::kF32},
       {Format::kBf16, 1024, DType::kF32},
       {Format::kBf16, 1024, DType::kF32}},
      {{Format::kBf16, 256, DType::kF32},
       {Format::kFp8, 2048, DType::kBF16},
       {Format::kFp8, 2048, DType::kBF16}},
  };
  for (const std::vector<Product>& list : lists) {
    for (const int64_t tokens : {1, 3, 8}) ExpectOneLaunch(list, 1024, tokens);
  }
}

TEST(CudaManyTokens, LinearsOfTheSameActivationsAreOneLaunchAndDoNotMeet) {
  const std::vector<std::vector<Product>> lists = {
      {{Format::kBf16, 64, DType::kF32}, {Format::kBf16, 4112, DType::kBF16}},
      {{Format::kFp8, 1024, DType::kBF16},
       {Format::kFp8, 512, DType::kBF16},
       {Format::kBf16, 80, DType::kBF16},
       {Format::kBf16, 256, DType::kF32}},
      {{Format::kBf16, 256, DType::kF32},
       {Format::kFp8, 2048, DType::kBF16},
       {Format::kFp8, 2048, DType::kBF16}},
  };
  for (const std::vector<Product>& list : lists) {
    for (const int64_t cols : {1024, 2048}) {
      for (const int64_t tokens : {20, 64}) ExpectOneLaunch(list, cols, tokens);
    }
  }
}

// So many that weights are widened beforehand; the tokens behind the 60th alone are too few for that.
TEST(CudaManyTokens, LinearOfAThousandTokensGivesTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 1060;
  struct MatrixShape {
    int64_t rows;
    int64_t cols;
  };
  // Several tiles a block; rows and columns that leave tiles and segments in part empty; rows that are stored one by one.
  constexpr MatrixShape kShapes[] = {{4096, 1024}, {384, 1536}, {200, 4096}, {65, 1536}};
  for (const Format format : {Format::kBf16, Format::kFp8, Format::kFp8NaN}) {
    for (const auto& [rows, cols] : kShapes) {
      const Weight weight = RandomWeight(device, format, rows, cols, 3);
      const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, cols}, Bf16s(Normals(kTokens * cols, 4)));
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const DeviceTensor y = device.New(dtype, {kTokens, rows});
        ExpectTheSameInAnyCut(device, y.view,
                              FormatText(format) + ", " + y.view.shape.ToString() + " of " +
                                  std::to_string(cols) + ", " + std::string(DTypeName(dtype)),
                              [&](const Cut& cut) {
                                return device.table().linear(
                                    device.context(),
                                    {.x = Rows(x.view, cut), .weight = &weight, .y = Rows(y.view, cut)});
                              });
      }
    }
  }
}

TEST(CudaManyTokens, GroupedLinearGivesTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kGroups = 3;
  constexpr int64_t kWidth = 1024;
  for (const Format format : {Format::kBf16, Format::kFp8NaN, Format::kNvFp4}) {
    // Tiles of 128 rows end with a group or before.
    for (const auto& [rank, tokens] : {std::pair<int64_t, int64_t>{128, 200}, {128, 1060}, {144, 1060}}) {
      const Weight weight = RandomWeight(device, format, kGroups * rank, kWidth, 5);
      const DeviceTensor x =
          device.Copy(DType::kBF16, {tokens, kGroups, kWidth}, Bf16s(Normals(tokens * kGroups * kWidth, 6)));
      const DeviceTensor y = device.New(DType::kBF16, {tokens, kGroups, rank});
      ExpectTheSameInAnyCut(
          device, y.view, FormatText(format) + ", " + y.view.shape.ToString(), [&](const Cut& cut) {
            return device.table().grouped_linear(
                device.context(), {.x = Rows(x.view, cut), .weight = &weight, .y = Rows(y.view, cut)});
          });
    }
  }
}

constexpr float kLimit = 7.0F;  // Of SwiGLU.

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
    // One expert that most choose, one that nobody does.
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

// So few blocks for a token that each adds up several rounds of row tiles, and waits for more weights than it has room for.
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
    for (const Format format : {Format::kNvFp4, Format::kMxFp4}) {
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

// Experts divided into three parts, of numbers of tokens that take every kernel of experts: the sums of terms are the bits of all
// experts at once. Terms of other parts stay as they were.
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

// So many tokens an expert that tiles of experts have up to 128 of them; cuts have too few an expert for the kernel with such tiles.
TEST(CudaManyTokens, ExpertsOfSomeHundredTokensGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 840;
  constexpr int64_t kTopK = 3;
  constexpr int64_t kExperts = 8;
  std::mt19937 random(9);
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < kTokens * kTopK; ++i) {
    // More than two tiles of tokens, tiles of every size, and nobody.
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
    for (const Format format : {Format::kMxFp4, Format::kNvFp4, Format::kNvFp4Divides}) {
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

// The same with tiles of each size that the kernel knows, one more and one less than it takes, and of columns fewer than are asked for ahead
// or as many as leave the last turn one or two stages; fewer tiles than there are SMs, and more.
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
    for (const Format format : {Format::kMxFp4, Format::kNvFp4, Format::kNvFp4Divides}) {
      std::vector<ops::ExpertWeights> experts = RandomExperts(device, format, kExperts, dim, width, 5);
      // What a matrix of zeros has: the largest number that fp4 and its scales give, over the largest weight.
      if (format == Format::kNvFp4Divides)
        experts[3].w2.global_scale = std::numeric_limits<float>::infinity();
      ExpectTheSameInCuts(
          device, y.view, cuts, FormatText(format) + ", dim " + std::to_string(dim),
          [&](const Cut& cut) { return RunExperts(device, cut, x, indices, routing, experts, y); });
    }
  }
}

// Some tens of tokens, most of whose experts are chosen once or twice: experts are streamed past the tokens that chose them.
TEST(CudaManyTokens, ManyExpertsOfSomeTensOfTokensGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 150;
  constexpr int64_t kTopK = 3;
  constexpr int64_t kExperts = 48;
  constexpr int64_t kDifferent = 5;
  std::mt19937 random(9);
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < kTokens * kTopK; ++i) {
    // One expert that many choose, one that nobody does; a token may choose an expert twice.
    const auto expert = static_cast<int32_t>(random() % (kExperts + 12));
    chosen.push_back(expert >= kExperts || expert == 5 ? 2 : expert);
  }
  const DeviceTensor indices = device.Copy(DType::kI32, {kTokens, kTopK}, chosen);
  const DeviceTensor routing = device.Copy(DType::kF32, {kTokens, kTopK}, Normals(kTokens * kTopK, 10, 0.3F));
  struct ExpertShape {
    int64_t dim;
    int64_t width;
  };
  // Tiles of four tokens and of two; rows that leave the last block with fewer. The last three: gate and up, then down, whose rows are too
  // long to come whole; down one row tile at a time, whose scales are spread (RunKernel).
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

// Norms, rotations and rounding of heads: of a few tokens a block a row, of many a warp some rows.
TEST(CudaManyTokens, RowsOfHeadsGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 150;
  constexpr int64_t kFrequencies = 32;
  const DeviceTensor frequencies = device.Copy(DType::kF32, {kFrequencies}, Normals(kFrequencies, 7, 0.7F));
  std::vector<int32_t> at;
  for (int32_t t = 0; t < kTokens; ++t) at.push_back(t * 977 % 100003);
  const DeviceTensor positions = device.Copy(DType::kI32, {kTokens}, at);
  struct HeadShape {
    int64_t heads;
    int64_t width;
  };
  for (const auto& [heads, width] :
       {HeadShape{64, 512}, HeadShape{64, 128}, HeadShape{20, 512}, HeadShape{22, 128}}) {
    std::vector<float> values = Normals(kTokens * heads * width, 2);
    values[static_cast<size_t>(70 * heads * width + 11)] = std::numeric_limits<float>::quiet_NaN();
    values[static_cast<size_t>(80 * heads * width + 33)] = -std::numeric_limits<float>::quiet_NaN();
    const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, heads, width}, Bf16s(values));
    const DeviceTensor y = device.New(DType::kBF16, {kTokens, heads, width});
    const std::string shape = std::to_string(heads) + " heads of " + std::to_string(width);
    const auto copy = [&](const Cut& cut) {
      return device.memory().Copy(Rows(y.view, cut).data, Rows(x.view, cut).data,
                                  static_cast<size_t>(Rows(y.view, cut).num_bytes()), nullptr);
    };
    const auto norm = [&](const Cut& cut) {
      return device.table().head_rms_norm(device.context(),
                                          {.x = Rows(x.view, cut), .y = Rows(y.view, cut), .eps = 1e-6F});
    };
    const auto rotate = [&](const Cut& cut, bool inverse) {
      return device.table().rope(device.context(), {.x = Rows(y.view, cut),
                                                    .positions = Rows(positions.view, cut),
                                                    .frequencies = frequencies.view,
                                                    .inverse = inverse});
    };
    ExpectTheSameInAnyCut(device, y.view, "norm, " + shape, norm);
    ExpectTheSameInAnyCut(device, y.view, "norm and rotation, " + shape, [&](const Cut& cut) {
      const Status status = norm(cut);
      return status.ok() ? rotate(cut, false) : status;
    });
    ExpectTheSameInAnyCut(device, y.view, "rotation, " + shape, [&](const Cut& cut) {
      const Status status = copy(cut);
      return status.ok() ? rotate(cut, true) : status;
    });
    ExpectTheSameInAnyCut(device, y.view, "rotation and rounding, " + shape, [&](const Cut& cut) {
      Status status = copy(cut);
      if (status.ok()) status = rotate(cut, false);
      if (!status.ok()) return status;
      const TensorView rows = Rows(y.view, cut);
      return device.table().hadamard_fp4(device.context(),
                                         {.x = rows.Reshaped({rows.shape[0] * heads, width})});
    });
  }
}

TEST(CudaManyTokens, HyperConnectionsGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 331;
  // All rows of the matrix in a block, eight, and widths that are not cut in runs.
  for (const int64_t dim : {int64_t{1024}, int64_t{1080}, int64_t{4096}, int64_t{7168}}) {
    const Mixes m(device, kTokens, dim, Bf16s(Normals(kTokens * Mixes::kMult * dim, 1)));
    m.ExpectTheSame({{0, 1}, {1, 9}, {9, 18}, {18, 50}, {50, 83}, {83, 147}, {147, kTokens}});
    const DeviceTensor out = device.New(DType::kBF16, {kTokens, Mixes::kMult, dim});
    ExpectTheSameInAnyCut(device, out.view, "out", [&](const Cut& cut) {
      return device.table().hc_post(device.context(), {.y = Rows(m.u.view, cut),
                                                       .residual = Rows(m.streams.view, cut),
                                                       .post = Rows(m.post.view, cut),
                                                       .comb = Rows(m.comb.view, cut),
                                                       .out = Rows(out.view, cut)});
    });
  }
}

TEST(CudaManyTokens, RowsOfManyHeadsGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 331;
  struct HeadShape {
    int64_t heads;
    int64_t width;
    int64_t frequencies;
  };
  for (const auto& [heads, width, frequencies] :
       {HeadShape{64, 512, 32}, HeadShape{24, 128, 32}, HeadShape{9, 512, 40}, HeadShape{8, 64, 16}}) {
    std::vector<uint16_t> values = Bf16s(Normals(kTokens * heads * width, 1));
    values[static_cast<size_t>(270 * heads * width + 7)] = 0x7F00;  // Its square is no number.
    const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, heads, width}, values);
    std::vector<int32_t> ids;
    for (int32_t t = 0; t < kTokens; ++t) ids.push_back(t * 3001);
    const DeviceTensor positions = device.Copy(DType::kI32, {kTokens}, ids);
    std::vector<float> rates;
    for (int64_t i = 0; i < frequencies; ++i) rates.push_back(1.0F / static_cast<float>(1 + i * i));
    const DeviceTensor table = device.Copy(DType::kF32, {frequencies}, rates);
    const DeviceTensor y = device.New(DType::kBF16, {kTokens, heads, width});
    const std::string what = y.view.shape.ToString();
    ExpectTheSameInAnyCut(device, y.view, "head_rms_norm " + what, [&](const Cut& cut) {
      return device.table().head_rms_norm(device.context(),
                                          {.x = Rows(x.view, cut), .y = Rows(y.view, cut), .eps = 1e-6F});
    });
    for (const bool inverse : {false, true}) {
      ExpectTheSameInAnyCut(device, y.view, "rope " + what, [&](const Cut& cut) {
        const TensorView rows = Rows(y.view, cut);
        const Status copied = device.memory().Copy(rows.data, Rows(x.view, cut).data,
                                                   static_cast<size_t>(rows.num_bytes()), nullptr);
        if (!copied.ok()) return copied;
        return device.table().rope(device.context(), {.x = rows,
                                                      .positions = Rows(positions.view, cut),
                                                      .frequencies = table.view,
                                                      .inverse = inverse});
      });
    }
  }
}

// Which NaN they are differs from kernel to kernel.
TEST(CudaManyTokens, ANaNMakesItsHeadNaNAndNoOther) {
  Device device;
  constexpr int64_t kHeads = 64;
  constexpr int64_t kWidth = 512;
  for (const int64_t tokens : {int64_t{1}, int64_t{20}, int64_t{331}}) {
    std::vector<uint16_t> values = Bf16s(Normals(tokens * kHeads * kWidth, 1));
    const auto row = static_cast<size_t>((tokens - 1) * kHeads + 2);
    values[row * kWidth + 3] = 0x7FC1;
    const DeviceTensor x = device.Copy(DType::kBF16, {tokens, kHeads, kWidth}, values);
    const DeviceTensor y = device.New(DType::kBF16, {tokens, kHeads, kWidth});
    const Status status =
        device.table().head_rms_norm(device.context(), {.x = x.view, .y = y.view, .eps = 1e-6F});
    ASSERT_TRUE(status.ok()) << status.ToString();
    const std::vector<std::byte> bytes = device.Bytes(y.view);
    int64_t wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, &bytes[i * sizeof(bits)], sizeof(bits));
      if (std::isnan(FloatFromBf16(bits)) != (i / kWidth == row)) ++wrong;
    }
    EXPECT_EQ(wrong, 0) << tokens << " tokens";
  }
}

}  // namespace
}  // namespace dsv4::testing
