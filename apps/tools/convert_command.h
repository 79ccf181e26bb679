// `dsv4 convert`: rewrites a checkpoint in other weight formats.
#pragma once

#include <cstdint>
#include <string>

namespace dsv4::apps {

struct ConvertCommandOptions {
  std::string source;
  std::string destination;       // Must be absent or empty.
  std::string experts = "keep";  // keep, nvfp4, mxfp4, fp8 or bf16.
  std::string dense = "keep";    // keep, nvfp4, fp8 or bf16.
  std::string scales = "mse";    // mse or amax: how a 4-bit block's scale is chosen.
  int64_t max_shard_bytes = int64_t{4} << 30;
  int num_threads = 0;  // 0: one a core.
  bool json = false;
};

// Returns the process exit code.
int RunConvertCommand(const ConvertCommandOptions& options);

}  // namespace dsv4::apps
