// Check `draft`: agreement of a drafter's guesses with the model's greedy text, by position in the draft, and
// its confidence.
#include "diag/checks/draft_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr double kMinFirst = 1.0 / 3;  // Published blocks are right 70 to 92 % of the time.

// By place: drafts whose tokens before were all right, and those that were right there too.
struct Agreement {
  std::vector<int64_t> asked;
  std::vector<int64_t> right;

  explicit Agreement(int64_t places) : asked(static_cast<size_t>(places)), right(asked.size()) {}
  void Saw(std::span<const int32_t> draft, std::span<const int32_t> text) {
    for (size_t i = 0; i < std::min(draft.size(), text.size()); ++i) {
      ++asked[i];
      if (draft[i] != text[i]) return;
      ++right[i];
    }
  }
  double Of(size_t place) const {
    return asked[place] == 0 ? 0.0 : static_cast<double>(right[place]) / static_cast<double>(asked[place]);
  }
};

// Figures of a DSpark drafter's confidence head, and what comes true of it.
struct Confidence {
  double said = 0.0;
  int64_t right = 0;
  int64_t asked = 0;

  // Counts of the drafts in front of which all were right.
  void Saw(std::span<const int32_t> draft, std::span<const int32_t> text, std::span<const float> chances) {
    for (size_t i = 0; i < std::min(draft.size(), text.size()); ++i) {
      ++asked;
      said += chances[i];
      if (draft[i] != text[i]) return;
      ++right;
    }
  }
};

Result<int32_t> Read(model::Model& model, kv::SequenceState& state, std::span<const int32_t> tokens) {
  const model::SequenceChunk chunk = {.state = &state, .tokens = tokens};
  DSV4_ASSIGN_OR_RETURN(const model::StepOutput output, model.Step(std::span(&chunk, 1)));
  return static_cast<int32_t>(ArgMax(output.Row(0, 0)));
}

// `confidence`: of DSpark, as many chances; or null.
Result<std::vector<int32_t>> DraftBehind(model::Model& model, kv::SequenceState& state, int32_t token,
                                         int64_t count, float* confidence) {
  const model::DraftChunk chunk{
      .state = &state,
      .token = token,
      .choices = std::vector<sampling::ChoiceParams>(static_cast<size_t>(count), {.temperature = 0}),
      .confidence = confidence};
  DSV4_ASSIGN_OR_RETURN(const auto drafts, model.Draft(std::span(&chunk, 1), {}));
  return drafts[0];
}

}  // namespace

Result<CheckReport> CheckDraft(const Subject& subject, std::span<const int32_t> prompt,
                               const DraftCheckOptions& options) {
  CheckReport report{.check = "draft"};
  model::Model& model = subject.model;
  if (!model.can_draft()) return NotApplicable(std::move(report), "no drafter: " + model.why_no_draft());
  DSV4_ASSIGN_OR_RETURN(kv::SequenceState state, model.NewSequence());
  std::vector<int32_t> text(prompt.begin(), prompt.end());
  DSV4_ASSIGN_OR_RETURN(int32_t next, Read(model, state, prompt));
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    text.push_back(next);
    DSV4_ASSIGN_OR_RETURN(next, Read(model, state, std::span(&text.back(), 1)));
  }

  // The same text once more. At length n the last position's streams are known, and token n is.
  state.Reset();
  const bool dspark = model.has_dspark();
  const int64_t num_drafts = dspark ? model.most_drafts() : options.num_drafts;
  Agreement agreement(num_drafts);
  Agreement with_own_token(1);
  Confidence confidence;
  std::vector<float> chances(static_cast<size_t>(num_drafts));
  DSV4_ASSIGN_OR_RETURN(next, Read(model, state, prompt));
  for (size_t n = prompt.size(); n + 1 < text.size(); ++n) {
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> drafted,
                          DraftBehind(model, state, text[n], num_drafts, dspark ? chances.data() : nullptr));
    agreement.Saw(drafted, std::span(text).subspan(n + 1));
    if (dspark) {
      confidence.Saw(drafted, std::span(text).subspan(n + 1), chances);
    } else {
      // The other pairing that engines have tried: the streams of a position with its own token, which
      // foretell the next.
      DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> other,
                            DraftBehind(model, state, text[n - 1], 1, nullptr));
      with_own_token.Saw(other, std::span(text).subspan(n));
    }
    DSV4_ASSIGN_OR_RETURN(next, Read(model, state, std::span(text).subspan(n, 1)));
  }

  Table table{.title = "drafts that are what the model says",
              .columns = {"place", "asked", "right", "share"}};
  for (size_t place = 0; place < agreement.asked.size(); ++place) {
    table.rows.push_back({fmt::format("{}", place + 1), fmt::format("{}", agreement.asked[place]),
                          fmt::format("{}", agreement.right[place]),
                          fmt::format("{:.3f}", agreement.Of(place))});
  }
  report.tables.push_back(std::move(table));
  const std::string name = dspark ? "the DSpark drafter" : "the draft block";
  report.evidence = {fmt::format("{} of {} the model's next token", agreement.right[0],
                                 Counted(agreement.asked[0], "first draft is", "first drafts are"))};
  if (dspark) {
    const auto asked = static_cast<double>(std::max<int64_t>(1, confidence.asked));
    report.evidence.push_back(
        fmt::format("its confidence head says {:.0f} % on average, and {:.0f} % are right",
                    100 * confidence.said / asked, 100 * static_cast<double>(confidence.right) / asked));
  } else {
    report.evidence.push_back(fmt::format("with the token of its own place in front: {} of {}",
                                          with_own_token.right[0], with_own_token.asked[0]));
  }
  if (with_own_token.Of(0) > agreement.Of(0)) {
    report.verdict = Verdict::kFinding;
    report.headline = fmt::format(
        "the draft block foresees {:.0f} % with the token of its own place and {:.0f} % with the next one: "
        "it was "
        "made for another pairing",
        100 * with_own_token.Of(0), 100 * agreement.Of(0));
  } else if (agreement.Of(0) < kMinFirst) {
    report.verdict = Verdict::kFinding;
    report.headline = fmt::format("{} foresees {:.0f} % of the model's tokens, wanted {:.0f} % or more", name,
                                  100 * agreement.Of(0), 100 * kMinFirst);
  }
  if (report.verdict == Verdict::kFinding) {
    report.next_step =
        "answers are right all the same, with --speculation off as with it; compare mtp.* of the file with "
        "the "
        "published one (dsv4 diagnose files)";
    return report;
  }
  report.headline = fmt::format("{} foresees {:.0f} % of the model's tokens", name, 100 * agreement.Of(0));
  report.rules_out = {"draft tensors that are lost, exchanged or joined with the wrong token"};
  return report;
}

}  // namespace dsv4::diag
