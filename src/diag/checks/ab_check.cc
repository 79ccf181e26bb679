// Check `compare --ab each`: the effect on logits of each op's exchange, ranked.
#include "diag/checks/ab_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "diag/checks/compare_check.h"
#include "diag/report/logit_plots.h"
#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

// Effect that the exchange of one op did to the logits.
struct Effect {
  std::string op;
  int64_t num_calls = 0;
  double error = 0;  // ||exchanged - as it is|| / ||as it is||, all positions together.
  double sum_kl = 0;
  double worst_kl = 0;
  double change = 0;  // The largest.
  int64_t num_other_top1 = 0;
  int64_t first_other_top1 = -1;  // Position.
};

Effect MeasureEffect(std::span<const float> as_is, std::span<const float> exchanged, int64_t vocab_size) {
  Effect effect;
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < as_is.size(); ++i) {
    const double delta = static_cast<double>(exchanged[i]) - as_is[i];
    difference += as_is[i] == exchanged[i] ? 0 : delta * delta;
    norm += static_cast<double>(as_is[i]) * as_is[i];
  }
  effect.error = difference == 0 ? 0 : std::sqrt(difference / norm);
  if (std::isnan(effect.error)) effect.error = std::numeric_limits<double>::infinity();
  const auto width = static_cast<size_t>(vocab_size);
  for (size_t row = 0; row < as_is.size() / width; ++row) {
    const auto a = as_is.subspan(row * width, width);
    const auto b = exchanged.subspan(row * width, width);
    const double kl = SoftmaxKl(a, b);
    effect.sum_kl += kl;
    effect.worst_kl = std::max(effect.worst_kl, kl);
    effect.change = std::max(effect.change, LargestChanges(a, b, vocab_size)[0]);
    if (ArgMax(a) == ArgMax(b)) continue;
    if (effect.num_other_top1++ == 0) effect.first_other_top1 = static_cast<int64_t>(row);
  }
  return effect;
}

// Counts the calls of every op of `hooks`.
OpHooks CountCalls(OpHooks hooks, int64_t& num_calls) {
#define DSV4_COUNT_OP(name, Op)                                                                  \
  if (hooks.name) {                                                                              \
    hooks.name = [hook = std::move(hooks.name), &num_calls](const InnerOp<ops::Op##Args>& inner, \
                                                            const ops::Op##Args& args) {         \
      ++num_calls;                                                                               \
      return hook(inner, args);                                                                  \
    };                                                                                           \
  }
  DSV4_FOR_EACH_OP(DSV4_COUNT_OP)
#undef DSV4_COUNT_OP
  return hooks;
}

Table EffectTable(const std::vector<Effect>& effects, int64_t num_tokens, const std::string& variant_name) {
  Table table{
      .title = fmt::format("what changes when one op alone is {}'s", variant_name),
      .columns = {"op", "calls", "logits' error", "mean KL", "worst KL", "largest change", "other top-1"}};
  for (const Effect& effect : effects) {
    table.rows.push_back({effect.op, std::to_string(effect.num_calls), fmt::format("{:.3g}", effect.error),
                          fmt::format("{:.3g}", effect.sum_kl / static_cast<double>(num_tokens)),
                          fmt::format("{:.3g}", effect.worst_kl), fmt::format("{:.3g}", effect.change),
                          std::to_string(effect.num_other_top1)});
  }
  return table;
}

// Ops that change nothing are left to the table.
Plot EffectPlot(const std::vector<Effect>& effects, double bound) {
  Plot plot{.title = "What each op's exchange does to the logits",
            .reading =
                "The op that stands out is where the two implementations differ most. Ops that are not drawn "
                "change no bit.",
            .x_label = "op",
            .y_label = "relative error of the logits",
            .log_y = true,
            .wide = true};
  Series series{.name = "exchanged alone", .style = SeriesStyle::kBars, .color = 0};
  for (const Effect& effect : effects) {
    if (effect.error == 0) continue;
    const auto x = static_cast<double>(series.x.size());
    plot.x_names.push_back({x, effect.op});
    series.Add(x, effect.error, effect.op);
  }
  if (!series.x.empty()) plot.series.push_back(std::move(series));
  plot.bound = bound;
  plot.bound_name = fmt::format("bound {:g}", bound);
  return plot;
}

}  // namespace

const std::vector<std::string>& ExchangeableOps() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
#define DSV4_OP_NAME(name, Op) all.emplace_back(#name);
    DSV4_FOR_EACH_OP(DSV4_OP_NAME)
#undef DSV4_OP_NAME
    std::erase(all, "prepare_weight");
    std::erase(all, "sample");  // Comes behind the logits.
    return all;
  }();
  return names;
}

Result<OpHooks> ExchangeOps(const ops::Backend& backend, const OpVariants& variants) {
  for (const auto& [op, variant] : variants) {
    if (variant->context->memory().device() == backend.context->memory().device()) continue;
    return Error(
        FailedPrecondition(fmt::format("{} of backend {}: its tensors lie on another device than those of {}",
                                       op, variant->name, backend.name)));
  }
  OpHooks hooks;
#define DSV4_EXCHANGE_OP(op, Op)                                                                     \
  if (const auto found = variants.find(#op); found != variants.end()) {                              \
    hooks.op = [variant = found->second](const InnerOp<ops::Op##Args>&, const ops::Op##Args& args) { \
      return variant->table.op(*variant->context, args);                                             \
    };                                                                                               \
  }
  DSV4_FOR_EACH_OP(DSV4_EXCHANGE_OP)
#undef DSV4_EXCHANGE_OP
  return hooks;
}

Result<CheckReport> CheckEachOp(const Subject& subject, std::span<const int32_t> tokens,
                                const ops::Backend& variant, const std::string& variant_name,
                                std::optional<double> bound) {
  const double limit =
      bound.value_or(AccumulatedBound(subject.model.options().numerics == model::Numerics::kRelease));
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  DSV4_ASSIGN_OR_RETURN(const std::vector<float> as_is,
                        RunTokens(subject, tokens, {}, model::LogitsRows::kAll));
  std::vector<Effect> effects;
  std::vector<std::string> unused;
  for (const std::string& op : ExchangeableOps()) {
    DSV4_ASSIGN_OR_RETURN(OpHooks hooks, ExchangeOps(subject.backend.inner(), {{op, &variant}}));
    int64_t num_calls = 0;
    Result<std::vector<float>> logits;
    {
      const HookedBackend::Scope scope(subject.backend, CountCalls(std::move(hooks), num_calls));
      logits = RunTokens(subject, tokens, {}, model::LogitsRows::kAll);
    }
    if (!logits) return Error(logits.error().WithContext(fmt::format("with {}={}", op, variant_name)));
    if (num_calls == 0) {
      unused.push_back(op);
      continue;
    }
    Effect effect = MeasureEffect(as_is, *logits, subject.model.config().vocab_size);
    effect.op = op;
    effect.num_calls = num_calls;
    effects.push_back(std::move(effect));
  }
  std::stable_sort(effects.begin(), effects.end(),
                   [](const Effect& a, const Effect& b) { return a.error > b.error; });

  CheckReport report{.check = "compare"};
  report.evidence = {
      fmt::format("{} on {}; {} exchanged one at a time for those of {} ({})", Counted(num_tokens, "token"),
                  subject.backend.inner().name, Counted(effects.size(), "op"), variant_name, variant.name),
      fmt::format("bound on the relative error of all logits: {:g}", limit)};
  if (!unused.empty())
    report.evidence.push_back(fmt::format("never called by this model: {}", fmt::join(unused, ", ")));
  report.tables.push_back(EffectTable(effects, num_tokens, variant_name));
  if (Plot plot = EffectPlot(effects, limit); !plot.series.empty()) report.plots.push_back(std::move(plot));
  const Effect& most = effects.front();
  if (most.error > limit) {
    report.verdict = Verdict::kFinding;
    report.location = Location{-1, "logits", most.op, std::max<int64_t>(most.first_other_top1, 0)};
    report.headline = fmt::format("{} of {} instead of ours moves the logits most: relative error {:.3g}",
                                  most.op, variant_name, most.error);
    report.next_step =
        fmt::format("--ab {}={} --shared: in which layer is its own error largest?", most.op, variant_name);
  } else {
    report.headline =
        fmt::format("no op moves the logits past the bound; {} most, by {:.3g}", most.op, most.error);
    report.rules_out = {fmt::format("an op that differs from {}'s by more than rounding", variant_name)};
    report.next_step =
        "what both implementations have in common is left: compare with another engine's dump (--with)";
  }
  return report;
}

}  // namespace dsv4::diag
