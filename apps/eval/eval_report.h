// Figures of a task by name, the same for people, for scripts and on the page of --html.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/eval/eval_command.h"
#include "apps/eval/intervals.h"
#include "base/json.h"
#include "base/status.h"
#include "diag/report/report.h"

namespace dsv4::apps {

struct EvalReport {
  std::string task;
  std::vector<std::pair<std::string, int64_t>> counts;  // "texts", "tokens".
  struct Figure {
    std::string name;  // "perplexity"
    Interval interval;
    int digits = 4;
  };
  std::vector<Figure> figures;
  std::vector<diag::Table> tables;
  std::vector<diag::Plot> plots;
  std::vector<std::string> notes;
  bool bounded = false;               // Whether an option asked for a bound.
  std::vector<std::string> failures;  // Bounds that were not kept.
  Json details = Json::object();      // Details for --json alone.
  std::vector<Json> lines;            // Lines for --output.

  void Add(std::string name, Interval interval, int digits = 4) {
    figures.push_back({std::move(name), interval, digits});
  }
  // A failure where `value` is beyond the bound, or no number.
  void Require(const std::string& name, double value, double bound, bool at_most);
};

// Prints, writes --html and --output, and gives the exit code.
int Finish(const EvalOptions& options, const EvalReport& report, const std::string& model_name);

}  // namespace dsv4::apps
