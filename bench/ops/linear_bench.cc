// linear and grouped_linear in every format, at the batches of decode and prefill.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/ops/bench.h"
#include "formats/number_formats.h"

namespace dsv4::bench {

namespace {

constexpr const char* kFormats[] = {"nvfp4", "nvfp4-subnormal", "mxfp4", "fp8", "bf16"};

// Powers of two are their own FP8 rounding, so the definition is a plain sum.
std::vector<uint16_t> ExactActivations(int64_t count) {
  std::vector<uint16_t> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = Bf16FromFloat(i % 3 == 0 ? -0.5F : (i % 3 == 1 ? 2.0F : 1.0F));
  return x;
}

// y[row] against the definition.
void CheckRow(const Weight& weight, int64_t row, const uint16_t* x, double y, const std::string& what) {
  std::vector<float> values(static_cast<size_t>(weight.cols));
  DequantizeRow(weight, row, values.data());
  double want = 0;
  double magnitude = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double product = static_cast<double>(values[i]) * static_cast<double>(FloatFromBf16(x[i]));
    want += product;
    magnitude += std::fabs(product);
  }
  // Every addition, and the store to bf16.
  const double bound = static_cast<double>(weight.cols) * 0x1p-24 * magnitude + 0x1p-8 * std::fabs(want);
  if (!(std::fabs(y - want) <= bound)) Fail(fmt::format("{}: row {}: {}, want {}", what, row, y, want));
}

// Rows of about so many megabytes.
int64_t RowsOf(const std::string& format, double megabytes, int64_t cols, int64_t multiple) {
  const double bits = format == "bf16" ? 16 : (format == "fp8" ? 8 : 4);
  return static_cast<int64_t>(megabytes * 1e6 * 8 / bits / static_cast<double>(cols)) / multiple * multiple;
}

}  // namespace

void BenchLinear(const Machine& machine, const Wanted& wanted) {
  constexpr int64_t kCols = 4096;
  for (const std::string format : kFormats) {
    // Decode from memory: far more than any last-level cache. Prefill: a matrix of a real layer.
    for (const int64_t tokens : {1, 2, 4, 8, 16, 96, 512}) {
      const std::string what = fmt::format("linear {} x {}", format, tokens);
      if (!wanted(what)) continue;
      const RandomWeight made =
          MakeWeight(format, tokens > 16 ? 2048 : RowsOf(format, 200, kCols, 128), kCols);
      const Weight& weight = made.weight;
      std::vector<uint16_t> x = ExactActivations(tokens * kCols);
      std::vector<uint16_t> y(static_cast<size_t>(tokens * weight.rows));
      const auto run = [&] {
        Require(machine.backend.table.linear(
            *machine.backend.context, {View(x, {tokens, kCols}), &weight, View(y, {tokens, weight.rows})}));
      };
      run();
      for (int64_t row = 0; row < weight.rows; row += weight.rows / 7) {
        const int64_t token = row % tokens;
        CheckRow(weight, row, &x[static_cast<size_t>(token * kCols)],
                 static_cast<double>(FloatFromBf16(y[static_cast<size_t>(token * weight.rows + row)])), what);
      }
      x = Normals(tokens * kCols);
      Print(machine, fmt::format("{} [{}, {}]", what, weight.rows, kCols), Time(machine, run),
            static_cast<double>(made.num_bytes()), static_cast<double>(weight.rows * kCols * tokens));
    }
  }
}

void BenchGroupedLinear(const Machine& machine, const Wanted& wanted) {
  constexpr int64_t kGroups = 8;
  constexpr int64_t kCols = 2048;
  for (const std::string format : {"fp8", "bf16"}) {
    for (const int64_t tokens : {1, 8, 512}) {
      const std::string what = fmt::format("grouped_linear {} x {}", format, tokens);
      if (!wanted(what)) continue;
      RandomWeight made = MakeWeight(
          format, tokens == 512 ? kGroups * 512 : RowsOf(format, 200, kCols, kGroups * 128), kCols);
      made.weight.activation = ActivationQuant::kNone;
      const Weight& weight = made.weight;
      const int64_t rank = weight.rows / kGroups;
      std::vector<uint16_t> x = ExactActivations(tokens * kGroups * kCols);
      std::vector<uint16_t> y(static_cast<size_t>(tokens * weight.rows));
      const auto run = [&] {
        Require(machine.backend.table.grouped_linear(
            *machine.backend.context,
            {View(x, {tokens, kGroups, kCols}), &weight, View(y, {tokens, kGroups, rank})}));
      };
      run();
      for (int64_t row = 0; row < weight.rows; row += weight.rows / 7) {
        const int64_t token = row % tokens;
        CheckRow(weight, row, &x[static_cast<size_t>((token * kGroups + row / rank) * kCols)],
                 static_cast<double>(FloatFromBf16(y[static_cast<size_t>(token * weight.rows + row)])), what);
      }
      x = Normals(tokens * kGroups * kCols);
      Print(machine, fmt::format("{} [8 x {}, {}]", what, rank, kCols), Time(machine, run),
            static_cast<double>(made.num_bytes()), static_cast<double>(weight.rows * kCols * tokens));
    }
  }
}

}  // namespace dsv4::bench
