// Microseconds that kernels take by estimate, where the best one changes with the number of tokens. An
// estimate counts rounds of row tiles and waves of blocks, at their times on an H200 (bench/cuda/HISTORY.md).
// They choose, and explain() prints them. Host code, in every build; select_test.cc pins what follows from
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backend/cuda/lowering/select/experts.h"
#include "backend/cuda/lowering/select/linear.h"
#include "backend/cuda/lowering/splitk_shape.h"

namespace dsv4::backend::cuda {

// --- Experts ---------------------------------------------------------------------------------------------------------

// Tiles of at most `tokens_per_tile` assignments that an expert has on average. Experts are chosen alike:
// chances are Poisson's of mean `mean`.
inline double TilesOfExpert(double mean, int tokens_per_tile) {
  double tiles = 0.0;
  double chance = std::exp(-mean);
  const int last = static_cast<int>(mean + 12.0 * std::sqrt(mean)) + 16;
  for (int count = 1; count <= last; ++count) {
    chance *= mean / count;
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

// gemm_splitk_wgmma or gemm_wgmma, of a shape that both take.
inline double LinearMicroseconds(LinearPath path, const LinearShape& s, const DeviceLimits& d) {
  const auto ceil_of = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto cols = static_cast<double>(s.weight.cols);
  if (path == LinearPath::kGemmWgmma) {
    const int64_t tiles = ceil_of(s.rows_per_group(), kGemmRows) * s.num_groups * ceil_of(s.num_tokens, 128);
    const double of_block = s.weight.kind == MatmulKind::kMmaBf16 ? 0.5 : 0.7;  // Cost of 64 columns.
    return 6.0 + static_cast<double>(ceil_of(tiles, d.num_sms)) * (4.5 + of_block * cols / 64.0);
  }
  const Slices slices = SlicesOf(ShapeOf(s.weight), s.num_tokens);
  const double tokens = slices.tokens / 64.0;
  // Row tiles of a block go two at a time. Sums of several slices are stored, and added by the last.
  const double of_round =
      2.0 + 4.0 * tokens * slices.chunks * kSplitKChunk / 1024.0 + (slices.count > 1 ? 4.0 * tokens : 0.0);
  const int64_t row_tiles = SplitKTiles(s.rows_per_group());
  const int64_t columns = s.num_groups * slices.count * SplitKTokenTiles(slices, s.num_tokens);
  double least = 0.0;
  for (int64_t rounds = 1; 2 * (rounds - 1) < row_tiles; ++rounds) {
    const int64_t waves = ceil_of(columns * ceil_of(row_tiles, 2 * rounds), d.num_sms);
    const double time = static_cast<double>(waves) * (8.0 + static_cast<double>(rounds) * of_round);
    if (least == 0.0 || time < least) least = time;
  }
  return least;
}

}  // namespace dsv4::backend::cuda
