// `dsv4 inspect`: what a checkpoint is and what running it would take.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/inspect/gpu_sizes.h"
#include "apps/shared/model_flags.h"

namespace dsv4::apps {

struct InspectOptions {
  ModelFlags model;
  int64_t context = 4096;  // The memory plan is for sequences of this many tokens,
  int64_t batch = 1;       // this many at a time.
  // Figures of each of several ranks: GB of memory, 0 for a share of this machine's; GB/s; microseconds for
  // an exchange.
  double rank_memory = 0;
  double rank_bandwidth = 30;
  double rank_wait = 20;
  std::vector<double> gpu_sizes;  // GB of GPUs that stand for others; empty: none.
  AssumedRates assumed_rates;
  bool json = false;
};

// Returns the process exit code.
int RunInspectCommand(const InspectOptions& options);

}  // namespace dsv4::apps
