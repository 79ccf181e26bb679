// Random checkpoints of a real or small shape, in every format the loader reads: for benchmarks and tests.
//
// The numbers are random but calm: norms are 1 and linears keep the size of what they are given, so that logits stay
// finite. Each tensor's numbers depend on the seed and its name only, not on shards or on how many layers are written.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::model {

enum class SyntheticFormat : uint8_t {
  kBf16,
  kF32,
  kFp8,           // FP8 blocks with e8m0 scales, experts too.
  kFp8Base,       // FP8 blocks with F32 scales, experts too, as the *-Base releases.
  kRelease,       // FP8 blocks, experts MXFP4.
  kNvFp4Experts,  // FP8 blocks, experts NVFP4 with ModelOpt's suffixes.
  kNvFp4,         // Every linear but the head NVFP4, ModelOpt's suffixes.
  kNvFp4Ct,       // The same with compressed-tensors' suffixes.
};

struct SyntheticOptions {
  std::string shape = "tiny";         // One of SyntheticShapes().
  std::optional<int64_t> num_layers;  // The first layers of the shape; all when absent.
  // Replaces the shape's, to match a tokenizer.
  std::optional<int64_t> vocab_size;
  SyntheticFormat format = SyntheticFormat::kRelease;
  uint64_t seed = 0;
  int64_t max_shard_bytes = int64_t{4} << 30;
  // Called with (bytes written, bytes in all) now and then. May be empty.
  std::function<void(int64_t, int64_t)> progress;
};

// "tiny", "mini", "flash", "pro".
std::span<const std::string_view> SyntheticShapes();
// "bf16", "f32", "fp8", "fp8-base", "release", "nvfp4-experts", "nvfp4", "nvfp4-ct".
std::vector<std::string_view> SyntheticFormatNames();
std::optional<SyntheticFormat> SyntheticFormatFromName(std::string_view name);

// config.json in the release's dialect. InvalidArgument for an unknown shape or too many layers.
Result<std::string> SyntheticConfig(const SyntheticOptions& options);

// Writes config.json and the weights into `directory`, which must be empty or absent. Memory stays bounded whatever the
// shape. Everything is written beside it, in "<directory>.partial", and renamed at the end.
Status WriteSyntheticCheckpoint(const std::string& directory, const SyntheticOptions& options);

}  // namespace dsv4::model
