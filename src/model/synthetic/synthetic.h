// Random checkpoints of a real or small shape, in every format the loader reads: for benchmarks and tests.
//
// The numbers are random but calm: norms are 1 and linears keep the size of their inputs, so that logits stay
// finite. Each tensor's numbers depend on the seed and its name only. Shards, the number of layers, and
// writing or making them in memory change nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "io/checkpoint.h"
#include "model/synthetic/synthetic_shape.h"

namespace dsv4::model {

// Called with (bytes done, bytes in all) now and then. May be empty.
using SyntheticProgress = std::function<void(int64_t, int64_t)>;

struct SyntheticFiles {
  int64_t max_shard_bytes = int64_t{4} << 30;
  SyntheticProgress progress;
};

// Writes config.json and the weights into `directory`, which must be empty or absent. Memory stays bounded
// whatever the shape. Everything is written beside it, in "<directory>.partial", and renamed at the end.
Status WriteSyntheticCheckpoint(const std::string& directory, const SyntheticOptions& options,
                                const SyntheticFiles& files = {});

// The same weights as one file that exists in this process only, byte for byte what WriteSyntheticCheckpoint
// writes into one shard; its configuration is SyntheticConfig. Numbers are made when they are fetched, on
// `num_threads` threads. So a model may be larger than memory where only a part of it is loaded, or where it
// goes to a device. `name` stands for the file in messages. The errors of SyntheticConfig; ResourceExhausted
// without addresses.
Result<std::shared_ptr<const io::Checkpoint>> MakeSyntheticCheckpoint(const std::string& name,
                                                                      const SyntheticOptions& options,
                                                                      int num_threads);

}  // namespace dsv4::model
