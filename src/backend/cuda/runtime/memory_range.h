// Memory that a launch reads or writes, for ops that decide whether two launches may be one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4::backend::cuda {

struct MemoryRange {
  const void* data = nullptr;
  size_t num_bytes = 0;
};

inline bool Overlap(const MemoryRange& a, const MemoryRange& b) {
  const auto begin = [](const MemoryRange& r) { return reinterpret_cast<uintptr_t>(r.data); };
  return a.num_bytes > 0 && b.num_bytes > 0 && begin(a) < begin(b) + b.num_bytes &&
         begin(b) < begin(a) + a.num_bytes;
}

// Rows of bf16 or fp32, `stride` elements apart: from the first element of the first behind the last of the
// last.
inline MemoryRange RangeOfRows(const void* data, int64_t stride, int64_t columns, bool is_bf16,
                               int64_t num_rows) {
  if (data == nullptr || num_rows == 0) return {};
  return {data, static_cast<size_t>(((num_rows - 1) * stride + columns) * (is_bf16 ? 2 : 4))};
}

}  // namespace dsv4::backend::cuda
