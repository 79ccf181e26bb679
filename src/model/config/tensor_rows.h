// TensorRow: one tensor that a checkpoint holds: its names in all dialects, its shape and kind, and which
// layers have it. The table of a model is its architecture's (model/arch).
//
// A name is a pattern: "{attn|self_attn}.{wq_a|q_a_proj}" stands for every combination of one choice per
// group. The first choices spell the release's name, the last ones transformers'. The names that
// `save_pretrained` writes mix the two, so every combination is accepted. "#" stands for the expert's number.
// Names of layer tensors follow "layers.<N>.", those of an MTP block "mtp.0."; every name may have "model."
// in front. The name of a linear is the module's: its parts are found by suffix (stored_linear.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace dsv4::model {

struct DsparkConfig;
struct LayerPlan;
struct ModelConfig;

enum class TensorId : uint8_t {
  kEmbed,
  kHead,
  kNorm,
  kHcHeadFn,
  kHcHeadBase,
  kHcHeadScale,
  kAttnNorm,
  kFfnNorm,
  kHcAttnFn,
  kHcAttnBase,
  kHcAttnScale,
  kHcFfnFn,
  kHcFfnBase,
  kHcFfnScale,
  kAttnSink,
  kWqA,
  kQNorm,
  kWqB,
  kWkv,
  kKvNorm,
  kWoA,
  kWoB,
  kCompressorWkv,
  kCompressorWgate,
  kCompressorApe,
  kCompressorNorm,
  kIndexerWqB,
  kIndexerWeightsProj,
  kIndexerCompressorWkv,
  kIndexerCompressorWgate,
  kIndexerCompressorApe,
  kIndexerCompressorNorm,
  kIndexerWk,  // Keys from latents (KeySource::kLatents).
  kIndexerKNorm,
  kEngramTable,
  kEngramWkv,
  kEngramQ,
  kEngramK,
  kGate,
  kGateBias,
  kGateTid2Eid,
  kSharedW1,
  kSharedW2,
  kSharedW3,
  kExpertW1,
  kExpertW2,
  kExpertW3,
  kFusedExpertsW1W3,  // transformers' own module form: all experts in one tensor, w1's rows before w3's.
  kFusedExpertsW2,
  kGateBiasVision,
  kMtpEProj,  // Tensors of a draft block, which has a layer's tensors and kNorm and kHcHead* beside.
  kMtpHProj,
  kMtpENorm,
  kMtpHNorm,
  kDsparkMainProj,  // Tensors of a DSpark drafter's first stage,
  kDsparkMainNorm,
  kDsparkMarkovW1,  // and of its last, which has kNorm and kHcHead* beside.
  kDsparkMarkovW2,
  kDsparkConfidence,
};
inline constexpr size_t kNumTensorIds = static_cast<size_t>(TensorId::kDsparkConfidence) + 1;

enum class TensorKind : uint8_t {
  kLinear,     // Any stored format, with its scales beside it.
  kEmbedding,  // A matrix read by row: F32, F16 or BF16 only.
  kVector,     // Small numbers; F32 after loading.
  kExpertIds,  // I64 or I32 in the file.
  kVision,     // Recognised and skipped.
  kTable,  // Rows that stay in the file and are fetched one by one: stored as a linear, or E4M3 with scales of 32 columns.
};

enum class TensorScope : uint8_t {
  kModel,
  kLayer,         // The layers that the row's predicate names.
  kExpert,        // Every routed expert of every layer.
  kFusedExperts,  // Every layer, instead of the kExpert rows.
  kVision,        // Every layer of a vision checkpoint.
  kMtp,           // The MTP block.
  kDsparkFirst,   // The first stage of a DSpark drafter.
  kDsparkLast,    // The last one.
};

struct TensorRow {
  TensorId id;
  std::string_view names;
  TensorKind kind;
  TensorScope scope;
  // Rows and columns of a linear or embedding, the dims of anything else. Experts' shapes are of one expert.
  // Null for the DSpark rows that want a DsparkConfig too.
  Shape (*shape)(const ModelConfig& config, const LayerPlan& layer);
  // Whether release numerics round activations in front of the FP8 and MXFP4 forms of this linear.
  bool quantised_activations = false;
  // Whether a layer has it; null: every layer does.
  bool (*of_layer)(const LayerPlan& layer) = nullptr;
};

// The row of a tensor that the model's table has.
const TensorRow& RowOf(const ModelConfig& config, TensorId id);

// Whether the model's table has the tensor at all.
bool HasRow(const ModelConfig& config, TensorId id);

// Whether a layer must have the row's tensor. Not for the rows of no layer, of drafters, kFusedExperts and
// kVision.
bool LayerHas(const TensorRow& row, const LayerPlan& layer);

// Whether the MTP block has the row's tensor. It has those of a layer with a window and experts by score, its
// own norm and hc_head, and kMtp.
bool IsOfMtp(const TensorRow& row);

// Whether a stage of a DSpark drafter has the row's tensor; the only stage is the first and the last.
bool IsOfDspark(const TensorRow& row, bool first, bool last);
// Rows and columns of a DSpark row without a shape.
Shape DsparkShape(TensorId id, const ModelConfig& config, const DsparkConfig& dspark);

// The linears beside the routed experts that the release stores as FP8.
bool IsFp8InRelease(TensorId id);

// Every name of a pattern; the release's first, transformers' last.
std::vector<std::string> ExpandNames(std::string_view pattern);

// Tensors of draft modules and of the vision tower are skipped, wherever "model." stands in front.
inline constexpr std::array<std::string_view, 4> kSkippedPrefixes = {"mtp.", "vision.", "aligner.", "image_"};

}  // namespace dsv4::model
