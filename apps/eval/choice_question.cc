// Multiple-choice line as prompt and choice tokens.
#include "apps/eval/choice_question.h"

#include <fmt/format.h>

namespace dsv4::apps {

Result<ChoiceQuestion> ReadChoiceQuestion(const DataLine& line, const EvalModel& model, bool bos) {
  ChoiceQuestion question;
  DSV4_ASSIGN_OR_RETURN(std::string prompt, TextOf(line, "prompt"));
  DSV4_ASSIGN_OR_RETURN(question.choices, TextsOf(line, "choices"));
  const auto answer = line.json.find("answer");
  if (answer == line.json.end() || !answer->is_number_unsigned() || *answer >= question.choices.size())
    return Error(
        BadMember(line, "answer", fmt::format("the number of a choice, 0..{}", question.choices.size() - 1)));
  question.answer = *answer;
  const size_t end = prompt.find_last_not_of(" \t\n\r\f\v") + 1;
  const std::string space = prompt.substr(end);
  prompt.resize(end);
  for (const std::string& choice : question.choices) {
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> context, model.Encode(prompt, bos));
    DSV4_ASSIGN_OR_RETURN(question.tokens.emplace_back(), model.Encode(prompt + space + choice, bos));
    question.first.push_back(context.size());
    if (context.empty() || question.tokens.back().size() <= context.size())
      return Error(InvalidArgument(
          fmt::format("{}: \"{}\" has no token of its own behind the prompt", line.label, choice)));
  }
  return question;
}

}  // namespace dsv4::apps
