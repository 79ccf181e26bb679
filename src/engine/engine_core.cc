// Options as they are meant, and what all parts of an engine do with its sequences.
#include "engine/engine_core.h"

#include <algorithm>
#include <utility>

namespace dsv4::engine {
namespace {

// So long after a change of owners another one may come again.
constexpr std::chrono::seconds kOthersMayCome(60);

// The longest context whose state fits in the budget.
int64_t ContextLength(const model::Model& model, const EngineOptions& options) {
  int64_t longest = model.config().max_position_embeddings;
  if (options.max_context > 0) longest = std::min(longest, options.max_context);
  if (options.max_state_bytes == 0) return longest;
  int64_t shortest = 0;
  while (shortest < longest) {
    const int64_t middle = shortest + (longest - shortest + 1) / 2;
    if (model.MostStateBytes(middle) <= options.max_state_bytes)
      shortest = middle;
    else
      longest = middle - 1;
  }
  return shortest;
}

EngineOptions Meant(const model::Model& model, EngineOptions options) {
  // The budget of a rank, many times over where each has sequences of its own, which are about as many.
  options.max_state_bytes *= model.cache_layout().num_places;
  const int64_t pass_tokens = model.options().max_chunk_tokens;
  if (options.max_step_tokens == 0) options.max_step_tokens = pass_tokens;
  // A longer step would be cut into passes anywhere.
  if (model.most_rows_like_steps() > 0)
    options.max_step_tokens = std::min(options.max_step_tokens, pass_tokens);
  SpeculationOptions& speculates = options.speculation;
  speculates.mtp = speculates.mtp && model.can_draft() && !model.has_dspark();
  speculates.dspark = speculates.dspark && model.has_dspark();
  return options;
}

PrefillLimits LimitsOf(const model::Model& model, const EngineOptions& options) {
  return {.max_step_tokens = options.max_step_tokens,
          .max_beside_decode = options.max_prefill_beside_decode,
          .max_gap = options.max_gap.value_or(model.asynchronous() ? kGapAim : 0.0),
          .gap_is_bound = options.max_gap.has_value()};
}

}  // namespace

EngineCore::EngineCore(model::Model& model_to_run, EngineOptions given, std::vector<uint8_t> allowed)
    : model(model_to_run),
      options(Meant(model_to_run, given)),
      allowed_tokens(std::move(allowed)),
      context_length(ContextLength(model_to_run, given)),
      few_rows(model_to_run.most_rows_like_steps()),
      prefill_policy(LimitsOf(model_to_run, options)) {}

bool EngineCore::queues() const {
  return options.async_scheduling.value_or(model.asynchronous()) && model.can_queue();
}

void EngineCore::CameFrom(uint64_t owner) {
  if (last_owner && *last_owner != owner) other_owner_came = std::chrono::steady_clock::now();
  last_owner = owner;
}

bool EngineCore::has_several_owners() const {
  return other_owner_came && std::chrono::steady_clock::now() - *other_owner_came < kOthersMayCome;
}

Status EngineCore::UploadAllowed() {
  if (allowed_tokens.empty() || allowed_on_backend) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(allowed_on_backend, model.UploadAllowedTokens(allowed_tokens));
  return {};
}

void EngineCore::DropFinished() {
  std::erase_if(running, [](const auto& sequence) { return sequence->finished; });
}

}  // namespace dsv4::engine
