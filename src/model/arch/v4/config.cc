// Reader of V4's config.json in both dialects, with contradictions and unknown switches refused.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "model/arch/v4/v4.h"
#include "model/config/config_reader.h"
#include "model/config/dspark_config.h"
#include "ops/hadamard_fp4.h"
#include "ops/simulate_fp8.h"

namespace dsv4::model {
namespace {

void ReadRope(ConfigReader& reader, ModelConfig& config) {
  const Json* parameters = reader.Object("rope_parameters");
  const Json* scaling = reader.Object("rope_scaling");
  if (!reader.ok()) return;
  const auto nested = [&](std::string_view name) {
    if (parameters == nullptr) return static_cast<const Json*>(nullptr);
    const auto found = parameters->find(name);
    return found != parameters->end() && found->is_object() ? &*found : nullptr;
  };
  // transformers 5 keeps it in the section, and some tools in both.
  const auto read_theta = [&](std::string_view key) {
    for (const auto& [section, name] :
         {std::pair{parameters, "rope_parameters"}, std::pair{scaling, "rope_scaling"}}) {
      if (section == nullptr || !section->contains(key) || (*section)[key].is_null()) continue;
      ConfigReader inner(*section, fmt::format("{}: {}", reader.where(), name), reader.status());
      const double theta = inner.Number(key, 1 + 1e-6, kMaxTheta);
      if (reader.Has(key) && reader.Number(key, 1 + 1e-6, kMaxTheta) != theta)
        inner.Fail(key, fmt::format("holds {}", theta),
                   fmt::format("what {} holds beside it", reader.where()));
      return theta;
    }
    return reader.Number(key, 1 + 1e-6, kMaxTheta);
  };
  const Json* main = nested("main");
  const Json* compress = nested("compress");
  if (main != nullptr && compress != nullptr) {
    for (auto& [section, rope, name] :
         {std::tuple{main, &config.rope, "main"}, std::tuple{compress, &config.compress_rope, "compress"}}) {
      ConfigReader section_reader(*section, fmt::format("{}: rope_parameters.{}", reader.where(), name),
                                  reader.status());
      rope->theta = section_reader.Number("rope_theta", 1 + 1e-6, kMaxTheta);
      ReadYarn(section_reader, *rope);
    }
    return;
  }
  config.rope.theta = read_theta("rope_theta");
  const bool any_compressed =
      std::any_of(config.layers.begin(), config.layers.end(), [](const auto& l) { return l.sees_entries(); });
  if (!any_compressed && !reader.Has("compress_rope_theta")) return;
  config.compress_rope.theta = read_theta("compress_rope_theta");
  // transformers before nesting wrote the release's rope_scaling under the name rope_parameters.
  if (const Json* section = scaling != nullptr ? scaling : parameters; section != nullptr) {
    ConfigReader section_reader(
        *section,
        fmt::format("{}: {}", reader.where(), scaling != nullptr ? "rope_scaling" : "rope_parameters"),
        reader.status());
    ReadYarn(section_reader, config.compress_rope);
  }
}

void ReadRotaryDim(ConfigReader& reader, ModelConfig& config) {
  std::optional<int64_t> from_factor;
  if (const Json* factor = reader.Find("partial_rotary_factor"); factor != nullptr) {
    const double dim =
        reader.NumberOf("partial_rotary_factor", *factor, 0, 1) * static_cast<double>(config.head_dim);
    // The factor is a quotient of two integers, rounded; an exact floor could fall one short.
    from_factor = std::llround(dim);
    if (std::abs(dim - static_cast<double>(*from_factor)) > 1e-6 * static_cast<double>(config.head_dim)) {
      reader.FailValue("partial_rotary_factor", *factor,
                       fmt::format("a whole number of the {} head dims", config.head_dim));
    }
  }
  if (reader.Has("qk_rope_head_dim") || !from_factor) {
    config.qk_rope_head_dim = reader.Int("qk_rope_head_dim", 2, kMaxHeadDim);
    if (from_factor && *from_factor != config.qk_rope_head_dim) {
      reader.Fail("qk_rope_head_dim", fmt::format("holds {}", config.qk_rope_head_dim),
                  fmt::format("{}, as partial_rotary_factor says", *from_factor));
    }
  } else {
    config.qk_rope_head_dim = *from_factor;
  }
  if (config.qk_rope_head_dim < 2 || config.qk_rope_head_dim % 2 != 0 ||
      config.qk_rope_head_dim > config.head_dim) {
    reader.Fail("qk_rope_head_dim", fmt::format("is {}", config.qk_rope_head_dim),
                fmt::format("an even number from 2 to head_dim {}", config.head_dim));
  }
}

void ReadDraftAndVision(ConfigReader& reader, ModelConfig& config) {
  config.num_nextn_predict_layers = reader.IntOr("num_nextn_predict_layers", 0, kMaxLayers, 0);
  config.has_vision = reader.IntOr("vision_n_layers", 0, kMaxLayers, 0) > 0;
}

}  // namespace

Result<ModelConfig> ParseV4Config(const Json& root, std::string_view what) {
  Status status;
  ConfigReader reader(root, std::string(what), status);
  ModelConfig config;
  config.tensors = V4Tensors();
  config.trunk = &V4Trunk();
  CheckFixedChoices(reader);
  reader.RequireBool("norm_topk_prob", true);
  ReadSizes(reader, config);
  DSV4_TRY(status);  // Below, sizes are used as sizes.

  ReadV4Plans(reader, config);
  ReadRotaryDim(reader, config);
  ReadRope(reader, config);
  ReadIndexer(reader, config);
  ReadQuantization(reader, config);
  ReadDraftAndVision(reader, config);
  config.window_rows = config.entry_rows =
      CacheFormat::Fp8(config.nope_head_dim(), ops::SimulateFp8Args{}.group);
  config.key_rows = CacheFormat::Fp4(config.index_head_dim, ops::kIndexerFp4Group);
  config.bos_token_ids = ReadTokenIds(reader, "bos_token_id", config.vocab_size);
  config.eos_token_ids = ReadTokenIds(reader, "eos_token_id", config.vocab_size);
  CheckSizes(reader, config);
  DSV4_TRY(status);
  DSV4_TRY(CheckPlans(config.layers, what));
  if (auto dspark = ParseDsparkConfig(root, what, config); dspark) {
    config.dspark = *std::move(dspark);
  } else {
    config.dspark_fault = dspark.error().message();
  }
  return config;
}

}  // namespace dsv4::model
