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

}  // namespace dsv4::backend::cuda
