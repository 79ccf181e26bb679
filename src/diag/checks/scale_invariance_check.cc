// Check `scale-invariance`: logits of the last residual and of a hundredth of it.
#include "diag/checks/scale_invariance_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "diag/recording.h"
#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr float kFactor = 0.01F;
constexpr double kMinCosine = 0.9999;

// Result that the head computed for the last position.
struct HeadRun {
  std::vector<float> mixed;  // head.hc
  std::vector<float> logits;
};

Result<HeadRun> RunHead(const Subject& subject, std::span<const int32_t> tokens, OpHooks hooks) {
  const HookedBackend::Scope scope(subject.backend, std::move(hooks));
  Recording recording(subject.context(), [](int, std::string_view name) { return name == "head.hc"; });
  HeadRun run;
  DSV4_ASSIGN_OR_RETURN(run.logits, RunTokens(subject, tokens, {}, model::LogitsRows::kLast, &recording));
  DSV4_TRY(recording.status());
  const RecordedTensor* mixed = recording.Find(-1, "head.hc");
  if (mixed == nullptr) return Error(Internal("scale-invariance: the model computed no head.hc"));
  run.mixed = mixed->values;
  return run;
}

// How long the vector is after an RMSNorm, up to the norm's weight.
double NormGain(std::span<const float> x, double eps) {
  const double rms = Rms(x);
  return rms / std::sqrt(rms * rms + eps);
}

// The highest logits of X beside those of X/100.
Plot HighestLogits(std::span<const float> whole, std::span<const float> scaled) {
  constexpr size_t kShown = 12;
  std::vector<size_t> ids(whole.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  const size_t count = std::min(kShown, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<int64_t>(count), ids.end(),
                    [&](size_t a, size_t b) { return whole[a] > whole[b]; });
  Plot plot{
      .title = "The highest logits of X and of X/100",
      .reading =
          "With a final norm the bars of a pair are equally high. Without one those of X/100 nearly vanish.",
      .x_label = "token id",
      .y_label = "logit"};
  Series first{.name = "X", .style = SeriesStyle::kBars, .color = 0};
  Series second{.name = "X/100", .style = SeriesStyle::kBars, .color = 1};
  for (size_t i = 0; i < count; ++i) {
    first.Add(static_cast<double>(i), whole[ids[i]]);
    second.Add(static_cast<double>(i), scaled[ids[i]]);
    plot.x_names.push_back({static_cast<double>(i), std::to_string(ids[i])});
  }
  plot.series = {std::move(first), std::move(second)};
  return plot;
}

}  // namespace

Result<CheckReport> CheckScaleInvariance(const Subject& subject, std::span<const int32_t> tokens) {
  DSV4_ASSIGN_OR_RETURN(const HeadRun whole, RunHead(subject, tokens, {}));
  OpHooks hooks;
  hooks.hc_head = [&](const InnerOp<ops::HcHeadArgs>& inner, const ops::HcHeadArgs& args) -> Status {
    DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<float> streams, ToHostFloats(subject.context(), args.streams));
    for (float& value : streams) value *= kFactor;
    // The rows were gathered for the head alone; nothing else reads them.
    DSV4_RETURN_IF_ERROR(FromHostFloats(subject.context(), streams, args.streams));
    return inner(args);
  };
  DSV4_ASSIGN_OR_RETURN(const HeadRun scaled, RunHead(subject, tokens, std::move(hooks)));

  const double eps = subject.model.config().rms_norm_eps;
  const double with_norm = NormGain(scaled.mixed, eps) / NormGain(whole.mixed, eps);
  const double without_norm = Rms(scaled.mixed) / Rms(whole.mixed);
  const double ratio = Rms(scaled.logits) / Rms(whole.logits);
  const double cosine = Cosine(whole.logits, scaled.logits);
  const int64_t argmax = ArgMax(whole.logits);
  const int64_t scaled_argmax = ArgMax(scaled.logits);

  CheckReport report{.check = "scale-invariance"};
  report.evidence = {
      fmt::format("X: the residual in front of the final norm at position {}, max-abs {:.4g}, RMS {:.4g}",
                  tokens.size() - 1, MaxAbs(whole.mixed), Rms(whole.mixed)),
      fmt::format("argmax of the logits: {} from X, {} from X/100; margin {:.4g}", argmax, scaled_argmax,
                  Margin(whole.logits)),
      fmt::format("cosine of the logits: {:.7f}", cosine),
      fmt::format(
          "length of the logits, X/100 over X: {:.5f}; with a final norm it would be {:.5f}, without {:.5f}",
          ratio, with_norm, without_norm)};
  if (AllFinite(whole.logits) && AllFinite(scaled.logits))
    report.plots = {HighestLogits(whole.logits, scaled.logits)};
  if (!AllFinite(whole.logits) || !AllFinite(whole.mixed)) {
    report.verdict = Verdict::kFinding;
    report.headline = "the residual or its logits hold NaN or infinity";
    report.next_step = "dsv4 diagnose residual names the first layer that is not finite";
  } else if (with_norm < 0.5) {
    report.verdict = Verdict::kNotApplicable;
    report.headline = "X is so small that the norm's epsilon rules it; the experiment says nothing";
    report.next_step = "dsv4 diagnose checkpoint: look for zero tensors";
  } else if (std::abs(ratio - with_norm) > 0.05 * with_norm) {
    report.verdict = Verdict::kFinding;
    report.headline = "the final norm is not applied: the logits follow the scale of the residual";
    report.location = Location{-1, "head.norm", "rms_norm", static_cast<int64_t>(tokens.size()) - 1};
    report.next_step = "look at the op between head.hc and logits; norm.weight must be loaded and multiplied";
  } else if (cosine <= kMinCosine) {
    report.verdict = Verdict::kFinding;
    report.headline = "the logits turn with the scale of the residual; something behind it is not linear";
    report.location = Location{-1, "head.hc", "hc_head", static_cast<int64_t>(tokens.size()) - 1};
    report.next_step = "compare hc_head, the norm and the head with another backend: dsv4 diagnose compare";
  } else {
    // If two logits lie closer than the rounding of X/100, either may win.
    report.headline = scaled_argmax == argmax
                          ? "the final norm is applied; the logits do not depend on the residual's scale"
                          : "the final norm is applied; the argmax moved within rounding only";
    report.rules_out = {"the size of the residual as a cause of bad logits, whatever it has grown to"};
    report.next_step = "growth is no theory any more; go on with dsv4 diagnose residual and decode-prefill";
  }
  return report;
}

}  // namespace dsv4::diag
