// Check `indexer`: attention on the entries that were chosen, beside chance and the best choice.
#include "diag/checks/indexer_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "diag/recording.h"
#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr int64_t kTimesTopK = 3;     // Visible entries at the end of the text.
constexpr int64_t kMostQueries = 48;  // A layer.
constexpr int64_t kMostHeads = 16;
constexpr double kLeastSkill = 1.0 / 3;  // Healthy small models have 0.6 and more.
// A model none of whose choices has so much was perhaps not trained.
constexpr double kTrainedSkill = 0.5;
// It was where a token of the text costs less than this share of the nats that it costs by chance.
constexpr double kTrainedNats = 0.75;
constexpr int64_t kJudgedTokens = 64;
// Share of the softmax by which the best choice beats chance, where attention looks anywhere.
constexpr double kLeastLead = 0.02;

// Shares of the softmax over visible entries, summed up over queries and heads.
struct Shares {
  double chosen = 0;
  double chance = 0;
  double best = 0;
  int64_t count = 0;

  bool says_something() const { return best - chance > kLeastLead * static_cast<double>(count); }
  double skill() const { return (chosen - chance) / (best - chance); }
};

// Whether the model expects the text, whose facts a trained one knows. A window is enough for that.
Result<bool> ExpectsText(const Subject& subject, std::span<const int32_t> tokens) {
  const int64_t most = std::min(kJudgedTokens, subject.model.options().max_chunk_tokens);
  const auto some = tokens.first(std::min(tokens.size(), static_cast<size_t>(most)));
  DSV4_ASSIGN_OR_RETURN(const std::vector<float> logits,
                        RunTokens(subject, some, {}, model::LogitsRows::kAll));
  const size_t vocab = logits.size() / some.size();
  double nats = 0;
  for (size_t i = 1; i < some.size(); ++i)
    nats -= LogProbability(std::span(logits).subspan((i - 1) * vocab, vocab), some[i]);
  return nats < kTrainedNats * std::log(static_cast<double>(vocab)) * static_cast<double>(some.size() - 1);
}

class Watcher {
 public:
  Watcher(const Subject& subject, int64_t num_tokens) : subject_(subject), num_tokens_(num_tokens) {
    shares_.resize(static_cast<size_t>(subject.model.num_layers()));
  }

  OpHooks Hooks() {
    OpHooks hooks;
    hooks.attention = [this](const auto& inner, const ops::AttentionArgs& args) -> Status {
      DSV4_RETURN_IF_ERROR(inner(args));
      // Every layer of a pass calls attention once.
      const model::LayerPlan& plan =
          subject_.model.layers()[static_cast<size_t>(num_calls_++ % static_cast<int64_t>(shares_.size()))];
      return plan.reads_selection() && !args.selected.is_null() ? Watch(plan, args) : Status();
    };
    return hooks;
  }

  // By layer.
  const std::vector<Shares>& shares() const { return shares_; }

 private:
  Status Watch(const model::LayerPlan& plan, const ops::AttentionArgs& args) {
    const ops::AttentionSequence& sequence = args.sequences[0];
    const int64_t top_k = args.selected.shape[1];
    // The first query that leaves a third of what it sees.
    const int64_t first = (3 * top_k + 1) / 2 * args.ratio - 1;
    const int64_t stride = std::max<int64_t>(1, (num_tokens_ - first) / kMostQueries);
    const int64_t end = sequence.first_position + sequence.num_tokens;
    if (end <= first) return {};
    ops::OpContext& context = subject_.context();
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<float> q, ToHostFloats(context, args.q));
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<float> selected, ToHostFloats(context, args.selected));
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<float> entries,
                                 ReadPagedRows(context, sequence.entries, end / args.ratio, args.q.device));
    const int64_t heads = args.q.shape[1];
    const int64_t width = args.q.shape[2];
    Shares& shares = shares_[static_cast<size_t>(plan.number)];
    for (int64_t t = 0; t < sequence.num_tokens; ++t) {
      const int64_t position = sequence.first_position + t;
      if (position < first || (position - first) % stride != 0) continue;
      const std::span<const float> row(selected.data() + t * top_k, static_cast<size_t>(top_k));
      for (int64_t head = 0; head < heads; head += std::max<int64_t>(1, heads / kMostHeads)) {
        const std::span<const float> query(q.data() + (t * heads + head) * width, static_cast<size_t>(width));
        Add(query, entries, (position + 1) / args.ratio, row, args.softmax_scale, shares);
      }
    }
    return {};
  }

  static void Add(std::span<const float> query, std::span<const float> entries, int64_t visible,
                  std::span<const float> selected, double scale, Shares& shares) {
    std::vector<double> weights(static_cast<size_t>(visible));
    const auto width = static_cast<int64_t>(query.size());
    for (int64_t j = 0; j < visible; ++j) {
      const float* const entry = entries.data() + j * width;
      weights[static_cast<size_t>(j)] =
          scale * static_cast<double>(std::inner_product(query.begin(), query.end(), entry, 0.0F));
    }
    const double highest = *std::ranges::max_element(weights);
    for (double& weight : weights) weight = std::exp(weight - highest);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    if (!std::isfinite(sum)) return;  // Other checks say so.
    double chosen = 0;
    for (const float entry : selected) {
      if (entry >= 0 && entry < static_cast<float>(visible)) chosen += weights[static_cast<size_t>(entry)];
    }
    std::ranges::nth_element(weights, weights.begin() + std::ssize(selected), std::greater<>());
    const double best = std::accumulate(weights.begin(), weights.begin() + std::ssize(selected), 0.0);
    shares.chosen += chosen / sum;
    shares.chance += static_cast<double>(selected.size()) / static_cast<double>(visible);
    shares.best += best / sum;
    ++shares.count;
  }

  const Subject& subject_;
  int64_t num_tokens_ = 0;
  int64_t num_calls_ = 0;
  std::vector<Shares> shares_;
};

}  // namespace

int64_t IndexerTextTokens(const model::Model& model) {
  int64_t ratio = 0;
  for (const model::LayerPlan& plan : model.layers()) {
    if (plan.reads_selection()) ratio = std::max(ratio, plan.ratio);
  }
  return kTimesTopK * ratio * model.config().index_topk;
}

Result<CheckReport> CheckIndexer(const Subject& subject, std::span<const int32_t> tokens) {
  CheckReport report{.check = "indexer"};
  if (IndexerTextTokens(subject.model) == 0)
    return NotApplicable(std::move(report), "no layer chooses among its entries");
  Watcher watcher(subject, std::ssize(tokens));
  {
    const HookedBackend::Scope scope(subject.backend, watcher.Hooks());
    const Result<std::vector<float>> run = RunTokens(subject, tokens, {}, model::LogitsRows::kNone);
    if (!run) return Error(run.error());
  }
  Table table{.title = "attention on entries: shares of all that are visible",
              .columns = {"layer", "choice of", "chosen", "chance", "best", "skill"}};
  std::vector<Shares> by_choice(watcher.shares().size());
  for (const model::LayerPlan& plan : subject.model.layers()) {
    const Shares& shares = watcher.shares()[static_cast<size_t>(plan.number)];
    if (!plan.reads_selection() || shares.count == 0) continue;
    Shares& choice = by_choice[static_cast<size_t>(plan.selection)];
    choice.chosen += shares.chosen;
    choice.chance += shares.chance;
    choice.best += shares.best;
    choice.count += shares.count;
    const auto count = static_cast<double>(shares.count);
    table.rows.push_back({std::to_string(plan.number), std::to_string(plan.selection),
                          fmt::format("{:.3f}", shares.chosen / count),
                          fmt::format("{:.3f}", shares.chance / count),
                          fmt::format("{:.3f}", shares.best / count),
                          shares.says_something() ? fmt::format("{:.2f}", shares.skill()) : "-"});
  }
  if (table.rows.empty()) {
    return NotApplicable(std::move(report),
                         fmt::format("{}: every layer takes most of the entries that it sees",
                                     Counted(tokens.size(), "token")));
  }
  report.tables.push_back(std::move(table));
  std::vector<std::string> complaints;
  std::optional<Location> place;
  double lowest = 1;
  double highest = -1;
  bool any = false;
  for (size_t layer = 0; layer < by_choice.size(); ++layer) {
    const Shares& shares = by_choice[layer];
    if (!shares.says_something()) continue;
    any = true;
    lowest = std::min(lowest, shares.skill());
    highest = std::max(highest, shares.skill());
    if (shares.skill() >= kLeastSkill) continue;
    if (complaints.empty()) place = Location{static_cast<int>(layer), "attn.indexer.selected", "", 0};
    const auto count = static_cast<double>(shares.count);
    complaints.push_back(fmt::format(
        "layer {}: its indexer's choice holds {:.0f} % of what attention gives to entries, as many at random "
        "{:.0f} %, the best {:.0f} %: are its keys, queries or weights transposed, negated or of another "
        "layer?",
        layer, 100 * shares.chosen / count, 100 * shares.chance / count, 100 * shares.best / count));
  }
  if (!any)
    return NotApplicable(std::move(report),
                         "attention looks at all entries alike, so no choice is better than another");
  if (highest < kTrainedSkill) {
    DSV4_ASSIGN_OR_RETURN(const bool trained, ExpectsText(subject, tokens));
    if (!trained) {
      return NotApplicable(std::move(report),
                           fmt::format("no indexer chooses what attention looks at (skill {:.2f} at most), "
                                       "and the model does not expect "
                                       "the text: it was not trained, or is broken elsewhere",
                                       highest));
    }
  }
  report.evidence.push_back(
      fmt::format("{} of a text of facts; skill is 0 for a choice by chance, 1 for the best, and {:.2f} at "
                  "least is wanted",
                  Counted(tokens.size(), "token"), kLeastSkill));
  if (complaints.empty()) {
    report.headline =
        fmt::format("every indexer chooses what attention looks at, of a skill of {:.2f} and more", lowest);
    report.rules_out = {"index keys, queries and head weights transposed, negated or exchanged"};
    report.next_step = "a choice read wrongly by attention is another question: dsv4 diagnose visible";
    return report;
  }
  report.verdict = Verdict::kFinding;
  report.location = place;
  report.headline = complaints.size() == 1
                        ? complaints[0]
                        : fmt::format("{}; and {} more", complaints[0], complaints.size() - 1);
  report.evidence.insert(report.evidence.end(), complaints.begin(), complaints.end());
  report.next_step =
      "compare attn.indexer.* of that layer with the source file, then dsv4 diagnose visible for the op";
  return report;
}

}  // namespace dsv4::diag
