// `dsv4 bench`: times prefills, and decode steps by depth and batch, against what the machine can do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"

namespace dsv4::apps {

struct BenchOptions {
  ModelFlags model;
  // ParseBenchList. Prefill lengths; depths and batches of decode steps.
  std::string prefill = "64,512,2048";
  std::string depth = "0,2k,8k,32k";
  std::string batch = "1,4,8,32";
  std::string rows = "none";       // Rows of steps of one sequence, instead of batches.
  std::vector<std::string> tiers;  // Tiers of the cpu backend, by name; empty: the one that it takes.
  int repeat = 5;
  int rounds = 1;  // All rows in turn, so often.
  uint64_t seed = 0;
  bool check = true;
  bool profile = false;
  bool explain = false;  // Option of --backend cuda.
  bool json = false;
};

// Different numbers of at least `min`, separated by commas, "2k" for 2048; or "A..B" for all of them; "none"
// for none. InvalidArgument names the item.
Result<std::vector<int64_t>> ParseBenchList(const std::string& text, int64_t min);

// Returns the process exit code.
int RunBenchCommand(const BenchOptions& options);

}  // namespace dsv4::apps
