// Times of expert splits from measured rates, the fastest one, and texts that explain it.
#include "model/placement/expert_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "model/placement/expert_draws.h"

namespace dsv4::model {

double MissedShare(const ExpertSplit& split, const ExpertCosts& costs) {
  if (split.cached == 0) return 0;
  const double slots = split.slots > 0 ? static_cast<double>(split.slots) : static_cast<double>(costs.room);
  const double missed = static_cast<double>(split.cached) - slots / static_cast<double>(costs.num_layers);
  return std::max(0.0, missed) / static_cast<double>(costs.num_experts);
}

ExpertTimes TimesOf(const ExpertSplit& split, const ExpertCosts& costs) {
  const auto num_experts = static_cast<double>(costs.num_experts);
  const auto num_layers = static_cast<double>(costs.num_layers);
  const auto chosen = static_cast<double>(costs.top_k) * num_layers;
  const double of_host = static_cast<double>(split.host) / num_experts;
  const double missed = MissedShare(split, costs);
  const bool beside = of_host > 0 && missed > 0;
  const double host_rate = beside ? costs.host_beside : costs.host;
  const double link_rate = beside ? costs.link_beside : costs.link;
  const auto seconds = [&](double share, double rate) {
    return share == 0 ? 0.0 : share * costs.expert_bytes / rate;
  };
  ExpertTimes times;
  times.host = chosen * seconds(of_host, host_rate);
  times.link = chosen * seconds(missed, link_rate);
  times.both = num_layers *
               MeanSlowestTier(
                   {.num_experts = costs.num_experts,
                    .top_k = costs.top_k,
                    .host = split.host,
                    .cached = split.cached,
                    .miss_share = missed == 0 ? 0 : missed * num_experts / static_cast<double>(split.cached)},
                   {.host = of_host == 0 ? 0 : costs.expert_bytes / host_rate,
                    .link = missed == 0 ? 0 : costs.expert_bytes / link_rate});
  // A pass brings all that are not there.
  const double brought =
      num_layers * num_experts * seconds(missed, link_rate) / static_cast<double>(costs.chunk_tokens);
  times.prompt = std::max(chosen * seconds(of_host, costs.host_prompt), brought);
  return times;
}

ExpertChoice ChooseExperts(const ExpertCosts& costs) {
  ExpertChoice best;
  best.split.resident = std::min(costs.room / costs.num_layers, costs.num_experts);
  best.split.host = costs.num_experts - best.split.resident;
  best.times = TimesOf(best.split, costs);
  const int64_t most = std::min({costs.num_experts, costs.pinnable / costs.num_layers, costs.room});
  for (int64_t cached = best.split.resident + 1; cached <= most; ++cached) {
    ExpertChoice choice;
    choice.split = {.resident = 0,
                    .host = costs.num_experts - cached,
                    .cached = cached,
                    .slots = std::min(costs.room, cached * costs.num_layers)};
    choice.times = TimesOf(choice.split, costs);
    // The last one is without the host where all fit. It is taken in a near tie: rates are estimates, prompts
    // are faster, and bits are those of residents.
    constexpr double kNearTie = 1.1;
    const double wants = choice.split.host == 0 ? choice.times.judged() / kNearTie : choice.times.judged();
    if (wants < best.times.judged()) best = choice;
  }
  return best;
}

PromptCrossings CrossingsOf(const ExpertSplit& split, const ExpertCosts& costs) {
  const auto num_experts = static_cast<double>(costs.num_experts);
  const auto top_k = static_cast<double>(costs.top_k);
  const double link_rate = split.host > 0 ? costs.link_beside : costs.link;
  const auto choices = static_cast<double>(costs.streamed_choices);
  PromptCrossings crossings;
  crossings.streamed_from = static_cast<int64_t>(std::ceil(choices * num_experts / top_k));
  crossings.layer = MissedShare(split, costs) * num_experts * costs.expert_bytes / link_rate;
  // n tokens choose an expert n * top_k / num_experts times.
  crossings.host_until = static_cast<int64_t>(num_experts / top_k * costs.host_prompt / link_rate);
  return crossings;
}

std::string PromptText(const ExpertSplit& split, const ExpertCosts& costs) {
  const PromptCrossings crossings = CrossingsOf(split, costs);
  const auto num_layers = static_cast<double>(costs.num_layers);
  std::string text;
  if (split.cached > 0) {
    text = fmt::format(
        "passes of {} or more bring all cached experts of a layer ahead, {:.1f} ms a layer, {:.2f} s "
        "a "
        "pass; ",
        Counted(crossings.streamed_from, "token"), crossings.layer * 1e3, crossings.layer * num_layers);
  }
  if (split.host > 0) {
    const double of_host = static_cast<double>(split.host) / static_cast<double>(costs.num_experts);
    const double seconds = static_cast<double>(costs.chunk_tokens * costs.top_k) * num_layers * of_host *
                           costs.expert_bytes / costs.host_prompt;
    text += fmt::format("the host takes {:.2f} s for its experts of {}; ", seconds,
                        Counted(costs.chunk_tokens, "token"));
  }
  return text + fmt::format("an expert is multiplied by the host sooner than brought up to {} a pass",
                            Counted(crossings.host_until, "token"));
}

std::string Advice(const ExpertChoice& choice) {
  const ExpertTimes& times = choice.times;
  const double more = std::max(times.host, times.link);
  if (more == 0) return "all experts are on the GPU";
  const bool host = times.host >= times.link;
  return fmt::format(
      "{} bounds it; {} would make it faster", host ? "the host's multiplication" : "the link to the GPU",
      host ? "more GPU memory, or faster memory of the host," : "more GPU memory, or a faster link,");
}

}  // namespace dsv4::model
