// Hashes of what a model's rows follow from.
#include "model/runtime/origin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>

#include "formats/cache_rows.h"

namespace dsv4::model {
namespace {

using std::chrono::steady_clock;

uint64_t Hash(const std::string& facts) { return XXH3_64bits(facts.data(), facts.size()); }

std::string FactsText(const RopeConfig& r) {
  return fmt::format("{} {} {} {} {} {}", r.theta, r.yarn, r.factor, r.original_max_position_embeddings,
                     r.beta_fast, r.beta_slow);
}

std::string FactsText(const QuantizationConfig& q) {
  return fmt::format("{} {} {} {} {} {} {} {}", q.quant_method, q.quant_algo, q.moe_quant_algo, q.scale_fmt,
                     q.weight_block_rows.value_or(0), q.weight_block_cols.value_or(0),
                     fmt::join(q.quantized_layers, ","), fmt::join(q.ignore, ","));
}

std::string FactsText(const DsparkConfig& d) {
  return fmt::format("{} {} {} {} {} {} {}", d.block_size, d.noise_token_id, d.markov_rank,
                     fmt::join(d.target_layer_ids, ","), d.taps_inputs, d.n_routed_experts,
                     d.num_experts_per_tok);
}

std::string FactsText(const EngramConfig& e) {
  return fmt::format("{} {} {} {} {} {} {} {}", fmt::join(e.layer_ids, ","), fmt::join(e.num_embeddings, ","),
                     e.vocab_size, e.max_ngram_size, e.n_heads, e.head_dim, e.pad_token_id,
                     e.compressed_vocab_size);
}

// Every field but those that name tokens for others and parts that do not run.
std::string FactsText(const ModelConfig& c) {
  const std::array sizes = {c.vocab_size,
                            c.hidden_size,
                            c.num_hidden_layers,
                            c.max_position_embeddings,
                            c.num_attention_heads,
                            c.head_dim,
                            c.qk_rope_head_dim,
                            c.q_lora_rank,
                            c.o_groups,
                            c.o_lora_rank,
                            c.sliding_window,
                            c.index_n_heads,
                            c.index_head_dim,
                            c.index_topk,
                            c.n_routed_experts,
                            c.num_experts_per_tok,
                            c.hc_mult,
                            c.moe_intermediate_size,
                            c.hc_sinkhorn_iters,
                            c.num_nextn_predict_layers,
                            c.candidate_topk_blocks,
                            c.candidate_block_size,
                            c.activation_block,
                            int64_t{c.hadamard_keys},
                            int64_t{c.norm_query_heads},
                            int64_t{c.norm_topk_prob},
                            int64_t{c.norm_single_expert}};
  std::string facts = fmt::format(
      "{}|{} {} {} {} {} {}|{}|{}|{}|{}|{}|{}|{}", fmt::join(sizes, " "), c.routed_scaling_factor,
      c.gate_temp, c.router_eps, c.swiglu_limit, c.hc_eps, c.rms_norm_eps, FactsText(c.rope),
      FactsText(c.compress_rope), c.tie_word_embeddings, c.expert_dtype, FactsText(c.quantization),
      c.dspark ? FactsText(*c.dspark) : std::string(), c.engram ? FactsText(*c.engram) : std::string());
  for (const CacheFormat& rows : {c.window_rows, c.entry_rows, c.key_rows})
    facts += "|" + dsv4::ToString(rows);
  for (const LayerPlan& layer : c.layers) facts += "|" + Facts(layer);
  return facts;
}

std::string FactsText(const ModelConfig& config, const ModelOptions& options) {
  const uint64_t classes =
      XXH3_64bits(options.token_classes.data(), options.token_classes.size() * sizeof(int32_t));
  return fmt::format("{}|{}|{}|{}", FactsText(config), options.numerics == Numerics::kRelease,
                     options.clamp_shared_expert, config.engram.has_value() ? classes : 0);
}

// Which experts the host multiplies, each stage's own: bits of all others are alike.
std::string ExpertFacts(const ModelOptions& options) {
  const int64_t host = options.experts.host;
  if (host == 0) return "";
  std::string experts = fmt::format("|host={}", host);
  for (const std::vector<int32_t>& order : options.expert_order) {
    std::vector<int32_t> ids(order.end() - host, order.end());
    std::ranges::sort(ids);
    experts += fmt::format(" {}", fmt::join(ids, ","));
  }
  return experts;
}

}  // namespace

uint64_t RecipeOf(const ModelConfig& config, const ModelOptions& options, int64_t num_layers) {
  return Hash(fmt::format("{}|{}{}", FactsText(config, options), num_layers, ExpertFacts(options)));
}

uint64_t GroupRecipeOf(const ModelConfig& config, const ModelWeights& weights, int64_t num_layers,
                       const ModelOptions& options, const ops::ParallelPolicy& policy) {
  // Stages send the rows of these layers to the one that drafts.
  const std::vector<int64_t> tapped =
      weights.dspark.has_value() ? weights.dspark->config.target_layer_ids : std::vector<int64_t>();
  return Hash(fmt::format("{}|{} {} {} {} {} {}|{}|{}|{}|{}|{}|{}|{} {} {} {}", FactsText(config, options),
                          policy.min_index_tokens, policy.most_key_bytes, policy.index_token_cost,
                          policy.few_queries, policy.most_sent_queries, policy.min_stream_tokens, num_layers,
                          options.max_chunk_tokens, options.max_rewind_tokens, options.max_gathered_terms,
                          ToString(options.placement), options.cache_rows == CacheRows::kPacked,
                          weights.mtp.has_value(), weights.dspark.has_value(),
                          static_cast<int>(options.draft_head), fmt::join(tapped, " ")));
}

void WeightFiles::Add(const std::shared_ptr<const io::Checkpoint>& checkpoint, bool past_cache) {
  digests_.push_back(std::make_unique<io::ContentDigest>(checkpoint, past_cache));
  const std::optional<uint64_t> place = checkpoint->place();
  if (!place || !place_) {
    place_.reset();
    return;
  }
  const std::array<uint64_t, 2> places = {*place_, *place};
  place_ = XXH3_64bits(places.data(), sizeof(places));
}

void WeightFiles::Start() {
  for (const auto& digest : digests_) digest->Start();
}

Status WeightFiles::Unchanged() const {
  for (const auto& digest : digests_) DSV4_RETURN_IF_ERROR(digest->Unchanged());
  return {};
}

Result<uint64_t> WeightFiles::Wait(std::chrono::milliseconds at_most) {
  if (digests_.empty()) return Error(FailedPrecondition("weights: they are of no checkpoint"));
  Start();
  std::vector<uint64_t> all;
  const steady_clock::time_point begin = steady_clock::now();
  for (const auto& digest : digests_) {
    std::chrono::milliseconds left = at_most;
    if (at_most != io::ContentDigest::kForever) {
      const auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - begin);
      left = std::max(std::chrono::milliseconds(0), at_most - spent);
    }
    DSV4_ASSIGN_OR_RETURN(all.emplace_back(), digest->Wait(left));
  }
  return XXH3_64bits(all.data(), all.size() * sizeof(uint64_t));
}

}  // namespace dsv4::model
