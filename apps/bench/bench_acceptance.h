// `dsv4 bench --speculation mtp[:K] --acceptance A,B,...`: whole steps of drafting and verifying, with the
// drafter's real cost, at an acceptance that is given. For weights that cannot draft, such as random ones of
// a real shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"

namespace dsv4::apps {

struct AcceptanceBenchOptions {
  std::string drafter;  // "mtp" or "mtp:K"; K is by default as many as acceptances.
  std::vector<double>
      // Chance that a draft is right at each position where those before were; the last is of all further
      // positions.
      acceptance;
  int64_t depth = 0;  // Tokens that the sequence holds at the beginning.
  int64_t num_steps = 60;
  uint64_t seed = 0;
  bool json = false;
};

// Returns the process exit code.
int RunAcceptanceBench(const AcceptanceBenchOptions& options, const ModelFlags& model);

}  // namespace dsv4::apps
