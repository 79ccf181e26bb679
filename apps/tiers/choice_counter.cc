// Backend hooks that count chosen experts by layer.
#include "apps/tiers/choice_counter.h"

#include <algorithm>

namespace dsv4::apps {

diag::OpHooks ChoiceCounter::Hooks() {
  diag::OpHooks hooks;
  hooks.router = [this](const diag::InnerOp<ops::RouterArgs>& inner, const ops::RouterArgs& args) {
    DSV4_RETURN_IF_ERROR(inner(args));
    return Count(args);
  };
  return hooks;
}

void ChoiceCounter::Reset() {
  for (std::vector<int64_t>& layer : counts_) std::ranges::fill(layer, 0);
  num_tokens_ = 0;
}

Status ChoiceCounter::Count(const ops::RouterArgs& args) {
  const void* const layer = args.bias.is_null() ? args.hash_table.data : args.bias.data;
  auto found = std::ranges::find(layers_, layer);
  if (found == layers_.end()) found = layers_.insert(found, layer);
  const auto index = static_cast<size_t>(found - layers_.begin());
  if (index >= counts_.size()) return {};
  std::vector<int32_t> chosen(static_cast<size_t>(args.indices.num_elements()));
  const ops::Backend& inner = backend_.inner();
  DSV4_RETURN_IF_ERROR(inner.context->memory().CopyToHost(
      chosen.data(), args.indices.data, chosen.size() * sizeof(int32_t), inner.context->stream()));
  for (const int32_t expert : chosen) ++counts_[index].at(static_cast<size_t>(expert));
  if (index == 0) num_tokens_ += args.indices.shape[0];
  return {};
}

}  // namespace dsv4::apps
