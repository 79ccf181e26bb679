// Early requests for experts of layers that choose by token id.
#include "model/graph/hashed_experts.h"

#include <set>
#include <vector>

namespace dsv4::model {

void AskForHashedExperts(const Graph& graph, const PassPlan& plan, io::ChosenReads& reads) {
  constexpr int64_t kMostTokens = 16;
  if (!reads.started()) return;
  std::vector<std::span<const std::byte>> ranges;
  if (plan.num_tokens > kMostTokens)
    return reads.AskAhead(ranges);  // Ranges of the step before are forgotten.
  for (size_t i = 0; i < graph.weights.layers.size(); ++i) {
    const LayerWeights& layer = graph.weights.layers[i];
    if (graph.layers[i].router != RouterKind::kTokenIds) continue;
    const int64_t top_k = layer.tid2eid.shape[1];
    std::set<int32_t> chosen;
    for (int64_t t = 0; t < plan.num_tokens; ++t) {
      const int64_t token = plan.token_ids.as<const int32_t>()[t];
      const int32_t* const row = layer.tid2eid.as<const int32_t>() + token * top_k;
      chosen.insert(row, row + top_k);
    }
    for (const int32_t id : chosen) {
      const ops::ExpertWeights& expert = layer.experts[static_cast<size_t>(id)];
      for (const Weight* weight : {&expert.w1, &expert.w3, &expert.w2}) {
        for (const TensorView* view : {&weight->data, &weight->scale}) {
          if (!view->is_null())
            ranges.emplace_back(view->as<const std::byte>(), static_cast<size_t>(view->num_bytes()));
        }
      }
    }
  }
  reads.AskAhead(ranges);
}

}  // namespace dsv4::model
