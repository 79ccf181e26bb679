// The plans of V4.1's layers, from config.json.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "model/arch/v41/v41.h"
#include "model/config/config_reader.h"

namespace dsv4::model {
namespace {

// A list of layers that ascend.
std::vector<int> ReadSources(ConfigReader& reader, std::string_view key, const ModelConfig& config) {
  std::vector<int> sources;
  const Json* list = reader.Require(key);
  if (list == nullptr) return sources;
  if (reader.Array(key, 0) == nullptr) return sources;
  for (size_t i = 0; i < list->size(); ++i)
    sources.push_back(static_cast<int>(
        reader.IntOf(fmt::format("{}[{}]", key, i), (*list)[i], 0, config.num_hidden_layers - 1)));
  if (!std::ranges::is_sorted(sources, std::less_equal<>()))
    reader.FailValue(key, *list, "layers that ascend");
  return sources;
}

// The last source up to a layer; -1: there is none.
int OwnerOf(const std::vector<int>& sources, int layer) {
  const auto after = std::ranges::upper_bound(sources, layer);
  return after == sources.begin() ? -1 : *std::prev(after);
}

// The layer that makes candidates; -1: none does.
int ReadCandidateSource(ConfigReader& reader, const std::vector<int>& kv_sources, const ModelConfig& config) {
  const Json* written = reader.Find("candidate_source_layer_id");
  if (written == nullptr) return kv_sources.empty() ? -1 : kv_sources.back();
  return static_cast<int>(std::max<int64_t>(
      -1, reader.IntOf("candidate_source_layer_id", *written, -kMaxLayers, config.num_hidden_layers - 1)));
}

}  // namespace

void ReadV41Plans(ConfigReader& reader, ModelConfig& config) {
  const Json* ratios = reader.Require("compress_ratios") == nullptr
                           ? nullptr
                           : reader.Array("compress_ratios", static_cast<size_t>(config.num_hidden_layers));
  const std::vector<int> kv_sources = ReadSources(reader, "kv_source_layer_ids", config);
  const std::vector<int> index_sources = ReadSources(reader, "index_source_layer_ids", config);
  const int candidates = ReadCandidateSource(reader, kv_sources, config);
  if (!reader.ok() || ratios == nullptr) return;
  const auto is_in = [](const std::vector<int>& list, int layer) {
    return std::ranges::find(list, layer) != list.end();
  };
  for (int i = 0; i < config.num_hidden_layers && reader.ok(); ++i) {
    LayerPlan plan = BlockPlan(i, i);
    const std::string key = fmt::format("compress_ratios[{}]", i);
    plan.ratio = reader.IntOf(key, (*ratios)[static_cast<size_t>(i)], 0, kMaxCompressRatio);
    if (config.engram.has_value()) {
      const auto& layers = config.engram->layer_ids;
      const auto found = std::ranges::find(layers, int64_t{i});
      if (found != layers.end()) plan.engram = static_cast<int>(found - layers.begin());
    }
    if (plan.ratio == 0) {
      if (is_in(kv_sources, i) || is_in(index_sources, i))
        reader.Fail(key, "holds 0", "more in a layer of kv_source_layer_ids or index_source_layer_ids");
      config.layers.push_back(plan);
      continue;
    }
    plan.entries = OwnerOf(kv_sources, i);
    plan.selection = OwnerOf(index_sources, i);
    if (plan.entries < 0)
      reader.Fail(key, fmt::format("holds {}", plan.ratio), "0 in front of the first of kv_source_layer_ids");
    if (plan.selection < 0)
      reader.Fail(key, fmt::format("holds {}", plan.ratio),
                  "0 in front of the first of index_source_layer_ids");
    if (plan.selects()) {
      plan.keys = plan.entries;
      plan.candidates = candidates >= 0 && i >= candidates ? candidates : -1;
    }
    plan.pooling = plan.ratio == 1 ? Pooling::kSingle : Pooling::kGated;
    plan.key_source = KeySource::kLatents;
    plan.rope = RopeKind::kCompressed;
    config.layers.push_back(plan);
  }
  for (auto i = static_cast<size_t>(config.num_hidden_layers); i < ratios->size() && reader.ok(); ++i) {
    reader.IntOf(fmt::format("compress_ratios[{}], of the drafter", i), (*ratios)[i], 0, 0);
  }
  // transformers says again where entries are made.
  if (const Json* types = reader.Array("layer_types", config.layers.size());
      types != nullptr && reader.ok()) {
    for (size_t i = 0; i < types->size(); ++i) {
      const bool makes = i < config.layers.size() && config.layers[i].makes_entries();
      const char* const wanted = makes ? "shared_compressed_attention" : "sliding_attention";
      if ((*types)[i] != wanted)
        reader.FailValue(fmt::format("layer_types[{}]", i), (*types)[i], fmt::format("\"{}\"", wanted));
    }
  }
  if (candidates >= 0 && reader.ok() && !config.layers[static_cast<size_t>(candidates)].selects())
    reader.Fail("candidate_source_layer_id", fmt::format("is {}", candidates),
                "one of index_source_layer_ids");
}

}  // namespace dsv4::model
