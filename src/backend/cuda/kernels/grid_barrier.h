// A meeting place of blocks in device memory (grid_barrier.cuh). Zero at first; it is left as the next launch needs it.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

struct GridBarrier {
  uint32_t arrived;
  uint32_t round;
  uint32_t alone[30];  // In a cache line.
};

// Of a context: a launch uses as many as it has groups of blocks that meet.
inline constexpr int kNumGridBarriers = 8;

}  // namespace dsv4::backend::cuda
