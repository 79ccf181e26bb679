// `dsv4 experts profile`: counts which routed experts a text chooses, for the tiers of a later start
// (docs/expert-tiers.md).
#pragma once

#include <cstdint>
#include <string>

#include "apps/shared/model_flags.h"

namespace dsv4::apps {

struct ProfileOptions {
  ModelFlags model;
  std::string text_path;    // Text that the model reads; "-": standard input.
  std::string output_path;  // Empty: ExpertProfilePath.
  int64_t window = 4096;    // Tokens that are read as one sequence.
  bool json = false;
};

// Returns the process exit code.
int RunProfileCommand(const ProfileOptions& options);

}  // namespace dsv4::apps
