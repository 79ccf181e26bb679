// Parts of a checkpoint that were never written: runs of zero bytes, and tables and biases without content. A
// broken download, a full disk or a tool that died leaves them. Magnitudes (checkpoint_check.h) cannot see
// them: the rest looks as it should.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/checkpoint/weights.h"

namespace dsv4::diag {

struct ZeroRuns {
  int64_t num_bytes = 0;  // In runs of at least the length asked for.
  int64_t longest = 0;
  int64_t begin = 0;  // The longest's.
};
// Looks at one chunk of min_run / 2 bytes every `stride` bytes (at least as many), and around it where it is
// zero. A stride of one chunk misses no run; a longer stride may miss runs that are shorter than it.
ZeroRuns FindZeroRuns(std::span<const std::byte> bytes, int64_t min_run, int64_t stride);

struct Hole {
  int layer = -1;
  std::string name;  // The tensor's.
  std::string text;  // Fault of it.
};

struct Holes {
  std::vector<Hole> found;
  std::string evidence;  // How much was looked at.
};
// A tensor of the file that `weights` reads, with the layer in its name ("model.layers.12.attn.wo_b.weight"); -1 without one.
struct ReadTensor {
  const io::StoredTensor* tensor = nullptr;
  int layer = -1;
};
std::vector<ReadTensor> TensorsRead(const model::ModelWeights& weights,
                                    const model::ResolvedCheckpoint& resolved);

// Holes in the tensors that `weights` reads. Bytes past 8 GiB are looked at in chunks 64 KiB apart.
Holes LookForHoles(const model::ModelWeights& weights, const model::ResolvedCheckpoint& resolved);

}  // namespace dsv4::diag
