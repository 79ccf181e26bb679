// Teacher-forced perplexity, and how far another distribution over the same texts is: of a model, a format, a
// backend, another engine.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/eval/eval_tasks.h"
#include "apps/eval/logprob_lines.h"
#include "base/text.h"
#include "diag/statistics.h"
#include "io/output_file.h"

namespace dsv4::apps {
namespace {

// Measures that compare two distributions, a term a token.
struct Agreement {
  Blocks kl;
  Blocks same_top;
  Blocks nll_change;      // Change of ours over the other's.
  Blocks logprob_change;  // Without a sign.
  Blocks other_nll;
  std::vector<double> kl_values;
  std::vector<double> kl_positions;

  void BeginText() {
    for (Blocks* blocks : {&kl, &same_top, &nll_change, &logprob_change, &other_nll}) blocks->BeginText();
  }
  void AddKl(size_t position, double value) {
    kl.Add(value);
    kl_values.push_back(value);
    kl_positions.push_back(static_cast<double>(position));
  }
  void AddLogprobs(double ours, double others) {
    nll_change.Add(others - ours);
    logprob_change.Add(std::abs(ours - others));
    other_nll.Add(-others);
  }
};

Interval Exp(const Interval& of) { return {std::exp(of.value), std::exp(of.low), std::exp(of.high)}; }

Interval Scaled(const Interval& of, double scale) {
  return {of.value * scale, of.low * scale, of.high * scale};
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

// The mean in ranges of positions, each twice as long as the one before.
diag::Series ByPosition(const std::string& name, const std::vector<double>& positions,
                        const std::vector<double>& values, int color) {
  diag::Series series = {.name = name, .style = diag::SeriesStyle::kLine, .color = color};
  for (double begin = 1; begin <= 1e7; begin *= 2) {
    double sum = 0;
    int64_t count = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (positions[i] < begin || positions[i] >= 2 * begin) continue;
      sum += values[i];
      ++count;
    }
    if (count > 0)
      series.Add(begin, sum / static_cast<double>(count),
                 fmt::format("positions {:.0f} to {:.0f}", begin, 2 * begin - 1));
  }
  return series;
}

std::vector<std::pair<int32_t, double>> Top(std::span<const float> logits, double log_sum, int count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto most = std::min<size_t>(static_cast<size_t>(count), ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(most), ids.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)];
                      const float y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  std::vector<std::pair<int32_t, double>> top;
  for (size_t i = 0; i < most; ++i) top.emplace_back(ids[i], logits[static_cast<size_t>(ids[i])] - log_sum);
  return top;
}

// Pieces of at most `window` scored tokens, each with the token in front of it alone, as lm-eval has it.
std::vector<ScoredText> Cut(ScoredText text, int64_t window) {
  const auto length = static_cast<size_t>(window);
  if (window <= 0 || text.tokens.size() - text.first <= length) return {std::move(text)};
  std::vector<ScoredText> pieces;
  for (size_t begin = text.first; begin < text.tokens.size(); begin += length) {
    const size_t end = std::min(text.tokens.size(), begin + length);
    ScoredText piece;
    const size_t from = pieces.empty() ? 0 : begin - 1;
    piece.tokens.assign(text.tokens.begin() + static_cast<ptrdiff_t>(from),
                        text.tokens.begin() + static_cast<ptrdiff_t>(end));
    piece.first = begin - from;
    if (!text.other.empty()) {
      piece.other.assign(text.other.begin() + static_cast<ptrdiff_t>(from),
                         text.other.begin() + static_cast<ptrdiff_t>(end));
    }
    piece.num_bytes = pieces.empty() ? text.num_bytes : 0;
    piece.num_words = pieces.empty() ? text.num_words : 0;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

class PerplexityTask {
 public:
  PerplexityTask(const EvalOptions& options, EvalModel& model, EvalModel* other)
      : options_(options), model_(model), other_(other) {}

  Status Run(const std::vector<DataLine>& lines, EvalProgress& progress, EvalReport& report) {
    // Two models read the same tokens.
    model_.OnTokens([&](int64_t count) { progress.AddTokens(count); });
    TextReader reader(model_, options_);
    for (const DataLine& line : lines) {
      DSV4_ASSIGN_OR_RETURN_STATUS(ScoredText text, reader.Read(line));
      const double before = nll_.sum();
      const double count_before = nll_.count();
      for (const ScoredText& piece : Cut(std::move(text), options_.window))
        DSV4_RETURN_IF_ERROR(Score(piece).WithContext(line.label));
      report.lines.push_back({{"line", report.lines.size()},
                              {"nll", nll_.sum() - before},
                              {"tokens", nll_.count() - count_before}});
      progress.AddLine();
    }
    Fill(static_cast<int64_t>(lines.size()), report);
    if (options_.write_path.empty()) return {};
    std::string written;
    for (const Json& line : written_) written += line.dump() + "\n";
    return io::WriteTextFile(options_.write_path, written).WithContext("--write-logprobs");
  }

 private:
  Status Score(const ScoredText& text) {
    if (static_cast<int64_t>(text.tokens.size()) > model_.context()) {
      return InvalidArgument(fmt::format("{}, the model reads {}; --window cuts texts",
                                         Counted(text.tokens.size(), "token"), model_.context()));
    }
    nll_.BeginText();
    agreement_.BeginText();
    num_bytes_ += text.num_bytes;
    num_words_ += text.num_words;
    std::vector<OtherToken> found(text.tokens.size());
    std::vector<EvalModel*> models = {&model_};
    if (other_ != nullptr) models.push_back(other_);
    DSV4_RETURN_IF_ERROR(ReadText(models, text.tokens, text.first, [&](size_t position, auto rows) {
      const int32_t token = text.tokens[position];
      const RowScore score = ScoreRow(rows[0], token);
      nll_.Add(-score.logprob);
      greedy_.Add(score.best == token ? 1 : 0);
      nll_values_.push_back(-score.logprob);
      nll_positions_.push_back(static_cast<double>(position));
      if (!options_.write_path.empty())
        found[position] = {.logprob = score.logprob, .top = Top(rows[0], score.log_sum, options_.top)};
      if (other_ != nullptr) {
        const RowScore others = ScoreRow(rows[1], token);
        agreement_.AddKl(position, diag::SoftmaxKl(rows[1], rows[0]));
        agreement_.same_top.Add(others.best == score.best ? 1 : 0);
        agreement_.AddLogprobs(score.logprob, others.logprob);
      } else if (!text.other.empty()) {
        Compare(text.other[position], rows[0], score, position);
      }
    }));
    if (!options_.write_path.empty()) written_.push_back(LogprobLine(text, found));
    return {};
  }

  void Compare(const OtherToken& other, std::span<const float> logits, const RowScore& score,
               size_t position) {
    if (other.logprob) agreement_.AddLogprobs(score.logprob, *other.logprob);
    if (other.top.empty()) return;
    const auto best = std::max_element(other.top.begin(), other.top.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    // If the other's first two are equally probable, either is its first.
    const bool same = std::any_of(other.top.begin(), other.top.end(), [&](const auto& one) {
      return one.first == score.best && one.second >= best->second - 1e-6;
    });
    agreement_.same_top.Add(same ? 1 : 0);
    agreement_.AddKl(position, CandidateKl(other, logits, score.log_sum));
  }

  void Fill(int64_t num_lines, EvalReport& report) {
    const Interval nll = MeanInterval(nll_.blocks());
    report.counts = {
        {"texts", num_lines}, {"tokens", static_cast<int64_t>(nll_.count())}, {"bytes", num_bytes_}};
    report.Add("perplexity", Exp(nll));
    report.Add("nll_per_token", nll, 5);
    const double tokens_per_byte = nll_.count() / static_cast<double>(std::max<int64_t>(1, num_bytes_));
    report.Add("bits_per_byte", Scaled(nll, tokens_per_byte / std::log(2.0)), 5);
    report.Add("byte_perplexity", Exp(Scaled(nll, tokens_per_byte)));
    if (num_words_ > 0)
      report.Add("word_perplexity", Exp(Scaled(nll, nll_.count() / static_cast<double>(num_words_))));
    report.Add("most_probable", MeanInterval(greedy_.blocks()));
    if (options_.max_perplexity)
      report.Require("perplexity", std::exp(nll.value), *options_.max_perplexity, /*at_most=*/true);
    diag::Plot plot = {.title = "Surprise along the texts",
                       .reading = "Nats a token, by its position: it falls as there is more to go by.",
                       .x_label = "position",
                       .y_label = "nats a token"};
    plot.series.push_back(ByPosition("this model", nll_positions_, nll_values_, 0));
    report.plots.push_back(std::move(plot));
    FillAgreement(report);
  }

  void FillAgreement(EvalReport& report) {
    const bool compared = agreement_.other_nll.count() > 0 || agreement_.kl.count() > 0;
    if (!compared && (options_.max_kl || options_.min_top1))
      report.failures.emplace_back(
          "nothing to compare with: no line has log-probabilities, and no --against-... is given");
    if (!compared) return;
    if (agreement_.other_nll.count() > 0) {
      report.Add("other_perplexity", Exp(MeanInterval(agreement_.other_nll.blocks())));
      report.Add("perplexity_ratio", Exp(MeanInterval(agreement_.nll_change.blocks())), 5);
      report.Add("logprob_change", MeanInterval(agreement_.logprob_change.blocks()), 6);
    }
    const Interval kl = MeanInterval(agreement_.kl.blocks());
    const Interval top = MeanInterval(agreement_.same_top.blocks());
    if (agreement_.kl.count() > 0) {
      report.Add("kl", kl, 6);
      report.Add("kl_median", {Quantile(agreement_.kl_values, 0.5), std::nan(""), std::nan("")}, 6);
      report.Add("kl_p99", {Quantile(agreement_.kl_values, 0.99), std::nan(""), std::nan("")}, 6);
      report.Add("kl_max", {Quantile(agreement_.kl_values, 1), std::nan(""), std::nan("")}, 6);
      report.Add("top1_agreement", top, 5);
      report.notes.push_back(
          other_ != nullptr ? "kl is that of this model from the other, over the whole vocabulary, in nats"
                            : "kl is over the candidates that the lines have, and the rest as one: at most "
                              "that of the vocabulary");
      diag::Plot plot = {
          .title = "KL divergence along the texts",
          .reading = "Mean of each range of positions: a rise with the position points at the cache.",
          .x_label = "position",
          .y_label = "nats",
          .log_y = true};
      plot.series.push_back(ByPosition("KL", agreement_.kl_positions, agreement_.kl_values, 1));
      if (options_.max_kl) {
        plot.bound = options_.max_kl;
        plot.bound_name = "--max-kl";
      }
      report.plots.push_back(std::move(plot));
    }
    // Without candidates both are no number, and not kept.
    if (options_.max_kl) report.Require("kl", kl.value, *options_.max_kl, /*at_most=*/true);
    if (options_.min_top1) report.Require("top1_agreement", top.value, *options_.min_top1, /*at_most=*/false);
  }

  const EvalOptions& options_;
  EvalModel& model_;
  EvalModel* other_;
  Blocks nll_;
  Blocks greedy_;
  std::vector<double> nll_values_;
  std::vector<double> nll_positions_;
  int64_t num_bytes_ = 0;
  int64_t num_words_ = 0;
  Agreement agreement_;
  std::vector<Json> written_;
};

}  // namespace

Status EvalPerplexity(const EvalOptions& options, const std::vector<DataLine>& lines, EvalModel& model,
                      EvalModel* other, EvalProgress& progress, EvalReport& report) {
  return PerplexityTask(options, model, other).Run(lines, progress, report);
}

}  // namespace dsv4::apps
