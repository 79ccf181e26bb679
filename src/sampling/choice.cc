// Choice of a token by exact integer weights: greedy, drawn from all, or drawn from what filters keep.
#include "sampling/choice.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "sampling/ranking.h"

namespace dsv4::sampling {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Every logit to its weight.
void Weigh(std::span<float> logits, float highest, float temperature) {
  for (float& value : logits) value = WeightOf(value, highest, temperature);
}

double Sum(std::span<const float> values) {
  double lanes[4] = {};
  size_t i = 0;
  for (; i + 4 <= values.size(); i += 4) {
    for (size_t j = 0; j < 4; ++j) lanes[j] += static_cast<double>(values[i + j]);
  }
  for (; i < values.size(); ++i) lanes[0] += static_cast<double>(values[i]);
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

double TotalWeight(std::span<const float> logits, float highest, float temperature) {
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); i += kBlock) {
    float weights[kBlock];
    const std::span<float> block(weights, std::min(kBlock, logits.size() - i));
    std::copy_n(logits.data() + i, block.size(), weights);
    Weigh(block, highest, temperature);
    total += Sum(block);
  }
  return total;
}

int32_t DrawFromAll(std::span<const float> weights, double uniform) {
  const auto block = [&](size_t begin) {
    return weights.subspan(begin, std::min(kBlock, weights.size() - begin));
  };
  double total = 0.0;
  for (size_t i = 0; i < weights.size(); i += kBlock) total += Sum(block(i));
  const double wanted = uniform * total;
  double before = 0.0;
  size_t i = 0;
  for (; i + kBlock < weights.size(); i += kBlock) {
    const double sum = Sum(block(i));
    if (before + sum > wanted) break;
    before += sum;
  }
  // The sum of all is more than `wanted`; of more than kMaxChoices it may round to it.
  while ((before += static_cast<double>(weights[i])) <= wanted && i + 1 < weights.size()) ++i;
  return static_cast<int32_t>(i);
}

int32_t DrawFromKept(std::vector<WeightedToken> kept, double uniform) {
  std::sort(kept.begin(), kept.end(),
            [](const WeightedToken& a, const WeightedToken& b) { return a.id < b.id; });
  double total = 0.0;
  for (const WeightedToken& token : kept) total += static_cast<double>(token.weight);
  const double wanted = uniform * total;
  double sum = 0.0;
  size_t i = 0;
  while ((sum += static_cast<double>(kept[i].weight)) <= wanted && i + 1 < kept.size()) ++i;
  return kept[i].id;
}

}  // namespace

std::optional<int32_t> TakeAllowed(std::span<const float> logits, std::span<const uint8_t> allowed,
                                   std::span<const uint64_t> permitted, std::span<float> choices) {
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    static_assert(kBlock == 64, "one word of `permitted`");
    const size_t size = std::min(kBlock, logits.size() - begin);
    const float* from = logits.data() + begin;
    float* to = choices.data() + begin;
    unsigned bad = 0;
    for (size_t j = 0; j < size; ++j) {
      to[j] = from[j];
      bad |= from[j] <= std::numeric_limits<float>::max() ? 0U : 1U;
    }
    if (bad != 0) {
      const float* first = std::find_if(
          from, from + size, [](float logit) { return !(logit <= std::numeric_limits<float>::max()); });
      return static_cast<int32_t>(first - logits.data());
    }
    if (!allowed.empty()) {
      const uint8_t* mask = allowed.data() + begin;
      for (size_t j = 0; j < size; ++j) to[j] = mask[j] != 0 ? to[j] : kMinusInfinity;
    }
    if (permitted.empty()) continue;
    const uint64_t word = begin / kBlock < permitted.size() ? permitted[begin / kBlock] : 0;
    for (size_t j = 0; j < size && word != ~uint64_t{0}; ++j) {
      if ((word >> j & 1) == 0) to[j] = kMinusInfinity;
    }
  }
  return std::nullopt;
}

std::vector<WeightedToken> Keep(const ChoiceParams& params, std::span<const float> choices) {
  DSV4_CHECK(params.temperature > 0.0F) << "temperature " << params.temperature;
  Ranking ranking(choices);
  const Ranked* best = ranking.At(0);
  DSV4_CHECK(best != nullptr) << "no token has a finite logit";
  const float highest = best->value;
  const auto weight = [&](float logit) { return WeightOf(logit, highest, params.temperature); };
  const size_t most = params.top_k > 0 ? static_cast<size_t>(params.top_k) : choices.size();
  double wanted = std::numeric_limits<double>::infinity();
  if (params.top_p < 1.0F && most < choices.size()) {
    double total = 0.0;
    for (size_t i = 0; i < most && ranking.At(i) != nullptr; ++i)
      total += static_cast<double>(weight(ranking.At(i)->value));
    wanted = static_cast<double>(params.top_p) * total;
  } else if (params.top_p < 1.0F) {
    wanted = static_cast<double>(params.top_p) * TotalWeight(choices, highest, params.temperature);
  }

  const float lowest = params.lowest_exponent();
  std::vector<WeightedToken> kept;
  for (double sum = 0.0; kept.empty() || (kept.size() < most && sum < wanted);) {
    const Ranked* next = ranking.At(kept.size());
    if (next == nullptr || (next->value - highest) / params.temperature < lowest) break;
    kept.push_back({next->id, weight(next->value)});
    sum += static_cast<double>(kept.back().weight);
  }
  return kept;
}

std::optional<int32_t> Choose(const ChoiceParams& params, std::span<float> choices) {
  const float highest = Highest(choices);
  if (highest == kMinusInfinity) return std::nullopt;
  if (params.temperature == 0.0F) return static_cast<int32_t>(FirstPlaceOf(highest, choices));
  if (params.has_filters()) return DrawFromKept(Keep(params, choices), params.uniform);
  Weigh(choices, highest, params.temperature);
  return DrawFromAll(choices, params.uniform);
}

}  // namespace dsv4::sampling
