// Times of stages inside launches, of builds with DSV4_CUDA_STAGE_TIMES. Every block of the kernels of a
// decode step notes when it began, when its input was there, when its first weights were. The environment
// variable of that name says to which file they go when the queue ends; tools/stage_times.py makes a table of
// it. Device clocks alone: no profiler is needed.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

enum class Stage : uint8_t {
  kBegin,     // The block runs.
  kAsked,     // First weights are asked for; from here it waits for its input.
  kInput,     // Launches in front have ended.
  kReady,     // Activations are in shared memory.
  kFirst,     // The first weights have been multiplied,
  kStreamed,  // and the last.
  kMet,       // Second phase: the other blocks' results are there; then as above.
  kReadySecond,
  kStreamedSecond,
  kEnd,
};
inline constexpr int kNumStages = 10;

enum class StageKernel : uint32_t {
  kStream,
  kPair,
  kExperts,
  kHyperConnection,
  kRows,
  kRouter,
  kAttention,
  kIndexer
};

struct StageRecord {
  uint64_t times[kNumStages];  // Nanoseconds of %globaltimer; 0: no such stage.
  StageKernel kernel;
  uint32_t block;
  uint32_t num_blocks;
  uint32_t sm;
  int64_t num_bytes;  // Bytes of weights that the block read.
};
inline constexpr uint64_t kStageRecords = uint64_t{1} << 17;

// Copies a log's records and their count from the device; whether that went well.
using ReadStageLog = bool (*)(StageRecord* records, unsigned long long* count);
bool RegisterStageLog(ReadStageLog read);
// Appends all logs' records to the file that the environment names, a line each; nothing without.
void WriteStageTimes();

}  // namespace dsv4::backend::cuda
