// Check `residual`: magnitudes of residual streams by layer, prefill beside decode.
#include "diag/checks/residual_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "diag/recording.h"
#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr int64_t kMaxPositions = 16;
constexpr double kMaxRmsChange = 0.02;

bool IsResidual(int, std::string_view name) {
  return name == "embed" || name == "attn.streams" || name == "ffn.streams";
}

// One stream at rows [begin, end) of [n, H, D].
std::vector<float> StreamValues(const RecordedTensor& tensor, int64_t begin, int64_t end, int64_t stream) {
  const int64_t dim = tensor.row_dims[1];
  std::vector<float> values;
  for (int64_t row = begin; row < end; ++row) {
    const std::span<const float> all = tensor.Row(row);
    const auto first = all.begin() + stream * dim;
    values.insert(values.end(), first, first + dim);
  }
  return values;
}

struct Sizes {
  double max_abs = 0;
  double rms = 0;
  bool finite = true;
};

Sizes Measure(std::span<const float> values) { return {MaxAbs(values), Rms(values), AllFinite(values)}; }

// Prefill's line and decode's dashed one of every stream; x is the number of layers passed.
class GrowthPlot {
 public:
  GrowthPlot(std::string title, std::string y_label) {
    plot_ = {.title = std::move(title),
             .reading =
                 "Solid by prefill, dashed by decode: one hides the other where they agree. Growth alone is "
                 "no fault.",
             .x_label = "layers passed (half: behind attention)",
             .y_label = std::move(y_label),
             .log_y = true};
  }

  void Add(const RecordedTensor& tensor, int64_t stream, double prefill, double decode) {
    const auto first = static_cast<size_t>(2 * stream);
    while (plot_.series.size() < first + 2) {
      const size_t next = plot_.series.size();
      plot_.series.push_back(
          {.name = fmt::format("stream {}, {}", next / 2, next % 2 == 0 ? "prefill" : "decode"),
           .style = next % 2 == 0 ? SeriesStyle::kLine : SeriesStyle::kDashedLine,
           .color = static_cast<int>(next / 2 % 8)});
    }
    const double x = tensor.layer + (tensor.name == "attn.streams" ? 0.5 : 1.0);
    plot_.series[first].Add(x, prefill);
    plot_.series[first + 1].Add(x, decode);
  }

  Plot Take() { return std::move(plot_); }

 private:
  Plot plot_;
};

// The first complaint about one stream; empty when there is none.
std::string Complaint(const Sizes& prefill, const Sizes& decode) {
  if (!prefill.finite) return "prefill gives NaN or infinity";
  if (!decode.finite) return "decode gives NaN or infinity";
  if (prefill.max_abs == 0) return "the stream is all zero";
  if (std::abs(decode.rms / prefill.rms - 1) > kMaxRmsChange) {
    return fmt::format("RMS {:.4g} by prefill, {:.4g} by decode", prefill.rms, decode.rms);
  }
  return {};
}

}  // namespace

Result<CheckReport> CheckResidual(const Subject& subject, std::span<const int32_t> tokens) {
  CheckReport report{.check = "residual"};
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  if (num_tokens < 2)
    return NotApplicable(std::move(report), "one token has no decode to compare with prefill");
  const int64_t count = std::min(kMaxPositions, num_tokens - 1);
  DSV4_ASSIGN_OR_RETURN(const Recording prefill,
                        Record(subject, tokens, {}, model::LogitsRows::kNone, IsResidual));
  const std::vector<int64_t> pieces = {num_tokens - count, 1};
  DSV4_ASSIGN_OR_RETURN(const Recording decode,
                        Record(subject, tokens, pieces, model::LogitsRows::kNone, IsResidual));

  Table table{
      .title = fmt::format("max-abs and RMS over positions {}..{}", num_tokens - count, num_tokens - 1),
      .columns = {"layer", "tensor", "stream", "prefill max", "decode max", "prefill RMS", "decode RMS"}};
  GrowthPlot rms_plot("RMS of the residual streams", "RMS");
  GrowthPlot max_plot("Largest value of the residual streams", "max-abs");
  double first_rms = 0;
  double last_rms = 0;
  for (const RecordedTensor& tensor : prefill.tensors()) {
    const RecordedTensor* other = decode.Find(tensor.layer, tensor.name);
    if (other == nullptr || other->num_rows != tensor.num_rows) {
      return Error(Internal(fmt::format("residual: layer {}, {}: decode computed other rows than prefill",
                                        tensor.layer, tensor.name)));
    }
    for (int64_t stream = 0; stream < tensor.row_dims[0]; ++stream) {
      const Sizes a = Measure(StreamValues(tensor, num_tokens - count, num_tokens, stream));
      const Sizes b = Measure(StreamValues(*other, num_tokens - count, num_tokens, stream));
      table.rows.push_back({std::to_string(tensor.layer), tensor.name, std::to_string(stream),
                            fmt::format("{:.4g}", a.max_abs), fmt::format("{:.4g}", b.max_abs),
                            fmt::format("{:.4g}", a.rms), fmt::format("{:.4g}", b.rms)});
      rms_plot.Add(tensor, stream, a.rms, b.rms);
      max_plot.Add(tensor, stream, a.max_abs, b.max_abs);
      if (tensor.name == "embed") first_rms = std::max(first_rms, a.rms);
      last_rms = tensor.layer + 1 == subject.model.num_layers() ? std::max(last_rms, a.rms) : last_rms;
      const std::string complaint = Complaint(a, b);
      if (complaint.empty() || report.verdict == Verdict::kFinding) continue;
      report.verdict = Verdict::kFinding;
      report.headline =
          fmt::format("layer {}, {}, stream {}: {}", tensor.layer, tensor.name, stream, complaint);
      // A stream shows its whole layer, so no op is named.
      report.location = Location{tensor.layer, tensor.name, "", num_tokens - count};
      report.ends_run = !a.finite || !b.finite;
    }
  }
  report.tables.push_back(std::move(table));
  report.plots = {rms_plot.Take(), max_plot.Take()};
  report.evidence = {
      fmt::format("RMS grows from {:.4g} (embedding) to {:.4g} (last layer), by {:.3g}", first_rms, last_rms,
                  last_rms / first_rms),
      "growth alone is no fault: the final norm makes the logits blind to it (scale-invariance)"};
  if (report.verdict == Verdict::kFinding) {
    report.next_step = "dsv4 diagnose decode-prefill names the first op of the layer that differs";
  } else {
    report.headline =
        "every stream is finite, none is dead, decode and prefill have the same size in every layer";
    report.rules_out = {"overflow, dead streams, and decode states that lose or gain magnitude"};
    report.next_step = "dsv4 diagnose visible, then decode-prefill for differences that keep the size";
  }
  return report;
}

}  // namespace dsv4::diag
