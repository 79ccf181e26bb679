// Check `checkpoint`: magnitudes, constants, scales, gate and up, transcodes and odd numbers of the
// configuration, by module.
#include "diag/checks/checkpoint_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "diag/checks/tensors/gate_up_order.h"
#include "diag/checks/tensors/holes.h"
#include "diag/checks/tensors/input_scales.h"
#include "diag/checks/tensors/lone_numbers.h"
#include "diag/checks/tensors/neighbours.h"
#include "diag/checks/tensors/norm_ties.h"
#include "diag/checks/tensors/scale_survey.h"
#include "diag/checks/tensors/stored_values.h"
#include "diag/checks/tensors/stray_layer.h"
#include "diag/checks/tensors/ties.h"
#include "diag/statistics.h"
#include "io/checkpoint.h"
#include "model/checkpoint/resolved_checkpoint.h"

namespace dsv4::diag {
namespace {

constexpr int64_t kSampledRows = 16;
constexpr double kMaxRms = 4;
constexpr double kMinRms = 1e-5;
constexpr double kMaxRatio = 8;

// One linear layer or norm.
struct Measured {
  std::string module;  // Without layer and expert: "ffn.experts.w1".
  std::string name;    // "layers.3.ffn.experts.7.w1"
  std::string format;
  int layer = -1;
  double rms = 0;
  double max_abs = 0;
  bool finite = true;
  bool constant = false;
  double negative = 0;  // Share of a norm's numbers.
  std::string scale_complaint;
};

bool AllEqual(std::span<const float> values, float value) {
  return std::all_of(values.begin(), values.end(), [value](float other) { return other == value; });
}

void MeasureLinear(const Weight& weight, Measured& measured) {
  std::vector<float> row(static_cast<size_t>(weight.cols));
  std::vector<float> sample;
  const int64_t count = std::min(kSampledRows, weight.rows);
  for (int64_t i = 0; i < count; ++i) {
    DequantizeRow(weight, i * weight.rows / count, row.data());
    sample.insert(sample.end(), row.begin(), row.end());
  }
  measured.rms = Rms(sample);
  measured.max_abs = MaxAbs(sample);
  measured.finite = AllFinite(sample);
  measured.constant = AllEqual(sample, sample[0]);
  for (int64_t i = 0; measured.constant && i < weight.rows; ++i) {
    DequantizeRow(weight, i, row.data());
    measured.constant = AllEqual(row, sample[0]);
  }
}

class Survey {
 public:
  void Linear(int layer, const std::string& module, const std::string& name, const Weight& weight) {
    Measured measured{.module = module,
                      .name = name,
                      .format = std::string(WeightFormatName(weight.format)),
                      .layer = layer};
    MeasureLinear(weight, measured);
    const ScaleStatistics scales = MeasureScales(weight);
    measured.scale_complaint = ScaleComplaint(weight, scales);
    scales_.Add(layer, module, weight, scales);
    if (layer >= 0) {
      strays_.AddSize(layer, module, measured.rms, /*is_norm=*/false);
      if (!module.starts_with("ffn.experts.")) strays_.AddShape(layer, module, weight);
    }
    all_.push_back(std::move(measured));
  }

  // A table larger than memory: some of its rows.
  void Rows(int layer, const std::string& module, const Weight& table) {
    Measured measured{.module = module,
                      .name = fmt::format("layers.{}.{}", layer, module),
                      .format = std::string(WeightFormatName(table.format)),
                      .layer = layer};
    MeasureLinear(table, measured);
    all_.push_back(std::move(measured));
  }

  // Norms may be constant, but not zero.
  void Norm(int layer, const std::string& module, const TensorView& norm) {
    const std::span<const float> values = AddNumbers("norm", layer, module, norm);
    norms_.back().negative =
        static_cast<double>(std::ranges::count_if(values, [](float x) { return x < 0; })) /
        static_cast<double>(values.size());
    if (layer >= 0) strays_.AddNorm(layer, module, values);
  }

  // Numbers of either sign, which may be few. In trained weights they are not all zero.
  void Vector(int layer, const std::string& module, const TensorView& vector) {
    const std::span<const float> values = AddNumbers("vector", layer, module, vector);
    if (layer >= 0) strays_.AddVector(layer, module, values);
  }

  void HyperConnection(int layer, const std::string& module, const model::HyperConnectionWeights& weights) {
    if (weights.fn.is_null()) return;  // V4.1 has none in front of its head.
    for (const auto& [part, view] :
         {std::pair{"_fn", &weights.fn}, {"_base", &weights.base}, {"_scale", &weights.scale}}) {
      Vector(layer, module + part, *view);
    }
    if (layer < 0) return;
    strays_.AddProfile(layer, module + "_base",
                       {weights.base.as<const float>(), static_cast<size_t>(weights.base.num_elements())});
    strays_.AddBias(layer, module + "_scale",
                    {weights.scale.as<const float>(), static_cast<size_t>(weights.scale.num_elements())});
  }

  void Layer(int index, const model::LayerWeights& layer) {
    const auto linear = [&](const std::string& module, const Weight& weight) {
      Linear(index, module, fmt::format("layers.{}.{}", index, module), weight);
    };
    const auto norm = [&](const std::string& module, const TensorView& view) { Norm(index, module, view); };
    const auto compressor = [&](const std::string& module, const model::CompressorWeights& weights) {
      linear(module + ".wkv", weights.wkv);
      if (weights.wgate.rows > 0)
        linear(module + ".wgate", weights.wgate);  // Entries of one token have no gate.
      if (!weights.ape.is_null()) Vector(index, module + ".ape", weights.ape);
      norm(module + ".norm", weights.norm);
    };
    HyperConnection(index, "hc_attn", layer.hc_attn);
    HyperConnection(index, "hc_ffn", layer.hc_ffn);
    Vector(index, "attn.attn_sink", layer.attn_sink);
    norm("attn_norm", layer.attn_norm);
    norm("ffn_norm", layer.ffn_norm);
    linear("attn.wq_a", layer.wq_a);
    norm("attn.q_norm", layer.q_norm);
    linear("attn.wq_b", layer.wq_b);
    linear("attn.wkv", layer.wkv);
    norm("attn.kv_norm", layer.kv_norm);
    linear("attn.wo_a", layer.wo_a);
    linear("attn.wo_b", layer.wo_b);
    if (layer.compressor) compressor("attn.compressor", *layer.compressor);
    if (layer.indexer) {
      linear("attn.indexer.wq_b", layer.indexer->wq_b);
      linear("attn.indexer.weights_proj", layer.indexer->weights_proj);
    }
    if (layer.key_compressor) compressor("attn.indexer.compressor", *layer.key_compressor);
    if (layer.key_latents) {
      linear("attn.indexer.wk", layer.key_latents->wk);
      norm("attn.indexer.k_norm", layer.key_latents->norm);
    }
    if (layer.engram) {
      Rows(index, "engram.embed", layer.engram->table);
      linear("engram.wkv", layer.engram->wkv);
      norm("engram.q_weight", layer.engram->q_weight);
      norm("engram.k_weight", layer.engram->k_weight);
    }
    // Layers that route by token have a gate that only weighs.
    if (layer.tid2eid.is_null()) {
      linear("ffn.gate", layer.gate);
      strays_.AddBias(
          index, "ffn.gate.bias",
          {layer.gate_bias.as<const float>(), static_cast<size_t>(layer.gate_bias.num_elements())});
    } else {
      Linear(index, "ffn.gate by token", fmt::format("layers.{}.ffn.gate", index), layer.gate);
    }
    const auto expert = [&](const std::string& module, const std::string& name,
                            const model::ExpertWeights& weights) {
      Linear(index, module + ".w1", name + ".w1", weights.w1);
      Linear(index, module + ".w2", name + ".w2", weights.w2);
      Linear(index, module + ".w3", name + ".w3", weights.w3);
    };
    for (size_t i = 0; i < layer.experts.size(); ++i) {
      expert("ffn.experts", fmt::format("layers.{}.ffn.experts.{}", index, i), layer.experts[i]);
    }
    expert("ffn.shared_experts", fmt::format("layers.{}.ffn.shared_experts", index), layer.shared_expert);
  }

  const std::vector<Measured>& linears() const { return all_; }
  const std::vector<Measured>& norms() const { return norms_; }
  const ScaleSurvey& scales() const { return scales_; }
  const StrayLayers& strays() const { return strays_; }

 private:
  std::span<const float> AddNumbers(std::string_view format, int layer, const std::string& module,
                                    const TensorView& numbers) {
    const std::span<const float> values(numbers.as<const float>(),
                                        static_cast<size_t>(numbers.num_elements()));
    norms_.push_back({.module = module,
                      .name = layer < 0 ? module : fmt::format("layers.{}.{}", layer, module),
                      .format = std::string(format),
                      .layer = layer,
                      .rms = Rms(values),
                      .max_abs = MaxAbs(values),
                      .finite = AllFinite(values)});
    return values;
  }

  std::vector<Measured> all_;
  std::vector<Measured> norms_;
  ScaleSurvey scales_;
  StrayLayers strays_;
};

std::map<std::string, double> MedianRms(const std::vector<Measured>& linears) {
  std::map<std::string, std::vector<double>> by_module;
  for (const Measured& measured : linears) by_module[measured.module].push_back(measured.rms);
  std::map<std::string, double> medians;
  for (auto& [module, values] : by_module) {
    medians[module] = Median(std::move(values));
  }
  return medians;
}

// Fault of one tensor; empty when there is none.
std::string Complaint(const Measured& measured, double median) {
  if (!measured.finite) return "holds NaN or infinity";
  const bool is_linear = measured.format != "norm" && measured.format != "vector";
  if (measured.max_abs == 0 && (measured.constant || !is_linear)) return "is all zero";
  if (measured.constant) return "is constant";
  if (!is_linear) return {};
  if (measured.rms > kMaxRms)
    return fmt::format("RMS {:.3g}, more than training leaves: is a scale missing or inverted?",
                       measured.rms);
  if (measured.rms < kMinRms)
    return fmt::format("RMS {:.3g}, less than training leaves: is a scale applied twice?", measured.rms);
  const double ratio = std::max(measured.rms / median, median / measured.rms);
  if (ratio > kMaxRatio) {
    return fmt::format("RMS {:.3g}, {:.3g} times off the median {:.3g} of its siblings", measured.rms, ratio,
                       median);
  }
  return measured.scale_complaint;
}

// The norm with many negative numbers, where all others have few; null where there is none, or several. Weights of n-grams may have either
// sign.
const Measured* NormOfOtherSigns(const std::vector<Measured>& norms) {
  constexpr double kMany = 0.2;
  constexpr double kFew = 0.1;
  const Measured* odd = nullptr;
  for (const Measured& norm : norms) {
    if (norm.negative <= kFew || norm.module.starts_with("engram.")) continue;
    if (norm.negative < kMany || odd != nullptr) return nullptr;
    odd = &norm;
  }
  return odd;
}

Table ModuleTable(const std::vector<Measured>& linears, const std::map<std::string, double>& medians) {
  struct Row {
    int64_t count = 0;
    double lowest = 0;
    double highest = 0;
    std::string format;
  };
  std::map<std::string, Row> rows;
  for (const Measured& measured : linears) {
    Row& row = rows[measured.module];
    if (row.count++ == 0) row = {1, measured.rms, measured.rms, measured.format};
    row.lowest = std::min(row.lowest, measured.rms);
    row.highest = std::max(row.highest, measured.rms);
    if (row.format.find(measured.format) == std::string::npos) row.format += ", " + measured.format;
  }
  Table table{.title = "RMS of the weights",
              .columns = {"module", "formats", "tensors", "lowest", "median", "highest"}};
  for (const auto& [module, row] : rows) {
    table.rows.push_back({module, row.format, std::to_string(row.count), fmt::format("{:.3g}", row.lowest),
                          fmt::format("{:.3g}", medians.at(module)), fmt::format("{:.3g}", row.highest)});
  }
  return table;
}

// The one number of the configuration that is not the family's, where all others are. Empty where there is none, or several: then it is
// another recipe. Weights that were trained with one number answer otherwise with another. Few choices are a toy's, whose weights have no ties.
std::string OddNumber(const model::ModelConfig& config, bool has_ties) {
  std::vector<std::string> odd;
  const auto expect = [&](const char* key, double got, std::vector<double> wanted) {
    if (std::ranges::find(wanted, got) != wanted.end()) return;
    odd.push_back(fmt::format("config.json, {}: {}; with all its other numbers models of this family have {}",
                              key, got, fmt::join(wanted, " or ")));
  };
  expect("rope_theta", config.rope.theta, {10000});
  expect("compress_rope_theta", config.compress_rope.theta, {160000});
  expect("sliding_window", static_cast<double>(config.sliding_window), {128});
  expect("routed_scaling_factor", config.routed_scaling_factor, {1.5, 2.5});
  expect("hc_sinkhorn_iters", static_cast<double>(config.hc_sinkhorn_iters), {20});
  expect("hc_eps", config.hc_eps, {1e-6});
  expect("rms_norm_eps", config.rms_norm_eps, {config.delays_mix ? 1e-20 : 1e-6});
  if (config.compress_rope.yarn) {
    expect("rope_scaling.factor", config.compress_rope.factor, {16});
    expect("rope_scaling.original_max_position_embeddings",
           static_cast<double>(config.compress_rope.original_max_position_embeddings), {65536});
    expect("rope_scaling.beta_fast", config.compress_rope.beta_fast, {32});
    expect("rope_scaling.beta_slow", config.compress_rope.beta_slow, {1});
  }
  if (config.engram) expect("engram_pad_token_id", static_cast<double>(config.engram->pad_token_id), {2});
  constexpr int64_t kFewestChosen = 32;
  if (has_ties && config.index_topk < kFewestChosen) {
    odd.push_back(fmt::format("config.json, index_topk: {}; models of this family choose {} and more",
                              config.index_topk, kFewestChosen));
  }
  const int64_t candidates = config.candidate_topk_blocks * config.candidate_block_size;
  if (candidates > 0 && candidates < config.index_topk) {
    odd.push_back(
        fmt::format("config.json, candidate_topk_blocks: {}, which leaves {} candidates, fewer than are "
                    "chosen of them ({})",
                    config.candidate_topk_blocks, candidates, config.index_topk));
  }
  return odd.size() == 1 ? odd.front() : std::string();
}

// Whether the 4-bit tensors are exact copies of MXFP4.
std::string TranscodeLine(const model::ResolvedCheckpoint& resolved, size_t num_layers) {
  int64_t count = 0;
  int64_t lossless = 0;
  const auto look = [&](const model::StoredLinear& linear) {
    if (linear.format != WeightFormat::kNvFp4) return;
    ++count;
    lossless += model::IsMxFp4Transcode(linear) ? 1 : 0;
  };
  for (size_t i = 0; i < num_layers; ++i) {
    for (const model::ResolvedTensor& tensor : resolved.layers[i].tensors) {
      if (!tensor.is_table) look(tensor.linear);
    }
    for (const model::ResolvedExpert& expert : resolved.layers[i].experts) {
      for (const model::StoredLinear* linear : {&expert.w1, &expert.w2, &expert.w3}) look(*linear);
    }
  }
  return fmt::format("{} NVFP4 linears, {} of them exact transcodes of MXFP4", count, lossless);
}

std::string SwapComplaint(const GateUp& group) {
  const std::string_view what =
      group.expert < 0 ? "share a direction" : "go along with the gates of its siblings";
  return fmt::format(
      "{}: the rows of up (w3) {} ({:.3g} standard deviations from chance), those of gate (w1) do not "
      "({:.3g}): w1 and w3 are swapped",
      GateUpName(group), what, group.up, group.gate);
}

std::string OrderLine(const GateUpOrder& order) {
  const size_t num_swapped =
      order.groups.size() - static_cast<size_t>(order.num_in_order + order.num_undecided);
  return fmt::format("gate (w1) and up (w3) of {} of experts: {} in order, {} swapped, {} say nothing",
                     Counted(order.groups.size(), "group"), order.num_in_order, num_swapped,
                     order.num_undecided);
}

}  // namespace

Result<CheckReport> CheckCheckpoint(const model::ModelConfig& config, const model::ModelWeights& weights,
                                    bool random) {
  Survey survey;
  for (size_t i = 0; i < weights.layers.size(); ++i) survey.Layer(static_cast<int>(i), weights.layers[i]);
  survey.Norm(-1, "norm", weights.norm);
  survey.HyperConnection(-1, "hc_head", weights.hc_head);
  // Embedding and head have no siblings; each is its own median.
  survey.Linear(-1, "embed", "embed", weights.embed);
  survey.Linear(-1, "head", "head", weights.head);
  const std::map<std::string, double> medians = MedianRms(survey.linears());

  CheckReport report{.check = "checkpoint"};
  std::vector<std::string> complaints;
  const auto complain = [&](int layer, const std::string& name, const std::string& text) {
    if (complaints.empty()) report.location = Location{layer, name, "", 0};
    complaints.push_back(fmt::format("{} {}", name, text));
  };
  const auto complain_of = [&](const std::vector<Hole>& faults) {
    for (const Hole& fault : faults) complain(fault.layer, fault.name, fault.text);
  };
  DSV4_ASSIGN_OR_RETURN(const model::ResolvedCheckpoint resolved,
                        model::ResolveCheckpoint(*weights.checkpoint, config));
  const std::vector<Hole> non_numbers = LookForNonNumbers(weights, resolved);
  complain_of(non_numbers);
  const auto judge = [&](const Measured& measured, double median) {
    if (!measured.finite && !non_numbers.empty()) return;  // Said above, with the place.
    const std::string text = Complaint(measured, median);
    if (!text.empty()) complain(measured.layer, measured.name, text);
  };
  for (const Measured& norm : survey.norms()) judge(norm, 1);
  for (const Measured& linear : survey.linears()) judge(linear, medians.at(linear.module));
  if (const Measured* const norm = NormOfOtherSigns(survey.norms()); norm != nullptr) {
    complain(norm->layer, norm->name,
             fmt::format("has {:.0f} % negative numbers, where no other norm has more than a few",
                         100 * norm->negative));
  }
  const Holes holes = LookForHoles(weights, resolved);
  complain_of(holes.found);
  // Random weights may repeat each other, and go along or not by chance.
  const bool trained = !random && survey.strays().trained();
  if (trained) {
    complain_of(LookForCopies(weights, resolved));
    complain_of(LookForLoneNumbers(weights, resolved));
    complain_of(LookForSwappedCompressors(weights.layers));
  }
  const InputScales inputs = LookAtInputScales(*weights.checkpoint, resolved);
  complaints.insert(complaints.end(), inputs.findings.begin(), inputs.findings.end());
  const GateUpOrder order = LookAtGateUpOrder(weights.layers);
  for (const GateUp& swapped : order.swapped) {
    if (complaints.empty()) report.location = Location{swapped.layer, GateUpName(swapped), "", 0};
    complaints.push_back(SwapComplaint(swapped));
  }
  const std::vector<StrayLayer> strays = trained ? survey.strays().Find() : std::vector<StrayLayer>();
  for (const StrayLayer& stray : strays) {
    // Several that are not of one layer name no layer.
    const bool one_layer =
        std::ranges::all_of(strays, [&](const StrayLayer& other) { return other.layer == stray.layer; });
    const std::string name = fmt::format("layers.{}.{}", stray.layer, stray.module);
    if (complaints.empty() && one_layer) report.location = Location{stray.layer, name, "", 0};
    complaints.push_back(fmt::format("{} {}", name, stray.text));
  }
  const Ties ties = trained ? LookForBrokenTies(weights.layers) : Ties();
  complain_of(ties.found);
  if (trained) {
    complain_of(LookForExchangedNorms(weights.layers));
    complain_of(LookForExchangedNeighbours(weights.layers));
  }
  // A toy of a few layers is no member of the family, whatever its weights look like.
  constexpr size_t kFewestLayers = 4;
  if (trained && weights.layers.size() >= kFewestLayers) {
    if (const std::string odd = OddNumber(config, ties.any); !odd.empty()) complaints.push_back(odd);
  }

  report.evidence = {
      fmt::format("{} and {} of {}", Counted(survey.linears().size(), "linear"),
                  Counted(survey.norms().size(), "norm"), Counted(weights.layers.size(), "layer")),
      TranscodeLine(resolved, weights.layers.size()), OrderLine(order), holes.evidence};
  if (!ties.evidence.empty()) report.evidence.push_back(ties.evidence);
  if (inputs.count > 0) {
    report.evidence.push_back(
        fmt::format("{}, {} of them exactly 1 (never calibrated); this engine takes activation "
                    "scales from the data",
                    Counted(inputs.count, "input scale"), inputs.num_ones));
  }
  report.evidence.insert(report.evidence.end(), inputs.notes.begin(), inputs.notes.end());
  report.tables.push_back(ModuleTable(survey.linears(), medians));
  if (!survey.scales().empty()) report.tables.push_back(survey.scales().ModuleTable());
  if (Plot plot = survey.scales().ExpertPlot(); !plot.series.empty()) report.plots.push_back(std::move(plot));
  report.plots.push_back(GateUpPlot(order));
  if (complaints.empty()) {
    report.headline = "no tensor is zero, constant, partly unwritten or out of line with its siblings";
    report.rules_out = {
        "lost or inverted scales of single tensors, tensors and large parts of them that were never written",
        "one layer whose sizes, channels or signs are unlike those of all others"};
    report.next_step =
        "a layout read wrongly keeps the statistics: compare with another engine (dsv4 diagnose compare)";
    return report;
  }
  report.verdict = Verdict::kFinding;
  report.headline = complaints.size() == 1
                        ? complaints[0]
                        : fmt::format("{}, and {} more", complaints[0], complaints.size() - 1);
  constexpr size_t kShown = 20;
  for (size_t i = 0; i < std::min(kShown, complaints.size()); ++i) report.evidence.push_back(complaints[i]);
  report.next_step = "check the file against its source (size, hash), then the tool that quantised it";
  return report;
}

}  // namespace dsv4::diag
