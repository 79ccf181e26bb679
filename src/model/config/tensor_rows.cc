// Questions about rows of a table of tensors.
#include "model/config/tensor_rows.h"

#include <algorithm>

#include "base/check.h"
#include "model/config/config.h"

namespace dsv4::model {

const TensorRow& RowOf(const ModelConfig& config, TensorId id) {
  const auto row = std::ranges::find(config.tensors, id, &TensorRow::id);
  DSV4_CHECK(row != config.tensors.end()) << "no row of tensor " << static_cast<int>(id);
  return *row;
}

bool HasRow(const ModelConfig& config, TensorId id) {
  return std::ranges::find(config.tensors, id, &TensorRow::id) != config.tensors.end();
}

bool LayerHas(const TensorRow& row, const LayerPlan& layer) {
  if (row.scope == TensorScope::kExpert) return true;
  return row.scope == TensorScope::kLayer && (row.of_layer == nullptr || row.of_layer(layer));
}

namespace {

bool IsOfHead(const TensorRow& row) {
  return row.id == TensorId::kNorm || row.id == TensorId::kHcHeadFn || row.id == TensorId::kHcHeadBase ||
         row.id == TensorId::kHcHeadScale;
}

}  // namespace

bool IsOfMtp(const TensorRow& row) {
  return row.scope == TensorScope::kMtp || IsOfHead(row) || LayerHas(row, LayerPlan());
}

bool IsOfDspark(const TensorRow& row, bool first, bool last) {
  if (row.scope == TensorScope::kDsparkFirst) return first;
  if (row.scope == TensorScope::kDsparkLast || IsOfHead(row)) return last;
  return LayerHas(row, LayerPlan());
}

Shape DsparkShape(TensorId id, const ModelConfig& config, const DsparkConfig& dspark) {
  const int64_t width = config.hidden_size;
  switch (id) {
    case TensorId::kDsparkMainProj:
      return {width, width * static_cast<int64_t>(dspark.target_layer_ids.size())};
    case TensorId::kDsparkMarkovW1:
    case TensorId::kDsparkMarkovW2:
      return {config.vocab_size, dspark.markov_rank};
    case TensorId::kDsparkConfidence:
      return {1, width + dspark.markov_rank};
    default:
      break;
  }
  DSV4_CHECK(false) << "not of a DSpark drafter alone: " << static_cast<int>(id);
  return {};
}

bool IsFp8InRelease(TensorId id) {
  switch (id) {
    case TensorId::kMtpEProj:
    case TensorId::kMtpHProj:
    case TensorId::kDsparkMainProj:
    case TensorId::kWqA:
    case TensorId::kWqB:
    case TensorId::kWkv:
    case TensorId::kWoA:
    case TensorId::kWoB:
    case TensorId::kIndexerWqB:
    case TensorId::kEngramWkv:
    case TensorId::kSharedW1:
    case TensorId::kSharedW2:
    case TensorId::kSharedW3:
      return true;
    default:
      return false;
  }
}

std::vector<std::string> ExpandNames(std::string_view pattern) {
  std::vector<std::string> names = {""};
  const auto append = [&](const std::vector<std::string_view>& choices) {
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string_view choice : choices) longer.push_back(name + std::string(choice));
    }
    names = std::move(longer);
  };
  while (!pattern.empty()) {
    const size_t open = pattern.find('{');
    append({pattern.substr(0, open)});
    if (open == std::string_view::npos) break;
    const size_t close = pattern.find('}', open);
    DSV4_CHECK(close != std::string_view::npos) << "unclosed group in " << pattern;
    std::vector<std::string_view> choices;
    std::string_view group = pattern.substr(open + 1, close - open - 1);
    for (size_t bar = group.find('|'); bar != std::string_view::npos; bar = group.find('|')) {
      choices.push_back(group.substr(0, bar));
      group.remove_prefix(bar + 1);
    }
    choices.push_back(group);
    append(choices);
    pattern.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace dsv4::model
