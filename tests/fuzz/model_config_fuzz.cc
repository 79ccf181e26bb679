// Input: a config.json. Whatever is accepted must have sizes that can be multiplied, and the divisibility
// rules that the graph relies on.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/arch/architecture.h"
#include "model/config/config.h"

namespace {

bool FitsTogether(int64_t a, int64_t b) {
  int64_t product = 0;
  return a > 0 && b > 0 && !__builtin_mul_overflow(a, b, &product) && product < (int64_t{1} << 48);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = dsv4::model::ParseModelConfig({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!config.has_value()) {
    DSV4_CHECK(!config.error().message().empty());
    return 0;
  }
  DSV4_CHECK(static_cast<int64_t>(config->layers.size()) == config->num_hidden_layers);
  DSV4_CHECK(FitsTogether(config->vocab_size, config->hidden_size));
  DSV4_CHECK(FitsTogether(config->q_dim(), config->hidden_size));
  DSV4_CHECK(FitsTogether(config->hc_mix(), config->hc_dim()));
  DSV4_CHECK(FitsTogether(config->n_routed_experts, config->moe_intermediate_size));
  DSV4_CHECK(config->num_experts_per_tok <= config->n_routed_experts);
  DSV4_CHECK(config->num_attention_heads % config->o_groups == 0);
  DSV4_CHECK(config->qk_rope_head_dim % 2 == 0 && config->qk_rope_head_dim <= config->head_dim);
  for (const dsv4::model::LayerPlan& layer : config->layers) {
    DSV4_CHECK(layer.sees_entries() == (layer.ratio > 0));
    if (layer.selects()) {
      DSV4_CHECK(config->index_n_heads > 0 && config->index_head_dim > 0 && config->index_topk > 0);
    }
  }
  return 0;
}

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  return dsv4::model::ParseModelConfig({reinterpret_cast<const char*>(data), size}, "seed").has_value();
}
