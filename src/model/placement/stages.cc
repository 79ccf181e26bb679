#include "model/placement/stages.h"

namespace dsv4::model {

int64_t LayerBytes(const ResolvedLayer& layer) {
  int64_t num_bytes = 0;
  for (const ResolvedTensor& tensor : layer.tensors) num_bytes += tensor.linear.num_bytes();
  for (const ResolvedExpert& expert : layer.experts) {
    num_bytes += expert.w1.num_bytes() + expert.w2.num_bytes() + expert.w3.num_bytes();
  }
  return num_bytes;
}

std::vector<Range> StageLayers(const ResolvedCheckpoint& resolved, int64_t num_layers, int num_stages) {
  std::vector<int64_t> costs;
  for (int64_t i = 0; i < num_layers; ++i) {
    costs.push_back(LayerBytes(resolved.layers[static_cast<size_t>(i)]));
  }
  // A token's row of the embedding costs nothing; the table takes memory and the head is read whole.
  const int64_t ends = (resolved.head_is_tied ? 0 : resolved[TensorId::kHead].linear.num_bytes()) +
                       resolved[TensorId::kEmbed].linear.num_bytes();
  return BalanceLayers(costs, ends, num_stages);
}

}  // namespace dsv4::model
