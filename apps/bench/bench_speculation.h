// `dsv4 bench --speculation DRAFTER --prompts FILE`: answers with and without drafts, in turns, and whether
// they are the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"

namespace dsv4::apps {

struct SpeculationBenchOptions {
  std::string drafter;  // As --speculation of `run`; not off. Empty: another bench.
  // One object a line: "messages", "kind" (a row of the table; default "prompts"), and for an answer that the
  // model is made to give, "answer". The model's own answers are greedy.
  std::string prompts_path;
  std::vector<double> acceptance;  // Not empty: another bench (bench_acceptance.h).
  int repeat = 5;                  // Answers of each prompt, each way; the fastest counts.
  double prompt_seconds = 20.0;    // After which a prompt is not asked for more often than that.
  int64_t output_tokens = 256;     // Length of an answer of the model's own at most.
  bool json = false;
};

// Returns the process exit code: kExitRunFailed when an answer with drafts is not the one without.
int RunSpeculationBench(const SpeculationBenchOptions& options, const ModelFlags& model);

}  // namespace dsv4::apps
