// The config.json of V4.1's random checkpoints.
#include "model/synthetic/synthetic_shape41.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

namespace dsv4::model {
namespace {

// Layers whose ratio is 0, then 2, then 1; sources of each.
struct Shape41 {
  std::string_view name;
  int64_t vocab_size, hidden_size, num_heads, q_lora_rank, o_groups, o_lora_rank;
  std::array<int64_t, 3> layers_of_ratio;  // 0, 2, 1
  std::vector<int64_t> kv_sources, index_sources, engram_layers;
  int64_t candidate_source, candidate_blocks;
  int64_t index_n_heads, index_topk, num_experts, experts_per_token, moe_width;
  int64_t engram_vocab, engram_dim, draft_experts, draft_experts_per_token;
};

const std::vector<Shape41>& Shapes() {
  static const std::vector<Shape41> shapes = {
      {"mini41", 32768, 2048, 32,  512, 8, 512,  {2, 4, 6}, {2, 4, 6}, {2, 4, 6, 9}, {1, 4},
       6,        64,    16,   128, 32,  6, 1024, 20000,     64,        16,           3},
      // flash41 for one device: an eighth of the experts, and n-gram tables that memory holds.
      {"slim41",
       129280,
       5120,
       64,
       1280,
       8,
       1024,
       {2, 18, 20},
       {2, 8, 14, 20},
       {2, 8, 14, 20, 24, 28, 32, 36},
       {1, 14},
       20,
       2048,
       32,
       512,
       48,
       6,
       2304,
       100000,
       256,
       48,
       3},
      {"flash41",
       129280,
       5120,
       64,
       1280,
       8,
       1024,
       {2, 18, 20},
       {2, 8, 14, 20},
       {2, 8, 14, 20, 24, 28, 32, 36},
       {1, 14},
       20,
       2048,
       32,
       512,
       384,
       6,
       2304,
       16000000,
       256,
       128,
       3},
  };
  return shapes;
}

constexpr int64_t kNgrams = 4;
constexpr int64_t kEngramHeads = 8;

bool HasNoDivisor(int64_t number) {
  for (int64_t divisor = 2; divisor * divisor <= number; ++divisor) {
    if (number % divisor == 0) return false;
  }
  return number > 1;
}

// Rows of each table: the sum of its primes, none of which is another's.
std::vector<int64_t> EngramRows(int64_t vocab_size, size_t num_tables) {
  std::set<int64_t> used;
  std::vector<int64_t> rows;
  for (size_t table = 0; table < num_tables; ++table) {
    rows.push_back(0);
    for (int64_t size = 2; size <= kNgrams; ++size) {
      int64_t prime = vocab_size - 1;
      for (int64_t head = 0; head < kEngramHeads; ++head) {
        do ++prime;
        while (used.contains(prime) || !HasNoDivisor(prime));
        used.insert(prime);
        rows.back() += prime;
      }
    }
  }
  return rows;
}

std::vector<int64_t> Below(const std::vector<int64_t>& layers, int64_t num_layers) {
  std::vector<int64_t> below;
  std::ranges::copy_if(layers, std::back_inserter(below), [&](int64_t layer) { return layer < num_layers; });
  return below;
}

}  // namespace

void AddDspark(int64_t num_layers, Json& config) {
  constexpr int64_t kTaps = 3;
  constexpr int64_t kReleasedRank = 256;
  std::vector<int64_t> layers;
  for (int64_t i = std::max<int64_t>(0, num_layers - kTaps); i < num_layers; ++i) layers.push_back(i);
  config["dspark_block_size"] = 5;
  config["dspark_noise_token_id"] = config["vocab_size"].get<int64_t>() - 1;
  config["dspark_markov_rank"] = std::min(kReleasedRank, config["hidden_size"].get<int64_t>() / 4);
  config["dspark_target_layer_ids"] = layers;
}

Result<Json> SyntheticConfig41(const SyntheticOptions& options) {
  const Shape41& shape = *std::ranges::find(Shapes(), options.shape, &Shape41::name);
  const int64_t most = shape.layers_of_ratio[0] + shape.layers_of_ratio[1] + shape.layers_of_ratio[2];
  const int64_t num_layers = options.num_layers.value_or(most);
  if (num_layers < 1 || num_layers > most)
    return Error(
        InvalidArgument(fmt::format("layers: {}, shape {} has 1 to {}", num_layers, shape.name, most)));
  if (options.mtp)
    return Error(InvalidArgument(fmt::format("mtp: shape {} has no draft block, wanted dspark", shape.name)));
  std::vector<int64_t> ratios;
  constexpr std::array<int64_t, 3> kRatios = {0, 2, 1};
  for (size_t i = 0; i < kRatios.size(); ++i)
    ratios.insert(ratios.end(), static_cast<size_t>(shape.layers_of_ratio[i]), kRatios[i]);
  ratios.resize(static_cast<size_t>(num_layers));
  Json text = {
      {"model_type", "deepseek_v41_text"},
      {"vocab_size", options.vocab_size.value_or(shape.vocab_size)},
      {"hidden_size", shape.hidden_size},
      {"num_hidden_layers", num_layers},
      {"num_attention_heads", shape.num_heads},
      {"head_dim", 512},
      {"qk_rope_head_dim", 64},
      {"q_lora_rank", shape.q_lora_rank},
      {"o_groups", shape.o_groups},
      {"o_lora_rank", shape.o_lora_rank},
      {"sliding_window", 128},
      {"rope_theta", 10000},
      {"compress_rope_theta", 160000},
      {"rope_scaling",
       {{"rope_type", "yarn"},
        {"factor", 16},
        {"beta_fast", 32},
        {"beta_slow", 1},
        {"original_max_position_embeddings", 65536}}},
      {"rms_norm_eps", 1e-20},
      {"compress_ratios", ratios},
      {"kv_source_layer_ids", Below(shape.kv_sources, num_layers)},
      {"index_source_layer_ids", Below(shape.index_sources, num_layers)},
      {"candidate_source_layer_id", shape.candidate_source < num_layers ? shape.candidate_source : -1},
      {"candidate_topk_blocks", shape.candidate_blocks},
      {"candidate_block_size", 8},
      {"index_n_heads", shape.index_n_heads},
      {"index_head_dim", 128},
      {"index_topk", shape.index_topk},
      {"n_routed_experts", shape.num_experts},
      {"num_experts_per_tok", shape.experts_per_token},
      {"n_shared_experts", 1},
      {"moe_intermediate_size", shape.moe_width},
      {"scoring_func", "sqrtsoftplus"},
      {"topk_method", "noaux_tc"},
      {"routed_scaling_factor", 1.5},
      {"swiglu_limit", 10.0},
      {"hc_mult", 4},
      {"hc_sinkhorn_iters", 20},
      {"hc_eps", 1e-6},
      {"num_nextn_predict_layers", options.dspark ? 3 : 0},
  };
  if (const std::vector<int64_t> layers = Below(shape.engram_layers, num_layers); !layers.empty()) {
    text["engram_layer_ids"] = layers;
    text["engram_vocab_size"] = shape.engram_vocab;
    text["engram_num_embeddings"] = EngramRows(shape.engram_vocab, layers.size());
    text["engram_max_ngram_size"] = kNgrams;
    text["engram_n_heads"] = kEngramHeads;
    text["engram_head_dim"] = shape.engram_dim;
    text["engram_pad_token_id"] = 2;
  }
  if (options.dspark) {
    AddDspark(num_layers, text);
    text["dspark_n_routed_experts"] = shape.draft_experts;
    text["dspark_num_experts_per_tok"] = shape.draft_experts_per_token;
  }
  return Json{{"architectures", {"DeepseekV41ForConditionalGeneration"}},
              {"model_type", "deepseek_v41"},
              {"text_config", text},
              {"bos_token_id", options.bos_token_id},
              {"eos_token_id", options.eos_token_id},
              {"tie_word_embeddings", false},
              {"random_weights", true},
              {"torch_dtype", options.format == SyntheticFormat::kF32 ? "float32" : "bfloat16"}};
}

}  // namespace dsv4::model
