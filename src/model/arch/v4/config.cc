// Reader of V4's config.json in both dialects, with contradictions and unknown switches refused.
#include <utility>

#include "model/arch/v4/v4.h"
#include "model/config/config_reader.h"
#include "ops/hadamard_fp4.h"
#include "ops/simulate_fp8.h"

namespace dsv4::model {
namespace {

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
  return FinishConfig(reader, root, what, status, std::move(config));
}

}  // namespace dsv4::model
