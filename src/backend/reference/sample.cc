// Reference sample: logits ranked, filtered and drawn from as sampling/choice.h defines, written out plainly.
#include <algorithm>
#include <cmath>
#include <cstring>
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
std::vector<Entry> Ranked(const std::vector<float>& logits) {
  std::vector<Entry> entries;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::isfinite(logits[id])) entries.push_back({static_cast<int32_t>(id), logits[id], 0.0F, 0.0});
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.logit > b.logit; });
  return entries;
}

void Weigh(float temperature, std::vector<Entry>& entries) {
  const float highest = entries[0].logit;
  for (Entry& entry : entries) {
    entry.exponent = (entry.logit - highest) / temperature;
    entry.weight = static_cast<double>(sampling::WeightOf(entry.logit, highest, temperature));
  }
}

// The logits that the row chooses by.
std::vector<float> Chosen(const ops::SampleArgs& args, int64_t row) {
  const int64_t vocab_size = args.logits.shape[1];
  const float* const logits = args.logits.as<const float>() + row * vocab_size;
  const auto* const allowed = args.allowed.as<const uint8_t>();
  const ops::RowRule rule = args.rules.empty() ? ops::RowRule() : args.rules[static_cast<size_t>(row)];
  std::vector<float> chosen(logits, logits + vocab_size);
  for (int64_t id = 0; id < vocab_size; ++id) {
    bool may_come = allowed == nullptr || allowed[id] != 0;
    if (rule.mask >= 0) {
      const uint64_t word = args.masks[static_cast<size_t>(rule.mask * args.mask_words() + id / 64)];
      may_come = may_come && (word >> (id % 64) & 1) != 0;
    }
    if (!may_come) chosen[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
  }
  for (const ops::RowChange& change : args.changes) {
    if (change.row != row) continue;
    float& logit = chosen[static_cast<size_t>(change.token)];
    logit = sampling::Adjusted(logit, change.bias, change.count, rule.penalties);
  }
  return chosen;
}

void Score(const ops::SampleArgs& args, int64_t row, int32_t token, int32_t num_top) {
  const int64_t vocab_size = args.logits.shape[1];
  const float* const logits = args.logits.as<const float>() + row * vocab_size;
  const std::vector<Entry> ranked = Ranked({logits, logits + vocab_size});
  sampling::LogSum sum{.highest = ranked[0].logit + 0.0F};  // No -0.
  for (const Entry& entry : ranked) sum.Add(entry.logit);
  const auto half = [](uint64_t value, int i) { return static_cast<uint32_t>(value >> (32 * i)); };
  const ops::ScoresHead head = {.logit = logits[token],
                                .highest = sum.highest,
                                .high = {half(sum.high, 0), half(sum.high, 1)},
                                .low = {half(sum.low, 0), half(sum.low, 1)}};
  int32_t* const out = args.scores.as<int32_t>() + row * args.scores.shape[1];
  std::memcpy(out, &head, sizeof(head));
  for (int32_t i = 0; i < num_top; ++i) {
    ops::TopScore top = ops::kNoTopScore;
    if (static_cast<size_t>(i) < ranked.size())
      top = {ranked[static_cast<size_t>(i)].id, ranked[static_cast<size_t>(i)].logit};
    std::memcpy(out + ops::ScoresWidth(i), &top, sizeof(top));
  }
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
    std::vector<Entry> entries = Ranked(Chosen(args, row));
    if (entries.empty()) continue;  // `fault` is vocab_size.
    fault = ops::kNoFault;
    token = entries[0].id;
    if (choice.temperature > 0.0F) {
      Weigh(choice.temperature, entries);
      Filter(choice, entries);
      token = Draw(choice.uniform, std::move(entries));
    }
    if (args.rules.empty()) continue;
    const int32_t num_top = args.rules[static_cast<size_t>(row)].num_top;
    if (num_top >= 0) Score(args, row, token, num_top);
  }
  return {};
}

}  // namespace dsv4::backend::reference
