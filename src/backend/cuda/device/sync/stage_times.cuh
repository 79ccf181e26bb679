// Times inside a launch, by its blocks. Builds with DSV4_CUDA_STAGE_TIMES write them
// (device/sync/stage_times.h); in all others these calls are nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device/sync/stage_times.h"

namespace dsv4::backend::cuda {

#ifdef DSV4_CUDA_STAGE_TIMES

struct StageLog {
  unsigned long long count;  // Ever: the last kStageRecords are there.
  StageRecord records[kStageRecords];
};
static __device__ StageLog stage_log;

[[maybe_unused]] static const bool kStageLogIsKnown = RegisterStageLog([](StageRecord* records,
                                                                          unsigned long long* count) {
  return cudaMemcpyFromSymbol(count, stage_log, sizeof(*count), offsetof(StageLog, count)) == cudaSuccess &&
         cudaMemcpyFromSymbol(records, stage_log, sizeof(stage_log.records), offsetof(StageLog, records)) ==
             cudaSuccess;
});

__device__ __forceinline__ uint64_t* StageTimesOfBlock() {
  __shared__ uint64_t times[kNumStages];
  return times;
}

// The block's first thread is at the stage, for the last time if several times.
__device__ __forceinline__ void MarkStage(Stage stage) {
  if (threadIdx.x != 0) return;
  uint64_t* const times = StageTimesOfBlock();
  if (stage == Stage::kBegin) {
    for (int i = 0; i < kNumStages; ++i) times[i] = 0;
  }
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(times[static_cast<int>(stage)])::"memory");
}
__device__ __forceinline__ void MarkFirst(Stage stage) {
  if (threadIdx.x == 0 && StageTimesOfBlock()[static_cast<int>(stage)] == 0) MarkStage(stage);
}

// The block is done, and has read so many bytes of weights.
__device__ __forceinline__ void EndStages(StageKernel kernel, int64_t num_bytes) {
  MarkStage(Stage::kEnd);
  if (threadIdx.x != 0) return;
  StageRecord& record = stage_log.records[atomicAdd(&stage_log.count, 1ULL) % kStageRecords];
  for (int i = 0; i < kNumStages; ++i) record.times[i] = StageTimesOfBlock()[i];
  record.kernel = kernel;
  record.block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  record.num_blocks = gridDim.x * gridDim.y * gridDim.z;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(record.sm));
  record.num_bytes = num_bytes;
}

#else

__device__ __forceinline__ void MarkStage(Stage) {}
__device__ __forceinline__ void MarkFirst(Stage) {}
__device__ __forceinline__ void EndStages(StageKernel, int64_t) {}

#endif

}  // namespace dsv4::backend::cuda
