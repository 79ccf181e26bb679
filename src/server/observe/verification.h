// Figures that a running server knows of its own numbers: decode steps that were computed once more on the
// reference backend (`serve --verify`).
#pragma once

#include <cstdint>
#include <string>

namespace dsv4::server {

struct Verification {
  bool drift = false;  // The steps are off: answers are not to be trusted.
  std::string text;    // All of it in a line, for people.
  int64_t num_verified = 0;
  int64_t num_dropped = 0;
  int64_t num_past_bound = 0;
  int64_t num_top1_changed = 0;
  double mean_error = 0;  // Error of the logits, relative; as worst_error.
  double worst_error = 0;
};

}  // namespace dsv4::server
