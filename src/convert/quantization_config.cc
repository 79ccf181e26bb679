// Sections of config.json and hf_quant_config.json that describe the formats of a converted checkpoint.
#include "convert/quantization_config.h"

#include <map>
#include <set>

#include "base/json.h"

namespace dsv4::convert {
namespace {

constexpr std::string_view kExperts = ".ffn.experts.";

// The plan's linears, as far as a config tells them apart.
struct Summary {
  bool any_fp8 = false;
  bool any_mxfp4 = false;
  bool any_nvfp4 = false;
  bool all_scales_ue8m0 = true;
  std::set<WeightFormat> expert_formats;
  std::vector<std::string> quantized_layers;  // In the plan's order.
  std::vector<std::string> ignore;
};

Summary Summarise(const Plan& plan) {
  Summary summary;
  std::map<std::string, bool> module_has_nvfp4;
  std::map<std::string, bool> layer_experts_are_nvfp4;  // "layers.3.ffn.experts"
  for (const Unit& unit : plan.units) {
    for (const LinearJob& job : unit.linears) {
      const WeightFormat format = job.format();
      const bool nvfp4 = format == WeightFormat::kNvFp4;
      summary.any_fp8 |= format == WeightFormat::kFp8Block;
      summary.any_mxfp4 |= format == WeightFormat::kMxFp4;
      summary.any_nvfp4 |= nvfp4;
      if (job.kept && format == WeightFormat::kFp8Block)
        summary.all_scales_ue8m0 &= job.source.scale_dtype == DType::kF8E8M0;
      module_has_nvfp4[job.module] |= nvfp4;
      if (const size_t at = job.name.find(kExperts); at != std::string::npos) {
        summary.expert_formats.insert(format);
        const auto [layer, is_new] =
            layer_experts_are_nvfp4.emplace(job.name.substr(0, at + kExperts.size() - 1), nvfp4);
        if (!is_new) layer->second &= nvfp4;
      }
    }
  }
  std::set<std::string> named;
  for (const Unit& unit : plan.units) {
    for (const LinearJob& job : unit.linears) {
      if (job.format() != WeightFormat::kNvFp4) continue;
      std::string name = job.name;
      if (const size_t at = name.find(kExperts); at != std::string::npos) {
        const std::string layer = name.substr(0, at + kExperts.size() - 1);
        if (layer_experts_are_nvfp4.at(layer)) name = layer;
      }
      if (named.insert(name).second) summary.quantized_layers.push_back(name);
    }
  }
  for (const auto& [module, has_nvfp4] : module_has_nvfp4) {
    if (has_nvfp4) continue;
    const bool in_layers = module.find('.') != std::string::npos;
    summary.ignore.push_back(in_layers ? "*." + module : module);
  }
  if (plan.num_draft_and_vision > 0) summary.ignore.emplace_back("mtp.*");
  return summary;
}

bool AllNvFp4(const Plan& plan, const Summary& summary) {
  return summary.any_nvfp4 && !summary.any_fp8 && !summary.any_mxfp4 && !plan.drafts_are_quantised;
}

Json QuantizedLayers(const Summary& summary) {
  Json layers = Json::object();
  for (const std::string& name : summary.quantized_layers)
    layers[name] = {{"quant_algo", "NVFP4"}, {"group_size", kNvFp4Block}};
  return layers;
}

Json Section(const model::ModelConfig& config, const Plan& plan, const Summary& summary) {
  const bool all_nvfp4 = AllNvFp4(plan, summary);
  Json section = {{"quant_method", all_nvfp4 ? "modelopt" : "fp8"}};
  if (!all_nvfp4) {
    section["activation_scheme"] = "dynamic";
    section["fmt"] = "e4m3";
    if (summary.all_scales_ue8m0) section["scale_fmt"] = "ue8m0";
    section["weight_block_size"] = {config.quantization.weight_block_rows.value_or(128),
                                    config.quantization.weight_block_cols.value_or(128)};
  }
  if (!summary.any_nvfp4) return section;
  section["quant_algo"] = all_nvfp4 ? "NVFP4" : "MIXED_PRECISION";
  if (summary.expert_formats == std::set{WeightFormat::kNvFp4}) section["moe_quant_algo"] = "NVFP4";
  section["group_size"] = kNvFp4Block;
  section["quantized_layers"] = QuantizedLayers(summary);
  // Weights only: activations are scaled by what they are when the model runs.
  section["config_groups"] = {
      {"group_0",
       {{"weights", {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", kNvFp4Block}}},
        {"targets", {"Linear"}}}}};
  section["ignore"] = summary.ignore;
  return section;
}

}  // namespace

Result<std::string> RewriteConfig(const std::string& config_json, const model::ModelConfig& config,
                                  const Plan& plan) {
  DSV4_ASSIGN_OR_RETURN(Json root, ParseJson(config_json, "config.json"));
  const Summary summary = Summarise(plan);
  if (summary.any_fp8 || summary.any_mxfp4 || summary.any_nvfp4 || plan.drafts_are_quantised) {
    root["quantization_config"] = Section(config, plan, summary);
  } else {
    root.erase("quantization_config");
  }
  const std::set<WeightFormat>& experts = summary.expert_formats;
  if (experts == std::set{WeightFormat::kPlain}) {
    root.erase("expert_dtype");
  } else if (experts == std::set{WeightFormat::kFp8Block}) {
    root["expert_dtype"] = "fp8";
  } else if (!experts.contains(WeightFormat::kPlain) && !experts.contains(WeightFormat::kFp8Block)) {
    root["expert_dtype"] = "fp4";
  }
  return root.dump(2) + "\n";
}

std::string HfQuantConfig(const Plan& plan) {
  const Summary summary = Summarise(plan);
  if (!summary.any_nvfp4) return "";
  const Json root = {{"producer", {{"name", "dsv4"}}},
                     {"quantization",
                      {{"quant_algo", AllNvFp4(plan, summary) ? "NVFP4" : "MIXED_PRECISION"},
                       {"kv_cache_quant_algo", nullptr},
                       {"group_size", kNvFp4Block},
                       {"quantized_layers", QuantizedLayers(summary)},
                       {"exclude_modules", summary.ignore}}}};
  return root.dump(2) + "\n";
}

}  // namespace dsv4::convert
