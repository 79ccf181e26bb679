// State that seeded faults share: the parts of the model under test, and where a pass stands.
#include "tests/golden/faults/fault.h"

#include <cmath>

#include "backend/reference/reference_backend.h"
#include "backend/reference/values.h"
#include "model/config/rope_table.h"

namespace dsv4::testing {

Scene& TheScene() {
  static Scene scene;
  return scene;
}

void SetScene(const ModelParts& parts, int64_t num_tokens) {
  Scene scene;
  scene.config = parts.config;
  scene.num_tokens = num_tokens;
  scene.final_norm = parts.weights.norm.data;
  for (const model::LayerWeights& layer : parts.weights.layers) {
    scene.wq_a.push_back(layer.wq_a.data.data);
    scene.q_norm.push_back(layer.q_norm.data);
    scene.indexer_wq_b.push_back(layer.indexer.has_value() ? layer.indexer->wq_b.data.data : nullptr);
  }
  if (parts.weights.mtp.has_value()) {
    scene.hc_head = parts.weights.hc_head;
    scene.tid2eid = parts.weights.layers[0].tid2eid;
    scene.mtp_hnorm = parts.weights.mtp->hnorm.data;
    scene.mtp_gate_bias = parts.weights.mtp->layer.gate_bias.data;
  }
  scene.plain_frequencies = model::RopeFrequencies(parts.config.rope, parts.config.qk_rope_head_dim);
  scene.compress_frequencies =
      model::RopeFrequencies(parts.config.compress_rope, parts.config.qk_rope_head_dim);
  TheScene() = std::move(scene);
}

bool Scene::IsCompressTable(const TensorView& frequencies) const {
  return frequencies.as<const float>()[1] == compress_frequencies[1];
}

bool Scene::IsTokenRows(const TensorView& x) const {
  return x.shape[0] == num_tokens && x.shape[2] == config.head_dim;
}

const ops::OpTable& Right() {
  static const ops::Backend backend = backend::MakeReferenceBackend(1);
  return backend.table;
}

std::vector<double> Values(const TensorView& view) {
  std::vector<double> values(static_cast<size_t>(view.num_elements()));
  backend::reference::LoadValues(view.data, view.dtype, 0, std::span<double>(values));
  return values;
}

void SetValues(const TensorView& view, const std::vector<double>& values) {
  backend::reference::StoreValues(values, view.data, view.dtype, 0);
}

SeededMistakes AllSeededMistakes() {
  SeededMistakes mistakes;
  AddHyperConnectionMistakes(mistakes);
  AddRotationMistakes(mistakes);
  AddAttentionMistakes(mistakes);
  AddCompressorMistakes(mistakes);
  AddIndexerMistakes(mistakes);
  AddExpertMistakes(mistakes);
  AddWeightMistakes(mistakes);
  AddDraftMistakes(mistakes);
  return mistakes;
}

const std::map<std::string, std::string>& UnseedableMistakes() {
  static const std::map<std::string, std::string> reasons;
  return reasons;
}

}  // namespace dsv4::testing
