// Multiple choice: each choice is read behind the prompt, and the most probable one is the model's.

#include <algorithm>

#include "apps/eval/choice_question.h"
#include "apps/eval/eval_tasks.h"
#include "base/utf8.h"

namespace dsv4::apps {
Status EvalChoice(const EvalOptions& options, const std::vector<DataLine>& lines, EvalModel& model,
                  EvalProgress& progress, EvalReport& report) {
  model.OnTokens([&](int64_t count) { progress.AddTokens(count); });
  int64_t right = 0;
  int64_t right_by_length = 0;
  Blocks answer_nll;
  for (const DataLine& line : lines) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const ChoiceQuestion question,
                                 ReadChoiceQuestion(line, model, options.bos == "on"));
    // Tokens that all choices begin with are read once; the last token of it gives the first logits.
    size_t shared = *std::min_element(question.first.begin(), question.first.end()) - 1;
    for (const std::vector<int32_t>& tokens : question.tokens) {
      const auto mismatch =
          std::mismatch(tokens.begin(), tokens.end(), question.tokens[0].begin(), question.tokens[0].end());
      shared = std::min(shared, static_cast<size_t>(mismatch.first - tokens.begin()));
    }
    DSV4_ASSIGN_OR_RETURN_STATUS(kv::SequenceState start, model.NewSequence());
    DSV4_RETURN_IF_ERROR(
        model.Skip(start, std::span(question.tokens[0]).first(shared)).WithContext(line.label));
    Json sums = Json::array();
    Json greedy = Json::array();
    std::vector<double> logprobs;
    std::vector<double> by_length;
    for (size_t i = 0; i < question.tokens.size(); ++i) {
      const std::vector<int32_t>& tokens = question.tokens[i];
      const size_t first = question.first[i];
      DSV4_ASSIGN_OR_RETURN_STATUS(kv::SequenceState state, start.Fork());
      DSV4_RETURN_IF_ERROR(model.Skip(state, std::span(tokens).subspan(shared, first - 1 - shared)));
      Result<model::StepOutput> output =
          model.Read(state, std::span(tokens).subspan(first - 1, tokens.size() - first));
      if (!output) return output.error().WithContext(line.label);
      double sum = 0;
      bool is_greedy = true;
      for (size_t at = first; at < tokens.size(); ++at) {
        const RowScore score = ScoreRow(output->Row(0, static_cast<int64_t>(at - first)), tokens[at]);
        sum += score.logprob;
        is_greedy = is_greedy && score.best == tokens[at];
      }
      logprobs.push_back(sum);
      by_length.push_back(sum /
                          static_cast<double>(std::max<int64_t>(1, NumCodePoints(question.choices[i]))));
      sums.push_back(sum);
      greedy.push_back(is_greedy);
    }
    const auto best = [](const std::vector<double>& values) {
      return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
    };
    right += best(logprobs) == question.answer ? 1 : 0;
    right_by_length += best(by_length) == question.answer ? 1 : 0;
    answer_nll.BeginText();
    answer_nll.Add(-logprobs[question.answer]);
    report.lines.push_back({{"line", report.lines.size()},
                            {"logprobs", std::move(sums)},
                            {"is_greedy", std::move(greedy)},
                            {"chosen", best(logprobs)},
                            {"answer", question.answer}});
    progress.AddLine();
  }
  const auto count = static_cast<int64_t>(lines.size());
  report.counts = {{"questions", count}};
  const Interval accuracy = ShareInterval(right, count);
  report.Add("accuracy", accuracy);
  report.Add("accuracy_by_length", ShareInterval(right_by_length, count));
  report.Add("nll_of_answers", MeanInterval(answer_nll.blocks()));
  if (options.min_accuracy)
    report.Require("accuracy", accuracy.value, *options.min_accuracy, /*at_most=*/false);
  return {};
}

}  // namespace dsv4::apps
