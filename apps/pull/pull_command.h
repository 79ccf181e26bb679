// `dsv4 pull OWNER/NAME[@REVISION]`: a checkpoint from a hub into this machine's cache.
#pragma once

#include <string>

namespace dsv4::apps {

struct PullCommandOptions {
  std::string reference;
  bool all_files = false;
  bool check_only = false;
  bool any_model = false;
  bool verify = false;
  bool json = false;
  bool quiet = false;
  int num_transfers = 4;
  int num_retries = 8;
  double retry_seconds = 0.5;
  double stall_seconds = 30;
};

// Returns the process exit code.
int RunPullCommand(const PullCommandOptions& options);

}  // namespace dsv4::apps
