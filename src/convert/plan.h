// Plan of a conversion, decided from headers alone. It has every tensor of the output with its file and
// offset, and the units of work that fill them.
//
// Names are the release's (tensor_rows.h), the suffixes those of the format:
//   plain .weight; FP8 and MXFP4 .weight, .scale; NVFP4 .weight, .weight_scale, .weight_scale_2
// A tensor that keeps its format keeps its bytes. Two things follow the source even so. NVFP4 whose global
// scale divides (compressed-tensors) keeps that suffix, since its reciprocal is another number. Draft and
// vision tensors are copied under their own names (less "model.") in their own formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "convert/recode.h"
#include "io/checkpoint.h"
#include "io/safetensors_layout.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/config/config.h"
#include "tensor/tensor.h"

namespace dsv4::convert {

// nullopt in a request keeps what is stored.
using RequestedFormat = std::optional<WeightFormat>;

struct FormatRequest {
  RequestedFormat experts;  // Routed experts.
  // Attention, shared experts and the indexer's wq_b, which the release stores as FP8. The linears that it
  // stores as bf16 (compressors, weights_proj, router, head) stay as they are. Only where they are stored in
  // 8 or 4 bits they become bf16, when FP8 or bf16 is asked for.
  RequestedFormat dense;
  BlockScaleRule rule = BlockScaleRule::kLeastSquares;
};

// A tensor of the output.
struct OutputTensor {
  io::LayoutEntry entry;  // `offset` in the shard's file.
  size_t shard = 0;
};

// Bytes that are copied.
struct CopyJob {
  std::span<const std::byte> source;
  size_t output = 0;
};

// A linear layer, converted or kept.
struct LinearJob {
  std::string module;  // "ffn.experts.w1": the name without layer and expert.
  std::string name;    // "layers.0.ffn.experts.3.w1"
  model::StoredLinear source;
  bool kept = false;    // Its bytes are among the unit's copies; nothing below is set.
  RecodeTarget target;  // The global scale is chosen later.
  // w1 and w3 of an expert share their global scale: linears of a unit with the same number.
  int scale_group = 0;
  size_t data = 0;  // Outputs.
  size_t scale = 0;
  size_t global_scale = 0;  // kNvFp4 only.

  WeightFormat format() const { return kept ? source.format : target.format; }
  std::string FormatName() const;
};

// A small tensor whose numbers are checked before it is copied, as the loader would.
struct SmallTensor {
  const io::StoredTensor* tensor = nullptr;
  model::TensorId id = model::TensorId::kNorm;
  Shape shape;
};

// Unit of work, done, hashed and journalled together: an expert, or one tensor with its scales.
struct Unit {
  std::vector<CopyJob> copies;
  std::vector<LinearJob> linears;
  std::optional<SmallTensor> small;

  int64_t source_bytes() const;
  // In a fixed order; source ranges as stored, outputs as written.
  std::vector<std::span<const std::byte>> SourceRanges() const;
  std::vector<size_t> Outputs() const;
};

struct Shard {
  std::string file_name;
  std::string header;
  int64_t file_bytes = 0;
};

struct Plan {
  std::vector<Unit> units;
  std::vector<OutputTensor> outputs;
  std::vector<Shard> shards;
  int64_t num_draft_and_vision = 0;  // Tensors copied under their own names.
  bool drafts_are_quantised = false;

  int64_t source_bytes() const;
  int64_t output_bytes() const;  // The shards'.
};

// `resolved` borrows from `checkpoint`, the plan from both. InvalidArgument when a format does not fit a
// tensor's columns, or when two tensors would get one name.
Result<Plan> MakePlan(const io::Checkpoint& checkpoint, const model::ModelConfig& config,
                      const model::ResolvedCheckpoint& resolved, const FormatRequest& request,
                      int64_t max_shard_bytes);

}  // namespace dsv4::convert
