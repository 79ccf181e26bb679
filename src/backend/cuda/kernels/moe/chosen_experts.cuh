// Which experts a token has chosen, for the kernels that stream them.
#pragma once

#include "backend/cuda/device/sync/device_fault.cuh"

namespace dsv4::backend::cuda {

// The expert of a slot of indices, [num_tokens, top_k]; one that does not exist is reported by block 0, and
// some other replaces it.
__device__ __forceinline__ int ChosenExpert(const int32_t* indices, int64_t token, int top_k, int slot,
                                            int num_experts, Fault* fault) {
  const int expert = indices[token * top_k + slot];
  if (expert >= 0 && expert < num_experts) return expert;
  if (blockIdx.x == 0) ReportFault(fault, FaultKind::kExpertIndex, token, slot, expert, num_experts);
  return 0;
}

// How many of the chosen experts come before that of a slot: lower ones, and the same in earlier slots.
__device__ __forceinline__ int RankOfSlot(const int* experts, int top_k, int slot) {
  int rank = 0;
  for (int other = 0; other < top_k; ++other)
    rank += experts[other] < experts[slot] || (experts[other] == experts[slot] && other < slot) ? 1 : 0;
  return rank;
}

}  // namespace dsv4::backend::cuda
