// Microseconds that kernels take by estimate, where the best one changes with the number of tokens. An
// estimate counts rounds of row tiles and waves of blocks, at their times on an H200 (bench/cuda/HISTORY.md).
// They choose, and explain() prints them. Host code, in every build; select_test.cc pins what follows from
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "backend/cuda/lowering/select/experts.h"
#include "backend/cuda/lowering/select/linear.h"
#include "backend/cuda/lowering/splitk_shape.h"

namespace dsv4::backend::cuda {

// --- Experts ---------------------------------------------------------------------------------------------------------

// Tiles of at most `tokens_per_tile` assignments that an expert has on average. Experts are chosen alike:
// chances are Poisson's of mean `mean`.
inline double TilesOfExpert(double mean, int tokens_per_tile) {
  double tiles = 0.0;
  const double spread = 12.0 * std::sqrt(mean) + 16.0;
  const int last = static_cast<int>(mean + spread);
  for (int count = std::max(1, static_cast<int>(mean - spread)); count <= last; ++count) {
    // By logarithms: e^-mean is zero from 746 on.
    const double chance = std::exp(count * std::log(mean) - mean - std::lgamma(count + 1.0));
    const int of_count = (count + tokens_per_tile - 1) / tokens_per_tile;
    tiles += chance * of_count;
  }
  return tiles;
}

inline constexpr int kNarrowTokens = 32;  // A tile of grouped_gemm_narrow,
inline constexpr int kWideTokens = 128;   // and one of grouped_gemm_wide.

// The three kernels of FP4 for experts that have a few tokens up to some hundred. A tile reads an expert's
// three matrices.
inline double ExpertsMicroseconds(ExpertsPath path, const ExpertsShape& s, const DeviceLimits& d) {
  // Bytes a microsecond that all SMs of an H200 get through, and what packing takes.
  struct Rate {
    int tokens_per_tile;
    double bytes;
    double packing;
  };
  const Rate rate = path == ExpertsPath::kGroupedGemvRuns     ? Rate{8, 3.3e6, 5.0}
                    : path == ExpertsPath::kGroupedGemmNarrow ? Rate{kNarrowTokens, 3.3e6, 25.0}
                                                              : Rate{kWideTokens, 2.0e6, 25.0};
  const auto bytes_of = [](const DeviceWeight& w) {
    const int64_t of_row = w.cols / 2 + w.scale_cols;
    return static_cast<double>(w.rows) * static_cast<double>(of_row);
  };
  const double mean = static_cast<double>(s.num_assignments()) / static_cast<double>(s.num_experts);
  const double tiles = static_cast<double>(s.num_here) * TilesOfExpert(mean, rate.tokens_per_tile);
  const double bytes = 2.0 * bytes_of(s.w1) + bytes_of(s.w2);
  return rate.packing + tiles * bytes / rate.bytes * 132.0 / d.num_sms;
}

// --- Linears ---------------------------------------------------------------------------------------------------------

// Cost of one more launch for the same activations: they are packed again, and it begins when the first ends.
inline constexpr double kSecondLaunchMicroseconds = 15.0;

// Linears of the same activations in one launch of gemm_splitk_wgmma or gemm_wgmma, both of which take them.
// For gemm_wgmma they are alike but for their rows.
inline double LinearsMicroseconds(LinearPath path, std::span<const LinearShape> linears,
                                  const DeviceLimits& d) {
  const LinearShape& first = linears.front();
  if (path == LinearPath::kGemmWgmma) {
    int64_t row_tiles = 0;
    for (const LinearShape& s : linears) row_tiles += CeilOf(s.rows_per_group(), kGemmRows) * s.num_groups;
    const int64_t waves = CeilOf(row_tiles * CeilOf(first.num_tokens, 128), d.num_sms);
    const double of_block = first.weight.kind == MatmulKind::kMmaBf16 ? 0.5 : 0.7;  // Cost of 64 columns.
    return 6.0 +
           static_cast<double>(waves) * (4.5 + of_block * static_cast<double>(first.weight.cols) / 64.0);
  }
  const Slices slices = SlicesOf(ShapeOf(first.weight), first.num_tokens);
  const double tokens = slices.tokens / 64.0;
  // Row tiles of a block go two at a time. Sums of several slices are stored, and added by the last.
  const double of_round =
      2.0 + 4.0 * tokens * slices.chunks * kSplitKChunk / 1024.0 + (slices.count > 1 ? 4.0 * tokens : 0.0);
  int64_t most_tiles = 0;
  for (const LinearShape& s : linears) most_tiles = std::max(most_tiles, SplitKTiles(s.rows_per_group()));
  double least = 0.0;
  for (int64_t rounds = 1; 2 * (rounds - 1) < most_tiles; ++rounds) {
    int64_t blocks = 0;
    for (const LinearShape& s : linears)
      blocks += s.num_groups * slices.count * SplitKTokenTiles(slices, s.num_tokens) *
                CeilOf(SplitKTiles(s.rows_per_group()), 2 * rounds);
    const double time =
        static_cast<double>(CeilOf(blocks, d.num_sms)) * (8.0 + static_cast<double>(rounds) * of_round);
    if (least == 0.0 || time < least) least = time;
  }
  return least;
}

inline double LinearMicroseconds(LinearPath path, const LinearShape& s, const DeviceLimits& d) {
  return LinearsMicroseconds(path, {&s, 1}, d);
}

}  // namespace dsv4::backend::cuda
