// As cuda_many_tokens_test.cc, for the ops that turn rows into rows and for those element by element. From
// 257 tokens on, or a million elements, they have kernels of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/cache_rows.h"
#include "tests/cuda/device_tensors.h"
#include "tests/cuda/mixes.h"

namespace dsv4::testing {
namespace {

constexpr int64_t kTokens = 331;
// Each of few tokens.
const std::vector<Cut> kFew = {{0, 1}, {1, 9}, {9, 60}, {60, 316}, {316, kTokens}};

constexpr uint16_t kInfinity = 0x7F80;
constexpr uint16_t kNaN = 0x7FC1;

// Rows of large numbers, small ones, or both: their squares' sum is not finite, or is off by its whole size.
std::vector<uint16_t> RowsOfAllSizes(int64_t num_rows, int64_t width) {
  std::vector<uint16_t> values = Bf16s(Normals(num_rows * width, 1));
  const auto row = [&](int64_t i) { return values.begin() + static_cast<ptrdiff_t>(i * width); };
  std::fill(row(100), row(101), uint16_t{0});
  std::fill(row(101), row(102), uint16_t{0x0001});
  std::fill(row(102), row(103), uint16_t{0x8000});
  for (int64_t i = 0; i < width; ++i) {
    row(103)[i] = static_cast<uint16_t>(i * 137);  // Down to subnormals.
    if ((row(103)[i] & 0x7F80) == 0x7F80) row(103)[i] = 0xBF80;
    row(104)[i] = static_cast<uint16_t>(0x7F7F - i % 512);
  }
  row(105)[3] = 0x7F7F;
  row(106)[width - 1] = 0xDF80;  // A number whose square is 2^128.
  return values;
}

TEST(CudaManyRows, NormsGiveTheBitsOfFewTokens) {
  Device device;
  for (const int64_t width : {512, 1024, 1536, 4096, 7168, 640, 2052}) {
    const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, width}, RowsOfAllSizes(kTokens, width));
    std::vector<float> factors = Normals(width, 2);
    factors[5] = 0.0F;
    factors[static_cast<size_t>(width - 2)] = 1e-40F;
    const DeviceTensor weight = device.Copy(DType::kF32, {width}, factors);
    const DeviceTensor y = device.New(DType::kBF16, {kTokens, width});
    ExpectTheSameInCuts(device, y.view, kFew, "rms_norm " + y.view.shape.ToString(), [&](const Cut& cut) {
      return device.table().rms_norm(
          device.context(),
          {.x = Rows(x.view, cut), .weight = weight.view, .y = Rows(y.view, cut), .eps = 1e-6F});
    });
  }
}

// Which NaN they are may differ from kernel to kernel.
TEST(CudaManyRows, WhatIsNoNumberStaysInItsRow) {
  Device device;
  for (const int64_t width : {512, 1024, 4096}) {
    for (const int64_t tokens : {int64_t{20}, kTokens}) {
      std::vector<uint16_t> values = Bf16s(Normals(tokens * width, 1));
      const auto at = [&](int64_t row, int64_t column) { return static_cast<size_t>(row * width + column); };
      values[at(7, 11)] = kNaN;
      values[at(tokens - 1, width - 3)] = kInfinity;
      const DeviceTensor x = device.Copy(DType::kBF16, {tokens, width}, values);
      const DeviceTensor weight =
          device.Copy(DType::kF32, {width}, std::vector<float>(static_cast<size_t>(width), 1.0F));
      const DeviceTensor y = device.New(DType::kBF16, {tokens, width});
      const Status status = device.table().rms_norm(
          device.context(), {.x = x.view, .weight = weight.view, .y = y.view, .eps = 1e-6F});
      ASSERT_TRUE(status.ok()) << status.ToString();
      const std::vector<std::byte> bytes = device.Bytes(y.view);
      int64_t wrong = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, &bytes[i * sizeof(bits)], sizeof(bits));
        // The row's factor is 0 beside what is infinite.
        const bool is_nan = i / static_cast<size_t>(width) == 7 || i == at(tokens - 1, width - 3);
        const bool is_zero = !is_nan && (i >= at(tokens - 1, 0) || (values[i] & 0x7FFF) == 0);
        if (std::isnan(FloatFromBf16(bits)) != is_nan || ((bits & 0x7FFF) == 0) != is_zero) ++wrong;
      }
      EXPECT_EQ(wrong, 0) << tokens << " tokens of " << width;
    }
  }
}

// Ops that store window rows: norm, rotation, rounding, and rows that go to one run, to two, or to none.
TEST(CudaManyRows, WindowRowsAreTheBitsOfFewTokensAndOneLaunch) {
  Device device;
  constexpr int64_t kWidth = 512;
  constexpr int64_t kFrequencies = 32;
  constexpr int64_t kRounded = 448;
  const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, kWidth}, RowsOfAllSizes(kTokens, kWidth));
  const DeviceTensor weight = device.Copy(DType::kF32, {kWidth}, Normals(kWidth, 2));
  const DeviceTensor frequencies = device.Copy(DType::kF32, {kFrequencies}, Normals(kFrequencies, 7, 0.7F));
  std::vector<int32_t> at;
  for (int32_t t = 0; t < kTokens; ++t) at.push_back(t * 977 % 100003);
  const DeviceTensor positions = device.Copy(DType::kI32, {kTokens}, at);
  const DeviceTensor y = device.New(DType::kBF16, {kTokens, kWidth});
  const DeviceTensor ring = device.New(DType::kBF16, {kTokens, kWidth});
  const DeviceTensor last = device.New(DType::kBF16, {kTokens, kWidth});
  for (const bool rotates : {true, false}) {
    for (const bool rounds : {true, false}) {
      const auto run = [&](const Cut& cut) {
        const TensorView rows = Rows(y.view, cut);
        const ops::OpTable& table = device.table();
        Status status = table.rms_norm(
            device.context(), {.x = Rows(x.view, cut), .weight = weight.view, .y = rows, .eps = 1e-6F});
        if (status.ok() && rotates) {
          status = table.rope(device.context(), {.x = rows.Reshaped({rows.shape[0], 1, kWidth}),
                                                 .positions = Rows(positions.view, cut),
                                                 .frequencies = frequencies.view,
                                                 .inverse = false});
        }
        if (status.ok() && rounds)
          status = table.simulate_fp8(device.context(), {.x = rows, .num_columns = kRounded});
        if (!status.ok()) return status;
        const int64_t n = rows.shape[0];
        std::vector<RowRun> runs = {{0, n / 3, Rows(ring.view, cut).data},
                                    {n / 3, n - n / 3, ring.view.Rows(cut.begin + n / 3, cut.end).data},
                                    {n / 2, n - n / 2, last.view.Rows(cut.begin + n / 2, cut.end).data}};
        // More than a warp has lanes.
        for (int i = 0; i < 40; ++i) runs.push_back({0, 0, last.view.data});
        if (n > 1) runs.push_back({0, n / 2, Rows(last.view, cut).data});
        return table.store_rows(device.context(), {.source = rows, .runs = runs});
      };
      const std::string what =
          std::string("rotates ") + (rotates ? "1" : "0") + ", rounds " + (rounds ? "1" : "0");
      ExpectTheSameInCuts(device, y.view, kFew, "rows, " + what, run);
      ExpectTheSameInCuts(device, ring.view, kFew, "ring, " + what, run);
      ExpectTheSameInCuts(device, last.view, kFew, "other ring, " + what, run);
      const int64_t before = device.launches();
      ASSERT_TRUE(run({0, kTokens}).ok());
      EXPECT_EQ(device.Bytes(y.view) == device.Bytes(ring.view), true) << what;
      EXPECT_EQ(device.launches() - before, 1) << what;
    }
  }
}

// Rows of a window and keys of the indexer that are rounded and stored packed, few and many. The bytes are
// those that PackRow makes of the launch's rows. Among them: groups of zeros, tiny ones, those whose largest
// value fits half the scale when it is rounded, and NaNs.
TEST(CudaManyRows, WhatIsStoredPackedIsWhatPackRowMakesOfIt) {
  Device device;
  constexpr int64_t kFrequencies = 32;
  const DeviceTensor frequencies = device.Copy(DType::kF32, {kFrequencies}, Normals(kFrequencies, 7, 0.7F));
  for (const int64_t width : {int64_t{512}, int64_t{128}}) {
    const CacheFormat format = width == 128 ? CacheFormat::Fp4(128, 32) : CacheFormat::Fp8(448, 64);
    std::vector<uint16_t> values = RowsOfAllSizes(kTokens, width);
    values[static_cast<size_t>(110 * width + 5)] = kNaN;
    values[static_cast<size_t>(111 * width + 5)] = kNaN | 0x8000;
    const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, width}, values);
    std::vector<float> weights = Normals(width, 2);
    if (width == 512) {
      for (int64_t i = 0; i < 64; ++i) {
        weights[static_cast<size_t>(64 + i)] *= 0.0F;
        weights[static_cast<size_t>(128 + i)] *= 1e-6F;
        weights[static_cast<size_t>(192 + i)] *= 1e-30F;
        weights[static_cast<size_t>(256 + i)] *= 1e6F;
      }
    }
    const DeviceTensor weight = device.Copy(DType::kF32, {width}, weights);
    std::vector<int32_t> at;
    for (int32_t t = 0; t < kTokens; ++t) at.push_back(t * 977 % 100003);
    const DeviceTensor positions = device.Copy(DType::kI32, {kTokens}, at);
    const DeviceTensor y = device.New(DType::kBF16, {kTokens, width});
    const int64_t row_bytes = format.RowBytes(width);
    const DeviceTensor stored = device.New(DType::kU8, {kTokens, row_bytes});
    const DeviceTensor again = device.New(DType::kU8, {kTokens, row_bytes});
    for (const Cut& cut : {Cut{0, 1}, Cut{90, 120}, Cut{0, kTokens}}) {
      const ops::OpTable& table = device.table();
      const TensorView rows = Rows(y.view, cut);
      device.Bytes(rows);  // Copies that are queued count as launches when they begin.
      const int64_t before = device.launches();
      Status status = table.rms_norm(
          device.context(), {.x = Rows(x.view, cut), .weight = weight.view, .y = rows, .eps = 1e-6F});
      if (status.ok()) {
        status = table.rope(device.context(), {.x = rows.Reshaped({rows.shape[0], 1, width}),
                                               .positions = Rows(positions.view, cut),
                                               .frequencies = frequencies.view,
                                               .inverse = false});
      }
      if (status.ok()) {
        status = width == 128
                     ? table.hadamard_fp4(device.context(), {.x = rows})
                     : table.simulate_fp8(device.context(), {.x = rows, .num_columns = format.num_coded});
      }
      const RowRun all_runs[] = {{0, rows.shape[0], Rows(stored.view, cut).data},
                                 {0, rows.shape[0], Rows(again.view, cut).data}};
      const std::span<const RowRun> runs = std::span(all_runs).first(rows.shape[0] == 1 ? 1 : 2);
      if (status.ok())
        status = table.store_rows(device.context(), {.source = rows, .runs = runs, .pack = format});
      ASSERT_TRUE(status.ok()) << status.ToString();
      const std::string what = std::to_string(rows.shape[0]) + " rows of " + std::to_string(width);
      const std::vector<std::byte> left = device.Bytes(rows);
      if (rows.shape[0] < 257 || width == 512) {
        EXPECT_EQ(device.launches() - before, 1) << what;
      }
      std::vector<std::byte> want(static_cast<size_t>(rows.shape[0] * row_bytes));
      std::vector<float> row(static_cast<size_t>(width));
      for (int64_t r = 0; r < rows.shape[0]; ++r) {
        for (int64_t i = 0; i < width; ++i) {
          uint16_t bits = 0;
          std::memcpy(&bits, &left[static_cast<size_t>(r * width + i) * sizeof(bits)], sizeof(bits));
          row[static_cast<size_t>(i)] = FloatFromBf16(bits);
        }
        const Status packed = PackRow(format, row, want.data() + r * row_bytes);
        ASSERT_TRUE(packed.ok()) << what << ", row " << cut.begin + r << ": " << packed.ToString();
      }
      const std::vector<std::byte> got = device.Bytes(Rows(stored.view, cut));
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i], want[i]) << what << ", row " << cut.begin + static_cast<int64_t>(i) / row_bytes
                                   << ", byte " << static_cast<int64_t>(i) % row_bytes;
      }
      if (runs.size() == 2) {
        EXPECT_EQ(device.Bytes(Rows(again.view, cut)) == want, true) << what;
      }
    }
  }
}

// A row of no position is reported, whatever else there is.
TEST(CudaManyRows, APositionBelowZeroIsReported) {
  Device device;
  constexpr int64_t kWidth = 512;
  const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, kWidth}, RowsOfAllSizes(kTokens, kWidth));
  const DeviceTensor weight = device.Copy(DType::kF32, {kWidth}, Normals(kWidth, 2));
  const DeviceTensor frequencies = device.Copy(DType::kF32, {32}, Normals(32, 7, 0.7F));
  std::vector<int32_t> at(kTokens, 5);
  at[270] = -4;
  const DeviceTensor positions = device.Copy(DType::kI32, {kTokens}, at);
  ASSERT_TRUE(device.table()
                  .rms_norm(device.context(), {.x = x.view, .weight = weight.view, .y = x.view, .eps = 1e-6F})
                  .ok());
  ASSERT_TRUE(device.table()
                  .rope(device.context(), {.x = x.view.Reshaped({kTokens, 1, kWidth}),
                                           .positions = positions.view,
                                           .frequencies = frequencies.view,
                                           .inverse = false})
                  .ok());
  uint16_t bits = 0;
  const Status status = device.memory().CopyToHost(&bits, x.view.data, sizeof(bits), nullptr);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.ToString().find("-4"), std::string::npos) << status.ToString();
}

TEST(CudaManyRows, CombinationsGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kWidth = 3172;  // No whole blocks.
  const DeviceTensor routed = device.Copy(DType::kF32, {kTokens, kWidth}, Normals(kTokens * kWidth, 1));
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::vector<float> values = Normals(kTokens * kWidth, 2);
    const DeviceTensor shared = dtype == DType::kF32 ? device.Copy(dtype, {kTokens, kWidth}, values)
                                                     : device.Copy(dtype, {kTokens, kWidth}, Bf16s(values));
    const DeviceTensor y = device.New(dtype, {kTokens, kWidth});
    const std::string of(DTypeName(dtype));
    for (const bool has_shared : {true, false}) {
      ExpectTheSameInCuts(device, y.view, kFew, of + (has_shared ? ", two" : ", one"), [&](const Cut& cut) {
        return device.table().moe_combine(device.context(),
                                          {.routed = Rows(routed.view, cut),
                                           .shared = has_shared ? Rows(shared.view, cut) : TensorView(),
                                           .y = Rows(y.view, cut)});
      });
    }
    ExpectTheSameInCuts(device, y.view, kFew, of + " in place", [&](const Cut& cut) {
      const TensorView rows = Rows(y.view, cut);
      const Status status = device.memory().Copy(rows.data, Rows(shared.view, cut).data,
                                                 static_cast<size_t>(rows.num_bytes()), nullptr);
      if (!status.ok()) return status;
      return device.table().moe_combine(device.context(),
                                        {.routed = Rows(routed.view, cut), .shared = rows, .y = rows});
    });
  }
}

TEST(CudaManyRows, ActivationsGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kWidth = 3176;
  std::vector<uint16_t> gates = Bf16s(Normals(kTokens * kWidth, 1, 4.0F));
  for (size_t i = 0; i < 1000; ++i) gates[i * 1001] = static_cast<uint16_t>(i * 65);
  const DeviceTensor gate = device.Copy(DType::kBF16, {kTokens, kWidth}, gates);
  const DeviceTensor up =
      device.Copy(DType::kBF16, {kTokens, kWidth}, Bf16s(Normals(kTokens * kWidth, 2, 4.0F)));
  const DeviceTensor weights = device.Copy(DType::kF32, {kTokens}, Normals(kTokens, 3));
  const DeviceTensor y = device.New(DType::kBF16, {kTokens, kWidth});
  for (const float limit : {7.0F, std::numeric_limits<float>::infinity()}) {
    for (const bool weighs : {true, false}) {
      ExpectTheSameInCuts(device, y.view, kFew, weighs ? "with weights" : "without", [&](const Cut& cut) {
        return device.table().swiglu(device.context(),
                                     {.gate = Rows(gate.view, cut),
                                      .up = Rows(up.view, cut),
                                      .row_weights = weighs ? Rows(weights.view, cut) : TensorView(),
                                      .y = Rows(y.view, cut),
                                      .limit = limit});
      });
    }
  }
}

// Tokens that linears read one after the other are packed once; not where they have changed, or other ones
// have been packed, in between. Two of the formats follow each other as they are.
void ExpectOnePackLess(const std::vector<Format>& formats, int64_t tokens) {
  const std::string what = std::to_string(formats.size()) + " linears, " + std::to_string(tokens) + " tokens";
  Device device;
  constexpr int64_t kCols = 1024;
  constexpr int64_t kRows = 384;
  const DeviceTensor x = device.Copy(DType::kBF16, {tokens, kCols}, Bf16s(Normals(tokens * kCols, 1)));
  const DeviceTensor other = device.Copy(DType::kBF16, {tokens, kCols}, Bf16s(Normals(tokens * kCols, 2)));
  std::vector<Weight> weights;
  std::vector<DeviceTensor> y;
  for (const Format format : formats) {
    weights.push_back(RandomWeight(device, format, kRows, kCols, static_cast<uint32_t>(3 + weights.size())));
    y.push_back(device.New(DType::kBF16, {tokens, kRows}));
  }
  using Results = std::vector<std::vector<std::byte>>;
  struct Run {
    Results results;
    int64_t launches;
  };
  // Each alone, since reading its result hands its launches to the device; or one after the other, with
  // something behind the first.
  const auto run = [&](bool alone, auto&& between) {
    device.Bytes(x.view);
    const int64_t before = device.launches();
    for (size_t i = 0; i < weights.size(); ++i) {
      const Status status =
          device.table().linear(device.context(), {.x = x.view, .weight = &weights[i], .y = y[i].view});
      EXPECT_TRUE(status.ok()) << what << ": " << status.ToString();
      if (i == 0) between();
      if (alone) device.Bytes(x.view);
    }
    device.Bytes(x.view);
    Run seen = {.results = {}, .launches = device.launches() - before};
    for (const DeviceTensor& result : y) seen.results.push_back(device.Bytes(result.view));
    return seen;
  };
  const auto nothing = [] {};
  run(true, nothing);  // Scratch grows.
  const Run alone = run(true, nothing);
  const Run together = run(false, nothing);
  EXPECT_EQ(together.results == alone.results, true) << what;
  // Only kernels for Hopper's tensor cores have their tokens packed, or are one launch for several linears.
  if (device.runs_hopper_code()) {
    EXPECT_LT(together.launches, alone.launches) << what;
  } else {
    EXPECT_EQ(together.launches, alone.launches) << what;
  }
  // Changed by a launch, then by a copy.
  for (const bool scales : {true, false}) {
    const Run first = run(true, nothing);
    const Run changed = run(false, [&] {
      const Status status =
          scales ? device.table().scale(device.context(), {.x = x.view, .y = x.view, .factor = -3.0F})
                 : device.memory().Copy(x.view.data, other.view.data, static_cast<size_t>(x.view.num_bytes()),
                                        nullptr);
      EXPECT_TRUE(status.ok()) << what << ": " << status.ToString();
    });
    const Run second = run(true, nothing);
    EXPECT_EQ(changed.results[0] == first.results[0], true) << what;
    EXPECT_NE(changed.results[1] == first.results[1], true) << what;
    for (size_t i = 1; i < weights.size(); ++i)
      EXPECT_EQ(changed.results[i] == second.results[i], true) << what << ", linear " << i;
  }
}

TEST(CudaManyRows, TokensAreNotPackedAgainForTheNextLinear) {
  for (const int64_t tokens : {331, 1061}) {
    ExpectOnePackLess({Format::kFp8, Format::kFp8, Format::kBf16, Format::kFp8}, tokens);
    ExpectOnePackLess({Format::kBf16, Format::kBf16}, tokens);
    ExpectOnePackLess({Format::kNvFp4, Format::kNvFp4}, tokens);
  }
}

// hc_post alone and with moe_combine in front of it; numbers from subnormal to so large that a stream's sum
// is infinite.
TEST(CudaManyRows, StreamsGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kMult = 4;
  for (const int64_t dim : {int64_t{1080}, int64_t{4096}}) {
    const DeviceTensor streams =
        device.Copy(DType::kBF16, {kTokens, kMult, dim}, RowsOfAllSizes(kTokens * kMult, dim));
    const DeviceTensor routed = device.Copy(DType::kF32, {kTokens, dim}, Normals(kTokens * dim, 2));
    const DeviceTensor shared = device.Copy(DType::kBF16, {kTokens, dim}, Bf16s(Normals(kTokens * dim, 3)));
    const DeviceTensor post = device.Copy(DType::kF32, {kTokens, kMult}, Normals(kTokens * kMult, 4));
    const DeviceTensor comb =
        device.Copy(DType::kF32, {kTokens, kMult, kMult}, Normals(kTokens * kMult * kMult, 5));
    const DeviceTensor y = device.New(DType::kBF16, {kTokens, dim});
    const DeviceTensor out = device.New(DType::kBF16, {kTokens, kMult, dim});
    for (const int operands : {0, 1, 2}) {
      const auto run = [&](const Cut& cut) {
        if (operands > 0) {
          const Status status = device.table().moe_combine(
              device.context(), {.routed = Rows(routed.view, cut),
                                 .shared = operands == 2 ? Rows(shared.view, cut) : TensorView(),
                                 .y = Rows(y.view, cut)});
          if (!status.ok()) return status;
        }
        return device.table().hc_post(device.context(), {.y = Rows(operands > 0 ? y.view : shared.view, cut),
                                                         .residual = Rows(streams.view, cut),
                                                         .post = Rows(post.view, cut),
                                                         .comb = Rows(comb.view, cut),
                                                         .out = Rows(out.view, cut)});
      };
      const std::string what = std::to_string(operands) + " operands, dim " + std::to_string(dim);
      ExpectTheSameInCuts(device, out.view, kFew, "out, " + what, run);
      if (operands > 0) ExpectTheSameInCuts(device, y.view, kFew, "y, " + what, run);
      const int64_t before = device.launches();
      ASSERT_TRUE(run({0, kTokens}).ok());
      device.Bytes(y.view);
      EXPECT_EQ(device.launches() - before, 1) << what;
    }
  }
}

// So many that the mixes are launches of their own.
TEST(CudaManyRows, MixesOfAThousandTokensGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kMany = 1061;
  for (const int64_t dim : {int64_t{1024}, int64_t{1080}, int64_t{4096}}) {
    std::vector<uint16_t> values = RowsOfAllSizes(kMany * Mixes::kMult, dim);
    values[static_cast<size_t>(200 * Mixes::kMult * dim + 9)] = 0x7F7F;
    Mixes(device, kMany, dim, values).ExpectTheSame({{0, 1}, {1, 9}, {9, 60}, {60, 316}, {316, kMany}});
  }
}

}  // namespace
}  // namespace dsv4::testing
