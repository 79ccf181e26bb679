// Check `sampler`: each stage's effect on logits against a plain computation, and a test of the draws.
#include "diag/checks/sampler_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/text.h"
#include "diag/statistics.h"
#include "sampling/sampler.h"

namespace dsv4::diag {
namespace {

using sampling::SamplingParams;

constexpr size_t kShownTokens = 6;
constexpr int kNumDraws = 20000;
constexpr size_t kDrawVocabulary = 64;

std::map<int32_t, int> CountSeen(std::span<const int32_t> prompt, int window) {
  const auto size = static_cast<int64_t>(prompt.size());
  const int64_t begin = window == 0 ? 0 : std::max<int64_t>(0, size - window);
  std::map<int32_t, int> counts;
  for (int64_t i = begin; i < size; ++i) ++counts[prompt[static_cast<size_t>(i)]];
  return counts;
}

// Bias and penalties as sampling_params.h says them, written out once more.
std::vector<float> ExpectedLogits(const SamplerInput& input, const SamplingParams& params) {
  std::vector<float> logits(input.logits.begin(), input.logits.end());
  for (size_t id = 0; id < input.allowed.size(); ++id) {
    if (input.allowed[id] == 0) logits[id] = -std::numeric_limits<float>::infinity();
  }
  for (const auto& [id, bias] : params.logit_bias) logits[static_cast<size_t>(id)] += bias;
  for (const auto& [id, count] : CountSeen(input.prompt, params.penalty_window)) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
  }
  return logits;
}

// The logits as the sampler's own stages leave them before temperature.
struct Stages {
  std::vector<float> masked;
  std::vector<float> biased;
  std::vector<float> penalised;
};

Stages RunStages(const SamplerInput& input, const SamplingParams& params) {
  Stages stages;
  stages.masked.assign(input.logits.begin(), input.logits.end());
  for (size_t id = 0; id < input.allowed.size(); ++id) {
    if (input.allowed[id] == 0) stages.masked[id] = -std::numeric_limits<float>::infinity();
  }
  stages.biased = stages.masked;
  sampling::ApplyLogitBias(params, stages.biased);
  sampling::PenaltyWindow seen(params.penalty_window);
  for (const int32_t token : input.prompt) seen.Add(token);
  stages.penalised = stages.biased;
  sampling::ApplyPenalties(params, seen, stages.penalised);
  return stages;
}

// Ids worth a row: the highest logits, and the penalised tokens among the highest.
std::vector<int32_t> ShownIds(const SamplerInput& input) {
  std::vector<int32_t> ids(input.logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const auto higher = [&](int32_t a, int32_t b) {
    return input.logits[static_cast<size_t>(a)] > input.logits[static_cast<size_t>(b)];
  };
  const size_t count = std::min(kShownTokens, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<int64_t>(count), ids.end(), higher);
  ids.resize(count);
  std::vector<int32_t> seen;
  for (const auto& [id, times] : CountSeen(input.prompt, input.params.penalty_window)) seen.push_back(id);
  std::sort(seen.begin(), seen.end(), higher);
  for (size_t i = 0; i < std::min(kShownTokens, seen.size()); ++i) {
    if (std::find(ids.begin(), ids.end(), seen[i]) == ids.end()) ids.push_back(seen[i]);
  }
  return ids;
}

Table LogitTable(const SamplerInput& input, const Stages& stages) {
  const std::map<int32_t, int> seen = CountSeen(input.prompt, input.params.penalty_window);
  Table table{.title = "logits before and after each stage",
              .columns = {"id", "times seen", "model", "mask", "bias", "penalties"}};
  for (const int32_t id : ShownIds(input)) {
    const auto i = static_cast<size_t>(id);
    const auto found = seen.find(id);
    table.rows.push_back({std::to_string(id), std::to_string(found == seen.end() ? 0 : found->second),
                          fmt::format("{:.4f}", input.logits[i]), fmt::format("{:.4f}", stages.masked[i]),
                          fmt::format("{:.4f}", stages.biased[i]),
                          fmt::format("{:.4f}", stages.penalised[i])});
  }
  return table;
}

// Probabilities that the shown tokens are drawn with, before and after the stages.
Plot ProbabilityPlot(const SamplerInput& input, std::span<const float> penalised) {
  Plot plot{
      .title = "Probability of the shown tokens, before and after all stages",
      .reading =
          "Before: the softmax of the model's logits. After: what the token is drawn with, once mask, bias, "
          "penalties, temperature and filters have acted.",
      .x_label = "token id",
      .y_label = "probability"};
  Series before{.name = "before", .style = SeriesStyle::kBars, .color = 0};
  Series after{.name = "after", .style = SeriesStyle::kBars, .color = 1};
  const double highest = *std::max_element(input.logits.begin(), input.logits.end());
  double total = 0;
  for (const float logit : input.logits) total += std::exp(logit - highest);
  std::map<int32_t, double> drawn;
  if (input.params.temperature == 0.0F) {
    drawn[static_cast<int32_t>(ArgMax(penalised))] = 1;
  } else {
    for (const sampling::Candidate& candidate : sampling::FilterCandidates(input.params, penalised))
      drawn[candidate.id] = candidate.probability;
  }
  double x = 0;
  for (const int32_t id : ShownIds(input)) {
    before.Add(x, std::exp(input.logits[static_cast<size_t>(id)] - highest) / total);
    after.Add(x, drawn.contains(id) ? drawn[id] : 0);
    plot.x_names.push_back({x, std::to_string(id)});
    x += 1;
  }
  plot.series = {std::move(before), std::move(after)};
  return plot;
}

// How many tokens each filter leaves.
Table FilterTable(const SamplingParams& params, std::span<const float> logits) {
  Table table{.title = "what may be drawn after each filter",
              .columns = {"stage", "candidates", "most probable id", "its probability"}};
  if (params.temperature == 0.0F) {
    table.rows.push_back({"greedy", "1", std::to_string(ArgMax(logits)), "1"});
    return table;
  }
  SamplingParams partial;
  const auto add = [&](const std::string& stage) {
    const std::vector<sampling::Candidate> left = sampling::FilterCandidates(partial, logits);
    table.rows.push_back({stage, std::to_string(left.size()), std::to_string(left[0].id),
                          fmt::format("{:.5f}", left[0].probability)});
  };
  partial.temperature = params.temperature;
  add(fmt::format("temperature {:g}", params.temperature));
  partial.top_k = params.top_k;
  add(fmt::format("top-k {}", params.top_k));
  partial.top_p = params.top_p;
  add(fmt::format("top-p {:g}", params.top_p));
  partial.min_p = params.min_p;
  add(fmt::format("min-p {:g}", params.min_p));
  return table;
}

// An experiment whose outcome a penalty decides: one prompt token is lifted by a bias above all others and
// taken down again by the penalty. With the penalty the path must not choose it, without the penalty it must.
struct Duel {
  SamplingParams with;
  SamplingParams without;
  int32_t lifted = 0;
};

Duel MakeDuel(const SamplerInput& input, bool presence) {
  // The most frequent prompt token within the window: frequency and presence both act on it.
  const SamplingParams defaults;
  const std::map<int32_t, int> seen = CountSeen(input.prompt, defaults.penalty_window);
  const auto most = std::max_element(seen.begin(), seen.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  Duel duel;
  duel.lifted = most->first;
  duel.without.temperature = 0;
  const float highest = *std::max_element(input.logits.begin(), input.logits.end());
  duel.without.logit_bias[duel.lifted] = highest - input.logits[static_cast<size_t>(duel.lifted)] + 20.0F;
  duel.with = duel.without;
  (presence ? duel.with.presence_penalty : duel.with.frequency_penalty) = 1000.0F;
  return duel;
}

Result<std::string> DuelComplaint(const SamplerInput& input, bool presence) {
  const Duel duel = MakeDuel(input, presence);
  const char* name = presence ? "presence" : "frequency";
  DSV4_ASSIGN_OR_RETURN(const int32_t without, input.first_token(duel.without));
  if (without != duel.lifted) {
    return fmt::format(
        "a logit bias lifts token {} 20 above all others, but {} is chosen: the bias does not reach the "
        "logits",
        duel.lifted, without);
  }
  DSV4_ASSIGN_OR_RETURN(const int32_t with, input.first_token(duel.with));
  const auto want = static_cast<int32_t>(ArgMax(ExpectedLogits(input, duel.with)));
  if (with == duel.lifted && want != duel.lifted) {
    return fmt::format(
        "token {} of the prompt is chosen against a {} penalty of 1000: penalties do not see the prompt or "
        "do "
        "not reach the logits",
        duel.lifted, name);
  }
  if (with != want) return fmt::format("with a {} penalty {} is chosen, wanted {}", name, with, want);
  return std::string();
}

// Pearson's chi-squared of `kNumDraws` seeded draws against the softmax; the expected value is the degrees of
// freedom.
struct Fit {
  double chi_squared = 0;
  int degrees = 0;
  // Five standard deviations of the chi-squared distribution.
  double bound() const { return degrees + 5 * std::sqrt(2.0 * std::max(degrees, 1)); }
};

Fit TestDraws(std::span<const float> logits, float temperature) {
  // The highest logits only: the draw is the same, and a vocabulary of 129280 would take minutes.
  std::vector<float> best(logits.begin(), logits.end());
  const size_t size = std::min(kDrawVocabulary, best.size());
  std::partial_sort(best.begin(), best.begin() + static_cast<int64_t>(size), best.end(), std::greater<>());
  best.resize(size);
  SamplingParams params;
  params.temperature = temperature > 0 ? temperature : 1.0F;
  std::vector<double> probabilities;
  double total = 0;
  for (const float logit : best) {
    probabilities.push_back(
        std::exp(static_cast<double>(logit - best[0]) / static_cast<double>(params.temperature)));
    total += probabilities.back();
  }
  params.seed = 1;
  sampling::Sampler sampler(params, {}, /*num_logprobs=*/-1);
  std::vector<int> counts(size);
  for (int i = 0; i < kNumDraws; ++i) {
    const Result<sampling::SampledToken> token = sampler.Sample(best);
    if (token) ++counts[static_cast<size_t>(token->id)];
  }
  Fit fit;
  double rest = 0;
  int rest_count = 0;
  for (size_t i = 0; i < size; ++i) {
    const double expected = kNumDraws * probabilities[i] / total;
    if (expected < 5) {  // The approximation needs cells of five.
      rest += expected;
      rest_count += counts[i];
      continue;
    }
    fit.chi_squared += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++fit.degrees;
  }
  if (rest >= 5) {
    fit.chi_squared += (rest_count - rest) * (rest_count - rest) / rest;
    ++fit.degrees;
  }
  fit.degrees = std::max(0, fit.degrees - 1);
  return fit;
}

// The stages against their definition.
std::string StageComplaint(const SamplerInput& input, const Stages& stages) {
  const std::vector<float> want = ExpectedLogits(input, input.params);
  for (size_t id = 0; id < want.size(); ++id) {
    const float got = stages.penalised[id];
    if (got == want[id] || std::abs(got - want[id]) <= 1e-5F * std::max(1.0F, std::abs(want[id]))) continue;
    return fmt::format("bias and penalties leave token {} at {}, wanted {}", id, got, want[id]);
  }
  return {};
}

}  // namespace

Result<CheckReport> CheckSampler(const SamplerInput& input) {
  CheckReport report{.check = "sampler"};
  if (input.prompt.empty())
    return NotApplicable(std::move(report), "no prompt: nothing for the penalties to see");
  if (!AllFinite(input.logits)) {
    report.verdict = Verdict::kFinding;
    report.headline = "the model's logits hold NaN or infinity";
    report.next_step = "dsv4 diagnose residual names the first layer that is not finite";
    return report;
  }
  const Stages stages = RunStages(input, input.params);
  std::vector<std::string> complaints;
  if (std::string text = StageComplaint(input, stages); !text.empty()) complaints.push_back(std::move(text));
  for (const bool presence : {true, false}) {
    DSV4_ASSIGN_OR_RETURN(std::string text, DuelComplaint(input, presence));
    if (!text.empty()) complaints.push_back(std::move(text));
  }
  const Fit fit = TestDraws(stages.penalised, input.params.temperature);
  if (fit.chi_squared > fit.bound()) {
    complaints.push_back(
        fmt::format("{} draws do not follow the softmax: chi-squared {:.1f} at {} degrees of freedom",
                    kNumDraws, fit.chi_squared, fit.degrees));
  }

  const std::map<int32_t, int> seen = CountSeen(input.prompt, input.params.penalty_window);
  report.evidence = {
      fmt::format("the penalties see {} in the last {} of {}", Counted(seen.size(), "different token"),
                  input.params.penalty_window == 0
                      ? input.prompt.size()
                      : std::min(input.prompt.size(), static_cast<size_t>(input.params.penalty_window)),
                  Counted(input.prompt.size(), "prompt token")),
      "a prompt token lifted above all others by a bias is chosen without a penalty and not with one",
      fmt::format("{} from the {} highest logits: chi-squared {:.1f}, {} degrees of freedom, "
                  "bound {:.1f}",
                  Counted(kNumDraws, "seeded draw"), kDrawVocabulary, fit.chi_squared, fit.degrees,
                  fit.bound())};
  report.plots = {ProbabilityPlot(input, stages.penalised)};
  report.tables = {LogitTable(input, stages), FilterTable(input.params, stages.penalised)};
  if (complaints.empty()) {
    report.headline =
        "every stage does what it says; penalties see the prompt and reach the logits; draws follow the "
        "softmax";
    report.rules_out = {"penalties without effect, filters in another order, a biased random path"};
    report.next_step = "loops that are left come from the model or the prompt, not from sampling";
  } else {
    report.verdict = Verdict::kFinding;
    report.headline = complaints.front();
    report.evidence = complaints;
    report.next_step =
        "follow the logits from the model's output to the draw: where is the copy that the penalty changed?";
  }
  return report;
}

}  // namespace dsv4::diag
