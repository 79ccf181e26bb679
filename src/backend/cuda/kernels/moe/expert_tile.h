// Tile of the experts' GEMMs: assignments of one expert that meet its weights together.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

// Part of a list that is sorted by expert: [begin, begin + count). The list is of assignments (token * top_k
// + slot), or of packed rows (kernels/moe/expert_tiles.h).
struct ExpertTile {
  int32_t expert;
  int32_t begin;
  int32_t count;  // 0: nothing to do.
};

}  // namespace dsv4::backend::cuda
