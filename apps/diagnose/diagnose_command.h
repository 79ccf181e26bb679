// `dsv4 diagnose CHECK`: the cheap decisive experiments, prompt first. docs/troubleshooting.md says which to
// run when.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/shared/run_options.h"

namespace dsv4::apps {

struct DiagnoseOptions {
  std::string check;         // One of DiagnoseChecks().
  RunOptions run;            // The conversation, sampling and model flags.
  std::string against_path;  // prompt: another engine's rendering or ids.
  std::string log_path;      // stop-set: ids of an answer.
  std::string tokens_path;   // Model checks: these ids instead of the conversation's.
  int64_t min_tokens = 300;  // Model checks: shorter ids are repeated up to this many; 0: as they are.
  int64_t chunk = 7;         // decode-prefill.
  double tolerance = 0.0;    // decode-prefill.
  std::string draft;         // draft: "mtp" or "dspark"; empty: the one that the model has.
  std::string with_path;     // compare: a dump of another run,
  std::string with_backend;  // or a run of ours that differs in one of these.
  std::string with_numerics;
  std::vector<std::string> ab;  // compare: OP=VARIANT, or each=VARIANT alone.
  bool shared_inputs = false;   // compare.
  std::optional<double> bound;  // compare.
  std::string dump_path;        // Folder in which to write the tensors of one prefill; empty: nowhere.
  std::string html_path;        // File in which to write the report as a page; empty: nowhere.
  std::string command_line;     // As typed, and
  std::string version;          // of this program: for the page.
  std::optional<int> layer;     // visible.
  std::optional<int64_t> position;
};

// Names on the command line, in the order of `all`, which is the last.
const std::vector<std::string>& DiagnoseChecks();

// The question asked where the command line gives none.
inline constexpr const char* kDiagnoseQuestion = "What is the capital of France?";

// Returns the process exit code: 0 when everything passed, 1 for a finding or a failed run.
int RunDiagnoseCommand(const DiagnoseOptions& options);

}  // namespace dsv4::apps
