// The launch that does the steps of rows.h, a block a row: of tracks, which are rows with all that is done to each of them. Which steps
// come to which launch is decided in rows.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/rows/rows.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

inline constexpr int kMaxTracks = 8;  // Of a launch.
inline constexpr int kMaxTrackSteps = 5;

// Where a block has its row.
enum class RowPlace : uint8_t { kShared, kRegisters, kPooledInRegisters, kNowhere };
// Rows, and what is done to each of them.
struct RowTrack {
  RowsOperand rows;
  int num_steps;
  RowPlace place;
  signed char first[kNumRowStepKinds];  // The first step of a kind, or -1.
  RowStep steps[kMaxTrackSteps];

  __device__ const RowStep* First(RowStepKind kind) const {
    const int i = first[static_cast<int>(kind)];
    return i < 0 ? nullptr : steps + i;
  }
};

struct RowTracks {
  int num_tracks;
  int max_width;
  int max_frequencies;
  int first_blocks[kMaxTracks];  // Of tracks.
  Fault* fault;
  RowTrack tracks[kMaxTracks];  // Last (LaunchList::AddArgument).
};
static_assert(offsetof(RowTracks, tracks) + sizeof(RowTracks::tracks) == sizeof(RowTracks));
static_assert(offsetof(RowTrack, steps) + sizeof(RowTrack::steps) == sizeof(RowTrack));
static_assert(sizeof(RowTracks) <= 4000);  // Arguments of a launch.

// One more step, the last, for a track that has fewer than kMaxTrackSteps.
void AddToTrack(RowTrack& track, const RowStep& step);

// Puts it in place of launch `before`, or adds it (0): its number, 0 if that is too late. num_rows: of all tracks.
uint64_t LaunchRowTracks(CudaContext& context, const RowTracks& tracks, int64_t num_rows, uint64_t before);

}  // namespace dsv4::backend::cuda
