// Kernels for many tokens against those for few: a token's result is the same bits whatever it shares a call
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
#include "tests/cuda/one_launch.h"

namespace dsv4::testing {
namespace {

TEST(CudaManyTokens, LinearGivesTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 331;
  struct MatrixShape {
    int64_t rows;
    int64_t cols;
  };
  // Rows by sixteens for the kernel of a few tokens, in part without whole tiles of many; and rows that it
  // does not take.
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

// Nine to 256 tokens: columns that are one slice and columns that are eight, rows that leave tiles in part
// empty.
TEST(CudaManyTokens, LinearsOfSomeTensOfTokensGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 8 + 9 + 32 + 33 + 64 + 65 + 96 + 129 + 256;
  const std::vector<Cut> cuts = {{0, 8},     {8, 17},    {17, 49},   {49, 82},      {82, 146},
                                 {146, 211}, {211, 307}, {307, 436}, {436, kTokens}};
  struct MatrixShape {
    int64_t rows;
    int64_t cols;
  };
  constexpr MatrixShape kShapes[] = {{320, 1024}, {4160, 768}, {80, 4096}, {640, 2048}, {128, 1664}};
  for (const Format format :
       {Format::kBf16, Format::kFp8, Format::kFp8NaN, Format::kMxFp8, Format::kMxFp8NaN, Format::kFineFp8}) {
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
  constexpr int64_t kTokens = 8 + 9 + 32 + 33 + 64 + 65 + 96 + 129 + 256;
  const std::vector<Cut> cuts = {{0, 8},     {8, 17},    {17, 49},   {49, 82},      {82, 146},
                                 {146, 211}, {211, 307}, {307, 436}, {436, kTokens}};
  constexpr int64_t kGroups = 3;
  constexpr int64_t kRank = 128;
  for (const Format format : {Format::kBf16, Format::kFp8NaN, Format::kMxFp8NaN}) {
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

// Linears that follow each other and read the same activations are one launch; each gives what it gives
// alone.
void ExpectLinearsInOneLaunch(const std::vector<Product>& products, int64_t cols, int64_t tokens,
                              OneLaunch where) {
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
  int64_t apart = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t before = device.launches();
    run(i);
    alone.push_back(device.Bytes(y[i].view));
    apart += device.launches() - before;
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
  if (where == OneLaunch::kEverywhere || (where == OneLaunch::kOnHopper && device.runs_hopper_code())) {
    EXPECT_EQ(device.launches() - launches_before, 1) << what;
  } else {
    EXPECT_LE(device.launches() - launches_before, apart) << what;
  }
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_EQ(device.Bytes(y[i].view) == alone[i], true) << what << ", product " << i;
}

// Activations that halves hold in one call and not in another, since some numbers are too large or too small for
// them. Then weights whose scales differ too much.
TEST(CudaFewTokens, ProductsOfHalvesAreTheBitsOfBf16) {
  Device device;
  constexpr int64_t kCols = 1024;
  constexpr int64_t kRows = 208;
  constexpr int64_t kTokens = 8 + 8 + 3;
  // Ordinary tokens alone; beside one of each kind; and those by themselves.
  const std::vector<Cut> cuts = {{0, 8}, {8, 16}, {16, 17}, {17, 18}, {18, 19}};
  std::vector<float> values = Normals(kTokens * kCols, 4);
  const auto change = [&](int64_t token, float factor) {
    for (int64_t i = 0; i < kCols; i += 37) values[static_cast<size_t>(token * kCols + i)] *= factor;
  };
  change(9, 5000.0F);
  change(16, 0x1p30F);
  change(17, 0x1p-40F);
  change(18, 0.0F);
  const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, kCols}, Bf16s(values));
  for (const bool wide : {false, true}) {
    const HostWeight host = RandomHostWeight(Format::kMxFp8, kRows, kCols, 3);
    if (wide) *const_cast<uint8_t*>(host.weight.scale.as<const uint8_t>()) = 90;
    const Weight weight = device.Prepare(host.weight);
    for (const ActivationQuant activation : {ActivationQuant::kNone, weight.activation}) {
      Weight of = weight;
      of.activation = activation;
      const DeviceTensor y = device.New(DType::kF32, {kTokens, kRows});
      ExpectTheSameInCuts(device, y.view, cuts, wide ? "wide scales" : "scales alike", [&](const Cut& cut) {
        return device.table().linear(device.context(),
                                     {.x = Rows(x.view, cut), .weight = &of, .y = Rows(y.view, cut)});
      });
    }
  }
}

TEST(CudaFewTokens, LinearsOfTheSameActivationsAreOneLaunchAndDoNotMeet) {
  const std::vector<std::vector<Product>> lists = {
      {{Format::kBf16, 64, DType::kF32}, {Format::kBf16, 4112, DType::kBF16}},
      {{Format::kFp8, 1024, DType::kBF16}, {Format::kFp8, 512, DType::kBF16}},
      {{Format::kMxFp4, 48, DType::kBF16},
       {Format::kMxFp4, 2048, DType::kF32},
       {Format::kMxFp4, 16, DType::kBF16}},
      {{Format::kNvFp4, 512, DType::kF32}, {Format::kNvFp4Divides, 512, DType::kBF16}},
      // Ops in front of the release's attention, and of its experts.
      {{Format::kFp8, 1024, DType::kBF16},
       {Format::kFp8, 512, DType::kBF16},
       {Format::kBf16, 64, DType::kBF16},
       {Format::kBf16, 256, DType::kF32},
       {Format::kBf16, 256, DType::kF32},
       {Format::kBf16, 1024, DType::kF32},
       {Format::kBf16, 1024, DType::kF32}},
      // V4.1's.
      {{Format::kMxFp8, 1280, DType::kBF16},
       {Format::kMxFp8, 512, DType::kBF16},
       {Format::kBf16, 32, DType::kBF16},
       {Format::kBf16, 512, DType::kF32}},
      {{Format::kBf16, 256, DType::kF32},
       {Format::kFp8, 2048, DType::kBF16},
       {Format::kFp8, 2048, DType::kBF16}},
  };
  for (const std::vector<Product>& list : lists) {
    for (const int64_t tokens : {1, 3, 8})
      ExpectLinearsInOneLaunch(list, 1024, tokens, OneLaunch::kEverywhere);
  }
  // Two forms of so many columns leave room for three stages of weights, or for two.
  for (const int64_t tokens : {5, 6, 7, 8})
    ExpectLinearsInOneLaunch(lists.back(), 4096, tokens, OneLaunch::kOnHopper);
}

TEST(CudaManyTokens, LinearsOfTheSameActivationsAreOneLaunchAndDoNotMeet) {
  const std::vector<std::vector<Product>> lists = {
      {{Format::kBf16, 64, DType::kF32}, {Format::kBf16, 4112, DType::kBF16}},
      {{Format::kFp8, 1024, DType::kBF16},
       {Format::kFp8, 512, DType::kBF16},
       {Format::kBf16, 80, DType::kBF16},
       {Format::kBf16, 256, DType::kF32}},
      // V4.1's.
      {{Format::kMxFp8, 1280, DType::kBF16},
       {Format::kMxFp8, 512, DType::kBF16},
       {Format::kBf16, 32, DType::kBF16},
       {Format::kBf16, 512, DType::kF32}},
      {{Format::kBf16, 256, DType::kF32},
       {Format::kFp8, 2048, DType::kBF16},
       {Format::kFp8, 2048, DType::kBF16}},
  };
  for (const std::vector<Product>& list : lists) {
    for (const int64_t cols : {1024, 2048}) {
      for (const int64_t tokens : {20, 64})
        ExpectLinearsInOneLaunch(list, cols, tokens, OneLaunch::kOnHopper);
      // Several kernels take them. By estimate it is one launch, or one for each kind of weight.
      for (const int64_t tokens : {65, 200, 520, 895})
        ExpectLinearsInOneLaunch(list, cols, tokens, OneLaunch::kWhereItPays);
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
  // Several tiles a block; rows and columns that leave tiles and segments in part empty; rows that are stored
  // one by one.
  constexpr MatrixShape kShapes[] = {{4096, 1024}, {384, 1536}, {200, 4096}, {65, 1536}};
  for (const Format format :
       {Format::kBf16, Format::kFp8, Format::kFp8NaN, Format::kMxFp8, Format::kMxFp8NaN, Format::kFineFp8}) {
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
  for (const Format format : {Format::kBf16, Format::kFp8NaN, Format::kNvFp4, Format::kMxFp8NaN}) {
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
