// Reference sample: logits ranked, filtered and drawn from as sampling/choice.h defines, written out plainly.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "sampling/choice.h"

namespace dsv4::backend::reference {
namespace {

struct Entry {
  int32_t id;
  float logit;
  float exponent;
  double weight;
};

// The tokens of a row that have a finite logit, in rank.
std::vector<Entry> Ranked(const float* logits, const uint8_t* allowed, int64_t vocab_size,
                          float temperature) {
  std::vector<Entry> entries;
  for (int64_t id = 0; id < vocab_size; ++id) {
    if ((allowed == nullptr || allowed[id] != 0) && std::isfinite(logits[id]))
      entries.push_back({static_cast<int32_t>(id), logits[id], 0.0F, 0.0});
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.logit > b.logit; });
  if (temperature == 0.0F || entries.empty()) return entries;
  const float highest = entries[0].logit;
  for (Entry& entry : entries) {
    entry.exponent = (entry.logit - highest) / temperature;
    entry.weight = static_cast<double>(sampling::WeightOf(entry.logit, highest, temperature));
  }
  return entries;
}

double Sum(const std::vector<Entry>& entries) {
  double sum = 0.0;
  for (const Entry& entry : entries) sum += entry.weight;
  return sum;
}

void Filter(const sampling::ChoiceParams& choice, std::vector<Entry>& entries) {
  if (choice.top_k > 0) entries.resize(std::min(entries.size(), static_cast<size_t>(choice.top_k)));
  if (choice.top_p < 1.0F) {
    const double wanted = static_cast<double>(choice.top_p) * Sum(entries);
    double sum = 0.0;
    size_t count = 0;
    while (sum < wanted) sum += entries[count++].weight;
    entries.resize(count);
  }
  std::erase_if(entries, [&](const Entry& entry) { return entry.exponent < choice.lowest_exponent(); });
}

int32_t Draw(double uniform, std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.id < b.id; });
  const double wanted = uniform * Sum(entries);
  double sum = 0.0;
  for (const Entry& entry : entries) {
    sum += entry.weight;
    if (sum > wanted) return entry.id;
  }
  return entries.back().id;  // Not reached: uniform is below 1, and sums are exact.
}

}  // namespace

Status Sample(ops::OpContext&, const ops::SampleArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t vocab_size = args.logits.shape[1];
  for (const ops::RowBias& bias : args.biases)
    args.logits.as<float>()[bias.row * vocab_size + bias.added.token] += bias.added.bias;
  for (int64_t row = 0; row < args.logits.shape[0]; ++row) {
    const sampling::ChoiceParams& choice = args.choices[static_cast<size_t>(row)];
    const float* const logits = args.logits.as<const float>() + row * vocab_size;
    int32_t& token = args.tokens.as<int32_t>()[row];
    int32_t& fault = args.faults.as<int32_t>()[row];
    token = 0;
    const float* const bad = std::find_if(logits, logits + vocab_size, [](float logit) {
      return std::isnan(logit) || logit == std::numeric_limits<float>::infinity();
    });
    fault = static_cast<int32_t>(bad - logits);
    if (bad != logits + vocab_size) continue;
    std::vector<Entry> entries =
        Ranked(logits, args.allowed.as<const uint8_t>(), vocab_size, choice.temperature);
    if (entries.empty()) continue;  // `fault` is vocab_size.
    fault = ops::kNoFault;
    token = entries[0].id;
    if (choice.temperature == 0.0F) continue;
    Filter(choice, entries);
    token = Draw(choice.uniform, std::move(entries));
  }
  return {};
}

}  // namespace dsv4::backend::reference
