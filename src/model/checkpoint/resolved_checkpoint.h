// Which tensor of a checkpoint is which: the tensor table applied to the files' names, by headers alone.
//
// Resolving proves that the checkpoint holds every tensor of the table in the shape the config wants. Outside
// the draft and vision parts it holds nothing else. It reads no data, so it is cheap for any size; `inspect`
// needs no more.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/checkpoint.h"
#include "model/checkpoint/stored_linear.h"
#include "model/config/config.h"
#include "model/config/tensor_rows.h"

namespace dsv4::model {

// One row of the table, found. `linear` for kLinear, kEmbedding and kTable rows, `tensor` for the others;
// empty when the layer has no such tensor.
struct ResolvedTensor {
  StoredLinear linear;
  const io::StoredTensor* tensor = nullptr;
  bool is_table = false;  // A kTable, which is not loaded.
};

struct ResolvedExpert {
  StoredLinear w1;
  StoredLinear w2;
  StoredLinear w3;
};

struct ResolvedLayer {
  std::array<ResolvedTensor, kNumTensorIds> tensors;
  std::vector<ResolvedExpert> experts;

  const ResolvedTensor& operator[](TensorId id) const { return tensors[static_cast<size_t>(id)]; }
};

struct ResolvedCheckpoint {
  std::array<ResolvedTensor, kNumTensorIds> model;
  std::vector<ResolvedLayer> layers;
  bool head_is_tied = false;  // There is no head tensor; the embedding serves.
  // The MTP block, with its kMtp* tensors and its own kNorm and kHcHead*; nullopt, and why, where the
  // checkpoint has none, or no whole one. No error: it is needed for drafts alone. Its tensors are among the
  // skipped ones too, as far as the model is concerned.
  std::optional<ResolvedLayer> mtp;
  std::string no_mtp;

  // Recognised and skipped, by prefix ("mtp.", "vision.", ...): number of tensors and bytes.
  struct Skipped {
    int64_t num_tensors = 0;
    int64_t num_bytes = 0;
  };
  std::map<std::string, Skipped> skipped;
  std::vector<const io::StoredTensor*> skipped_tensors;  // The same, in the files' order.
  // Points in which quantization_config says something else than the tensors; the tensors were believed.
  std::vector<std::string> disagreements;

  const ResolvedTensor& operator[](TensorId id) const { return model[static_cast<size_t>(id)]; }
};

// InvalidArgument counts the missing, extra and misshapen tensors and names the first few of each. The result
// borrows from the checkpoint.
Result<ResolvedCheckpoint> ResolveCheckpoint(const io::Checkpoint& checkpoint, const ModelConfig& config);

// A DSpark drafter: mtp.0, mtp.1 and so on, the first with main_proj and main_norm, the last with the heads.
struct ResolvedDspark {
  std::vector<ResolvedLayer> stages;
};

// Counts the stages by their tensors, and proves that each has all it needs, as ResolveCheckpoint does for
// the trunk's. A part of a drafter is no drafter. The trunk's tensors are not looked at, so the drafter may
// be in files of its own.
Result<ResolvedDspark> ResolveDspark(const io::Checkpoint& checkpoint, const ModelConfig& config,
                                     const DsparkConfig& dspark);

}  // namespace dsv4::model
