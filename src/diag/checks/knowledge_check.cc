// Check `knowledge`: capitals foreseen or not, and the half-layer without which answers come back.
#include "diag/checks/knowledge_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "diag/recording.h"
#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr double kMaxWrong = 1.0 / 16;   // Share of the answers.
constexpr double kMinProbability = 0.8;  // Geometric mean over the answers' tokens.
constexpr double kMaxFormNats =
    1.2;  // Mean over the words in common. A model of 21 million weights takes half of it.
constexpr double kMinShare =
    0.3;  // Share of the answers' nats that they lose without the half-layer that is named.
constexpr double kStandsOut = 2;  // And by how much it must lose more of them than any other half-layer.

struct Score {
  bool finite = true;
  double answer_nats = 0;  // Mean over the tokens of the answers but the first.
  double form_nats = 0;    // Mean over the words in common.
};

Score Measure(const KnownText& text, std::span<const float> logits) {
  Score score{.finite = AllFinite(logits)};
  if (!score.finite) return score;
  const size_t vocab = logits.size() / text.tokens.size();
  const auto nats = [&](int64_t token) {
    return -LogProbability(logits.subspan(static_cast<size_t>(token - 1) * vocab, vocab),
                           text.tokens[static_cast<size_t>(token)]);
  };
  int64_t num_tokens = 0;
  for (size_t a = 1; a < text.answers.size(); ++a) {
    const KnownText::Answer& answer = text.answers[a];
    for (int64_t i = answer.first; i < answer.first + answer.count; ++i, ++num_tokens)
      score.answer_nats += nats(i);
  }
  score.answer_nats /= static_cast<double>(num_tokens);
  for (const int64_t i : text.form) score.form_nats += nats(i) / static_cast<double>(text.form.size());
  return score;
}

// The half-layers in the order of the graph: attention and experts of layer 0, of layer 1, ...
std::string HalfName(int64_t half) { return half % 2 == 0 ? "attn.out" : "ffn.out"; }

// One pass with the output of `half` zero; -1: with all of them as they are.
Result<Score> Read(const Subject& subject, const KnownText& text, int64_t half) {
  OpHooks hooks;
  int64_t num_seen = 0;
  if (half >= 0) {
    hooks.hc_post = [&](const InnerOp<ops::HcPostArgs>& inner, const ops::HcPostArgs& args) -> Status {
      if (num_seen++ == half) {
        const std::vector<float> zeros(static_cast<size_t>(args.y.num_elements()));
        DSV4_RETURN_IF_ERROR(FromHostFloats(subject.context(), zeros, args.y));
      }
      return inner(args);
    };
  }
  const HookedBackend::Scope scope(subject.backend, std::move(hooks));
  DSV4_ASSIGN_OR_RETURN(const std::vector<float> logits,
                        RunTokens(subject, text.tokens, {}, model::LogitsRows::kAll));
  return Measure(text, logits);
}

// Scores of the answers without each half-layer.
Plot HalvesPlot(const std::vector<double>& without, double whole) {
  Plot plot{.title = "What the answers take without each half-layer",
            .reading = "Far below the line: without this half the answers come back, so look there first.",
            .x_label = "layer",
            .y_label = "nats a token"};
  plot.series = {{.name = "attention", .color = 0}, {.name = "experts", .color = 1}};
  for (size_t half = 0; half < without.size(); ++half) {
    const size_t layer = half / 2;
    plot.series[half % 2].Add(static_cast<double>(layer), without[half]);
  }
  plot.bound = whole;
  plot.bound_name = "with all halves";
  return plot;
}

}  // namespace

Result<CheckReport> CheckKnowledge(const Subject& subject, const KnownText& text, bool leave_out) {
  CheckReport report{.check = "knowledge"};
  if (subject.model.num_layers() < subject.model.config().num_hidden_layers)
    return NotApplicable(std::move(report), "layers are left out, so the model knows nothing");
  if (static_cast<int64_t>(text.tokens.size()) > subject.model.options().max_chunk_tokens) {
    return NotApplicable(std::move(report), fmt::format("the text has {}, one pass of the model holds {}",
                                                        Counted(text.tokens.size(), "token"),
                                                        subject.model.options().max_chunk_tokens));
  }

  DSV4_ASSIGN_OR_RETURN(const std::vector<float> logits,
                        RunTokens(subject, text.tokens, {}, model::LogitsRows::kAll));
  const size_t vocab = logits.size() / text.tokens.size();
  const Score whole = Measure(text, logits);
  const auto finding = [&](std::string headline) {
    report.headline =
        report.verdict == Verdict::kFinding ? report.headline + "; " + headline : std::move(headline);
    report.verdict = Verdict::kFinding;
    report.next_step =
        "right weights of a trained model know this: check the files (size, digest, converter), then dsv4 "
        "diagnose "
        "checkpoint and compare";
  };
  if (!whole.finite) {
    finding("the logits hold NaN or infinity");
    report.next_step = "dsv4 diagnose residual names the first layer that is not finite";
    return report;
  }

  Table answers{.title = "answers", .columns = {"asked", "expected", "likeliest", "probability"}};
  int64_t num_wrong = 0;
  std::string first_wrong;
  for (size_t a = 1; a < text.answers.size(); ++a) {
    const KnownText::Answer& answer = text.answers[a];
    bool right = true;
    double nats = 0;
    for (int64_t i = answer.first; i < answer.first + answer.count; ++i) {
      const std::span<const float> row = std::span(logits).subspan(static_cast<size_t>(i - 1) * vocab, vocab);
      const int32_t token = text.tokens[static_cast<size_t>(i)];
      nats -= LogProbability(row, token);
      right = right && ArgMax(row) == token;
    }
    const auto first_row = std::span(logits).subspan(static_cast<size_t>(answer.first - 1) * vocab, vocab);
    const std::string likeliest = text.show(static_cast<int32_t>(ArgMax(first_row)));
    answers.rows.push_back(
        {answer.subject, answer.expected, likeliest, fmt::format("{:.4f}", std::exp(-nats))});
    if (!right && num_wrong++ == 0)
      first_wrong = fmt::format("{} for {}, wanted {}", likeliest, answer.subject, answer.expected);
  }
  const auto num_answers = static_cast<int64_t>(text.answers.size()) - 1;
  const double probability = std::exp(-whole.answer_nats);
  report.evidence = {
      fmt::format("{} of {} the likeliest continuation, mean probability {:.3f}", num_answers - num_wrong,
                  Counted(num_answers, "answer is", "answers are"), probability),
      fmt::format("the words that all sentences have in common take {:.3f} nats each", whole.form_nats)};
  report.tables.push_back(std::move(answers));
  if (static_cast<double>(num_wrong) > kMaxWrong * static_cast<double>(num_answers)) {
    finding(fmt::format("{} of {} that every model knows are wrong: {}", num_wrong,
                        Counted(num_answers, "fact"), first_wrong));
  } else if (probability < kMinProbability) {
    finding(fmt::format("facts that every model knows have a probability of {:.3f}, wanted {} or more",
                        probability, kMinProbability));
  }

  if (whole.form_nats > kMaxFormNats) {
    finding(fmt::format("the same words again and again take {:.3g} nats each, wanted {} at most",
                        whole.form_nats, kMaxFormNats));
  }
  if (report.verdict == Verdict::kPass) {
    report.headline = "the model knows what every model knows";
    report.rules_out = {"weights that are lost, exchanged or read wrongly to the point that answers break"};
    report.next_step = "dsv4 diagnose checkpoint looks for damage too small to break answers";
    return report;
  }
  if (!leave_out) {
    report.evidence.emplace_back(
        "half-layers were not left out one by one: dsv4 diagnose knowledge does that");
    return report;
  }

  std::vector<double> without;
  for (int64_t half = 0; half < 2 * subject.model.num_layers(); ++half) {
    DSV4_ASSIGN_OR_RETURN(const Score score, Read(subject, text, half));
    without.push_back(score.finite ? score.answer_nats : whole.answer_nats);
  }
  Table table{.title = fmt::format("nats of an answer's token without a half-layer; {:.3f} with all",
                                   whole.answer_nats),
              .columns = {"layer", "attention", "experts"}};
  for (size_t i = 0; i + 1 < without.size(); i += 2) {
    table.rows.push_back(
        {std::to_string(i / 2), fmt::format("{:.3f}", without[i]), fmt::format("{:.3f}", without[i + 1])});
  }
  report.tables.push_back(std::move(table));
  report.plots.push_back(HalvesPlot(without, whole.answer_nats));
  const int64_t best = std::min_element(without.begin(), without.end()) - without.begin();
  const double left = without[static_cast<size_t>(best)];
  double second = whole.answer_nats;
  for (size_t half = 0; half < without.size(); ++half) {
    if (static_cast<int64_t>(half) != best) second = std::min(second, without[half]);
  }
  const double gain = whole.answer_nats - left;
  if (gain > kMinShare * whole.answer_nats) {
    const auto layer = static_cast<int>(best / 2);
    const std::string helps =
        fmt::format("layer {}, {}: leaving it out helps most, {:.3g} nats in place of {:.3g}", layer,
                    HalfName(best), left, whole.answer_nats);
    if (gain > kStandsOut * (whole.answer_nats - second)) {
      report.location = Location{layer, HalfName(best), "", 0};
      finding(helps);
    } else {
      // A fault elsewhere can be hidden by leaving out one of several halves.
      report.evidence.push_back(fmt::format(
          "{}; another half helps nearly as much, {:.3g}, so this says little of the place", helps, second));
    }
  }
  return report;
}

}  // namespace dsv4::diag
