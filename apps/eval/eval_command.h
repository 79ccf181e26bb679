// `dsv4 eval TASK`: what a model, a format, a backend or another engine makes of quality, in numbers with
// intervals (docs/evaluation.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"
#include "sampling/sampling_params.h"

namespace dsv4::apps {

struct EvalOptions {
  ModelFlags model;
  std::string task;        // "perplexity", "choice", "generation", "tools" or "needle".
  std::string data_path;   // JSON lines.
  int64_t limit = 0;       // Limit of lines; 0: all.
  std::string bos = "on";  // "off": texts do not begin with the token of that.
  int64_t window = 0;      // perplexity: longer texts are cut into pieces of so many tokens; 0: not.
  bool json = false;
  std::string html_path;
  std::string output_path;  // A JSON line for each line of the data.
  bool quiet = false;

  // perplexity: what the distributions are compared with, beside log-probabilities in the lines of the data.
  std::string against_model;
  std::string against_backend;
  std::string against_numerics;
  std::string write_path;
  int top = 20;  // Candidates a token in that file.

  // generation, tools, needle.
  std::string thinking_mode = "chat";
  std::string effort;
  std::string revision;
  int64_t max_tokens = 512;
  sampling::SamplingParams sampling;
  std::vector<std::string> stop;

  // Exit code 1 where they are not kept.
  std::optional<double> max_perplexity;
  std::optional<double> max_kl;
  std::optional<double> min_top1;
  std::optional<double> min_accuracy;

  std::string command_line;  // For --html.
  std::string version;

  bool compares() const {
    return !against_model.empty() || !against_backend.empty() || !against_numerics.empty();
  }
};

// Returns the process exit code.
int RunEvalCommand(const EvalOptions& options);

}  // namespace dsv4::apps
