// When a list's weights are asked for ahead of the launches that read them.
//
// A step is launches that read weights as fast as memory gives them, and between them launches so small that
// memory idles. Which weights come next is known while those run (all but routed experts'), so they can be on
// their way into the L2 cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dsv4::backend::cuda {

struct ReadRange {
  const std::byte* data = nullptr;
  size_t num_bytes = 0;
  friend bool operator==(const ReadRange&, const ReadRange&) = default;
};

// A launch that reads weights; without ranges: which ones, only the device knows.
struct WeightReader {
  size_t launch = 0;  // In its list.
  std::vector<ReadRange> ranges;
};

// Ranges to ask for when the launch in front of `before` has ended (0: at once), while those from `before` on
// run.
struct Prefetch {
  size_t before = 0;
  std::vector<ReadRange> ranges;  // Ranges of whole kilobytes but for their ends; never empty.
  friend bool operator==(const Prefetch&, const Prefetch&) = default;
};

// Bytes that memory gives while a small launch runs, 3 us or so. Launches that follow each other get at most
// so many: the cache must hold them until they are read.
inline constexpr size_t kPrefetchBytesOfLaunch = size_t{12} << 20;
inline constexpr size_t kMaxPrefetchBytes = size_t{24} << 20;

// `readers` in the order of their launches. Each gap between readers (and in front of the first) brings the
// first bytes of the readers behind it. It goes as far as the gap's launches give time and up to a reader
// whose weights are not known. No range is asked for twice.
std::vector<Prefetch> PlanPrefetches(std::span<const WeightReader> readers);

}  // namespace dsv4::backend::cuda
