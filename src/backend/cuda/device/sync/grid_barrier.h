// A barrier of blocks in device memory (grid_barrier.cuh). Zero at first; it is left as the next launch needs
// it.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

inline constexpr int kArrivalsOfBarrier = 30;

struct GridBarrier {
  uint32_t arrived;
  uint32_t left;
  uint32_t arrivals
      // For kernels that count blocks in other words than this one; zero between launches.
      [kArrivalsOfBarrier];
};

// Barriers of a context: a launch uses as many as it has groups of blocks that meet.
inline constexpr int kNumGridBarriers = 32;

}  // namespace dsv4::backend::cuda
