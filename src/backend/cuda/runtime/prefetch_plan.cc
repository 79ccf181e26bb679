// Plan of prefetches for a launch list: which weights are asked for beside which earlier launch.
#include "backend/cuda/runtime/prefetch_plan.h"

#include <algorithm>

namespace dsv4::backend::cuda {
namespace {

// How far the bytes of readers have been asked for: reader `reader`, `range` of its ranges, `done` bytes of
// that.
struct Progress {
  size_t reader = 0;
  size_t range = 0;
  size_t done = 0;

  friend auto operator<=>(const Progress&, const Progress&) = default;
};

// Asks for up to `budget` bytes from `progress` on.
std::vector<ReadRange> Take(std::span<const WeightReader> readers, size_t budget, Progress& progress) {
  constexpr size_t kPiece = 1024;
  std::vector<ReadRange> taken;
  while (progress.reader < readers.size() && !readers[progress.reader].ranges.empty()) {
    const std::vector<ReadRange>& ranges = readers[progress.reader].ranges;
    if (progress.range == ranges.size()) {
      progress = {.reader = progress.reader + 1};
      continue;
    }
    const ReadRange& range = ranges[progress.range];
    const size_t left = range.num_bytes - progress.done;
    const size_t count = std::min(left, budget / kPiece * kPiece);
    if (count == 0 && left > 0) break;
    if (count > 0) taken.push_back({range.data + progress.done, count});
    budget -= count;
    progress.done += count;
    if (progress.done == range.num_bytes) progress = {progress.reader, progress.range + 1, 0};
  }
  return taken;
}

}  // namespace

std::vector<Prefetch> PlanPrefetches(std::span<const WeightReader> readers) {
  std::vector<Prefetch> plan;
  Progress progress;
  size_t begin = 0;  // The gap's.
  for (size_t r = 0; r < readers.size(); ++r) {
    const size_t gap = readers[r].launch - begin;
    // Bytes that readers have read themselves are not asked for any more.
    progress = std::max(progress, Progress{.reader = r});
    if (gap > 0) {
      const size_t budget = std::min(gap * kPrefetchBytesOfLaunch, kMaxPrefetchBytes);
      std::vector<ReadRange> ranges = Take(readers, budget, progress);
      if (!ranges.empty()) plan.push_back({begin, std::move(ranges)});
    }
    begin = readers[r].launch + 1;
  }
  return plan;
}

}  // namespace dsv4::backend::cuda
