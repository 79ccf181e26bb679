// The tasks of `dsv4 eval`. Each reads its lines, asks the model and fills in a report.
#pragma once

#include "apps/eval/eval_command.h"
#include "apps/eval/eval_data.h"
#include "apps/eval/eval_model.h"
#include "apps/eval/eval_progress.h"
#include "apps/eval/eval_report.h"
#include "apps/shared/chat_runtime.h"

namespace dsv4::apps {

// `other` is the model that the first is compared with; may be null.
Status EvalPerplexity(const EvalOptions& options, const std::vector<DataLine>& lines, EvalModel& model,
                      EvalModel* other, EvalProgress& progress, EvalReport& report);
Status EvalChoice(const EvalOptions& options, const std::vector<DataLine>& lines, EvalModel& model,
                  EvalProgress& progress, EvalReport& report);
// "generation", "tools" and "needle": the model answers.
Status EvalAnswers(const EvalOptions& options, const std::vector<DataLine>& lines, ChatRuntime& runtime,
                   EvalProgress& progress, EvalReport& report);

}  // namespace dsv4::apps
