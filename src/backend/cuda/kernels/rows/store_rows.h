// store_rows by launches of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device/numeric/device_array.h"
#include "tensor/cache_format.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

class LaunchContext;

struct ByteRun {
  const std::byte* source;
  std::byte* destination;
  int64_t num_bytes;
};
// Blocks that share the longest run out.
int64_t SharesOfRun(int64_t longest);
void LaunchStoreRows(LaunchContext& context, const DeviceArray<ByteRun>& runs, int64_t shares);

// Rows [begin, end) of the source, whose codes `destination` gets.
struct PackedRun {
  int64_t begin;
  int64_t end;
  unsigned char* destination;
};
// `source`: bf16. `in_registers`: PacksInRegisters.
void LaunchStorePacked(LaunchContext& context, const DeviceArray<PackedRun>& runs, int64_t shares,
                       const TensorView& source, const CacheFormat& format, bool in_registers);

}  // namespace dsv4::backend::cuda
