// A line of multiple choice, as tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/eval/eval_data.h"
#include "apps/eval/eval_model.h"
#include "base/status.h"

namespace dsv4::apps {

struct ChoiceQuestion {
  std::vector<std::vector<int32_t>> tokens;  // Ids of the prompt and each choice.
  std::vector<size_t> first;                 // Index at which the choice begins in them.
  std::vector<std::string> choices;
  size_t answer = 0;
};

// Cuts as lm-eval does: white space at the end of the prompt belongs to the choices. A choice's tokens are
// those that prompt and choice together have more than the prompt alone.
Result<ChoiceQuestion> ReadChoiceQuestion(const DataLine& line, const EvalModel& model, bool bos);

}  // namespace dsv4::apps
