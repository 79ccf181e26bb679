// The steps on rows that are one launch: tracks, which are rows with all that is done to each of them. Host
// code, in every build.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cuda/lowering/work/rows.h"

namespace dsv4::backend::cuda {

class RowGroup {
 public:
  // Whether one more step may be part of the launch.
  bool Fits(const RowsWork& work) const { return Extended(work).has_value(); }
  // It fits.
  void Add(const RowsWork& work);
  // Whether `rows` are what a track leaves.
  bool Continues(const RowsOperand& rows) const;

  // Blocks of row_tracks.
  int64_t num_rows() const { return num_rows_; }
  // Its arguments but for `fault`.
  const RowTracks& tracks() const { return tracks_; }
  // Work of head_rows or many_rows on the group, if it takes all of it.
  std::optional<HeadRows> AsHeadRows() const;
  std::optional<ManyRows> AsManyRows() const;

 private:
  // The track that the rows go on with, or num_tracks.
  int TrackOf(const RowsOperand& rows) const;
  bool StaysAlone(const RowsWork& work) const;
  bool TouchesOthers(const RowsWork& work, int number) const;
  // The track that the step would be of, with it.
  std::optional<RowTrack> Extended(const RowsWork& work) const;

  RowTracks tracks_ = {};
  int64_t num_rows_ = 0;
  std::vector<std::pair<int, MemoryRange>> touched_;  // By track.
};

// Widths that many_rows has a kernel for, of rms_norm alone; the first also for what may follow.
inline constexpr int64_t kManyRowsWidths[] = {512, 1024, 1536, 4096, 7168};

}  // namespace dsv4::backend::cuda
