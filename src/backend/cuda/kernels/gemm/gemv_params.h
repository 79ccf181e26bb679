// Parameters of the kernels for a few tokens (gemv_tiles.cuh): matrices and activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/lowering/gemv_shape.h"
#include "backend/cuda/runtime/prefetch_plan.h"

namespace dsv4::backend::cuda {

// Ranges that a reader of `rows` rows of such a matrix reads (DeviceQueue::NoteReader).
inline void AddReadRanges(std::vector<ReadRange>& ranges, const StreamShape& shape, const uint8_t* data,
                          const uint8_t* scale, int64_t rows) {
  ranges.push_back({reinterpret_cast<const std::byte*>(data), static_cast<size_t>(rows * shape.row_bytes)});
  if (shape.scale_row_bytes > 0)
    ranges.push_back(
        {reinterpret_cast<const std::byte*>(scale), static_cast<size_t>(rows * shape.scale_row_bytes)});
}

}  // namespace dsv4::backend::cuda
