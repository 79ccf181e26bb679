// Faults that `diagnose all` must find, and where. Ops are wrong in one way whatever the tokens are cut into.
// So a fault shows in prefill and decode alike unless it spoils decode alone.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/op_table.h"

namespace dsv4::testing {

// Text of the finding. Absent or empty: does not matter.
struct Expected {
  std::string check;
  std::optional<int> layer;
  std::string op;
  std::string text;            // In the headline or the evidence.
  std::string missed_because;  // Not empty: `all` does not find it.
};

struct OpFault {
  std::string name;
  std::function<void(ops::OpTable&)> seed;  // Into a table of the CPU backend.
  Expected expected;
  std::string numerics = "release";
  int64_t num_tokens = 140;  // More than a window and a block of 128.
};
// Layers are those of models/tiny: 0 and 1 without compressor and routed by token, 2 CSA, 3 HCA.
std::vector<OpFault> SeededOpFaults();

// Bytes of one tensor of a checkpoint, to be damaged; `other` gives another tensor's.
using TensorBytes = std::function<std::span<std::byte>(const std::string& name)>;
struct FileFault {
  std::string name;
  std::function<void(const TensorBytes& tensor)> damage;
  std::string config_from;  // In config.json, replaced by config_to.
  std::string config_to;
  bool with_dump = true;  // Whether the user has a dump of the undamaged model.
  Expected expected;
};
std::vector<FileFault> SeededFileFaults();

}  // namespace dsv4::testing
