// The plans of V4's layers, from config.json.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "model/arch/v4/v4.h"
#include "model/config/config_reader.h"

namespace dsv4::model {
namespace {

// Layers that one layer attends to.
struct Attends {
  V4Attention kind = V4Attention::kWindow;
  int64_t ratio = 0;
};

std::vector<Attends> ReadAttention(ConfigReader& reader, const ModelConfig& config) {
  const auto num_layers = static_cast<size_t>(config.num_hidden_layers);
  std::vector<Attends> layers(num_layers);
  const Json* types = reader.Array("layer_types", num_layers);
  const Json* ratios = reader.Array("compress_ratios", num_layers);
  if (!reader.ok()) return layers;
  if (types == nullptr && ratios == nullptr) {
    reader.Fail("compress_ratios", "missing, and so is layer_types", "one of them");
    return layers;
  }
  int64_t csa_rate = reader.IntOr("compress_rate_csa", 1, kMaxCompressRatio, 4);
  int64_t hca_rate = reader.IntOr("compress_rate_hca", 1, kMaxCompressRatio, 128);
  if (const Json* rates = reader.Object("compress_rates"); rates != nullptr) {
    ConfigReader rate_reader(*rates, reader.where() + ": compress_rates", reader.status());
    csa_rate = rate_reader.IntOr("compressed_sparse_attention", 1, kMaxCompressRatio, csa_rate);
    hca_rate = rate_reader.IntOr("heavily_compressed_attention", 1, kMaxCompressRatio, hca_rate);
  }
  for (size_t i = 0; i < num_layers && reader.ok(); ++i) {
    Attends& layer = layers[i];
    if (types != nullptr) {
      const std::string key = fmt::format("layer_types[{}]", i);
      const Json& type = (*types)[i];
      if (type == "sliding_attention") {
        layer = {};
      } else if (type == "compressed_sparse_attention") {
        layer = {V4Attention::kChosen, csa_rate};
      } else if (type == "heavily_compressed_attention") {
        layer = {V4Attention::kEntries, hca_rate};
      } else {
        reader.FailValue(key, type,
                         "sliding_attention, compressed_sparse_attention or heavily_compressed_attention");
      }
    }
    if (ratios != nullptr) {
      const std::string key = fmt::format("compress_ratios[{}]", i);
      const int64_t ratio = reader.IntOf(key, (*ratios)[i], 0, kMaxCompressRatio);
      if (types == nullptr) {
        constexpr int64_t kReleaseCsaRatio = 4;
        layer.kind = ratio == 0                  ? V4Attention::kWindow
                     : ratio == kReleaseCsaRatio ? V4Attention::kChosen
                                                 : V4Attention::kEntries;
        layer.ratio = ratio;
      } else if (ratio != layer.ratio) {
        reader.Fail(key, fmt::format("holds {}", ratio),
                    fmt::format("{}, as layer_types and compress_rates say", layer.ratio));
      }
    }
  }
  return layers;
}

// Layers routed by token ids, from `num_hash_layers` (release: the first ones) or `mlp_layer_types`
// (transformers: a list).
std::vector<RouterKind> ReadRouters(ConfigReader& reader, const ModelConfig& config) {
  std::vector<RouterKind> routers(static_cast<size_t>(config.num_hidden_layers), RouterKind::kScores);
  const Json* types = reader.Array("mlp_layer_types", routers.size());
  if (!reader.ok()) return routers;
  if (types == nullptr) {
    // The draft tail may count too, so the number can exceed the layers; there is no reason for it to be
    // huge.
    const int64_t num_hash = reader.Int("num_hash_layers", 0, kMaxLayers);
    std::fill_n(routers.begin(), std::min(num_hash, config.num_hidden_layers), RouterKind::kTokenIds);
    return routers;
  }
  for (size_t i = 0; i < routers.size(); ++i) {
    const Json& type = (*types)[i];
    if (type != "hash_moe" && type != "moe") {
      reader.FailValue(fmt::format("mlp_layer_types[{}]", i), type, "hash_moe or moe");
      return routers;
    }
    if (type == "hash_moe") routers[i] = RouterKind::kTokenIds;
  }
  const auto num_hash = std::count(routers.begin(), routers.end(), RouterKind::kTokenIds);
  if (const Json* written = reader.Find("num_hash_layers"); written != nullptr && *written != num_hash) {
    reader.FailValue("num_hash_layers", *written, fmt::format("{}, as mlp_layer_types says", num_hash));
  }
  return routers;
}

}  // namespace

LayerPlan V4Layer(int number, V4Attention attention, int64_t ratio, RouterKind router) {
  LayerPlan plan = BlockPlan(number, number);
  plan.router = router;
  if (attention == V4Attention::kWindow) return plan;
  plan.entries = number;
  plan.ratio = ratio;
  plan.rope = RopeKind::kCompressed;
  if (attention == V4Attention::kChosen) {
    plan.keys = plan.selection = number;
    plan.overlap = 2;
  }
  return plan;
}

void ReadV4Plans(ConfigReader& reader, ModelConfig& config) {
  const std::vector<Attends> attention = ReadAttention(reader, config);
  const std::vector<RouterKind> routers = ReadRouters(reader, config);
  for (size_t i = 0; i < attention.size(); ++i)
    config.layers.push_back(V4Layer(static_cast<int>(i), attention[i].kind, attention[i].ratio, routers[i]));
}

}  // namespace dsv4::model
