// Plan of a random checkpoint: a shape, a stored format, a seed; and the config.json that says so.
#pragma once

#include <cstdint>
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

// FP8 scales stand for blocks of so many rows and columns.
inline constexpr int64_t kSyntheticFp8Block = 128;
inline constexpr int64_t kSyntheticFp8Block41 = 32;

struct SyntheticOptions {
  std::string shape = "tiny";         // One of SyntheticShapes().
  std::optional<int64_t> num_layers;  // The first layers of the shape; all when absent.
  // To match a tokenizer: replaces the shape's, and what begins and ends a text.
  std::optional<int64_t> vocab_size;
  int32_t bos_token_id = 0;
  int32_t eos_token_id = 1;
  SyntheticFormat format = SyntheticFormat::kRelease;
  uint64_t seed = 0;
  bool mtp =
      false;  // A draft block behind the layers, with experts in MXFP4 where the layers' are NVFP4, as released.
  bool dspark =
      false;  // A DSpark drafter there instead: three stages that tap the last three layers (or all), a block of five.
};

// "tiny", "mini", "flash", "pro" of V4; "mini41", "flash41" of V4.1, and "slim41", which is flash41 with few
// experts.
std::span<const std::string_view> SyntheticShapes();
// "bf16", "f32", "fp8", "fp8-base", "release", "nvfp4-experts", "nvfp4", "nvfp4-ct".
std::vector<std::string_view> SyntheticFormatNames();
std::optional<SyntheticFormat> SyntheticFormatFromName(std::string_view name);

// "synthetic:SHAPE[,FORMAT][,seed=N][,mtp|dspark]", as --weights takes it; the fields behind SHAPE in any
// order, at most once. InvalidArgument says which field is wrong.
Result<SyntheticOptions> ParseSyntheticName(std::string_view text);

// config.json in the release's dialect. InvalidArgument for an unknown shape or too many layers.
Result<std::string> SyntheticConfig(const SyntheticOptions& options);

}  // namespace dsv4::model
