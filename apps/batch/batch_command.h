// `dsv4 batch`: answers a file of requests without a server. docs/fleet.md.
#pragma once

#include <cstdint>
#include <string>

#include "apps/serve/serve_command.h"

namespace dsv4::apps {

struct BatchOptions {
  ServeOptions serve;
  std::string input;      // OpenAI's batch format: a request a line.
  std::string output;     // Answers, as they come. What it has already is not asked again.
  int64_t in_flight = 0;  // 0: twice the places of the engine.
  bool json = false;      // One JSON document on stdout instead of the last line on stderr.
};

// Checks the whole input before the model is loaded. Returns the process exit code: kExitRunFailed also when
// answers are errors.
int RunBatchCommand(const BatchOptions& options);

}  // namespace dsv4::apps
