// Sections of config.json and hf_quant_config.json about a converted checkpoint.
#pragma once

#include <string>

#include "base/status.h"
#include "convert/plan.h"
#include "model/config/config.h"

namespace dsv4::convert {

// The source's config.json with `quantization_config` and `expert_dtype` as the plan's tensors have it; all
// other keys stay as they are. The section is gone where nothing is quantised.
//
//   quant_method       "fp8" where FP8 or MXFP4 remains (as in the release), else "modelopt"
//   weight_block_size  of FP8 linears, those of draft modules included
//   quant_algo         "NVFP4" where every quantised linear is NVFP4, "MIXED_PRECISION" where some are
//   moe_quant_algo     "NVFP4" where all routed experts are
//   quantized_layers   the modules stored as NVFP4 (experts of a layer as one)
//   ignore             patterns of the others
Result<std::string> RewriteConfig(const std::string& config_json, const model::ModelConfig& config,
                                  const Plan& plan);

// hf_quant_config.json as ModelOpt writes it; empty when no linear is NVFP4.
std::string HfQuantConfig(const Plan& plan);

}  // namespace dsv4::convert
