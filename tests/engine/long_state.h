// Which model long_state_test fills, and on what: a file for each backend says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ops/op_table.h"

namespace dsv4::testing {

struct LongStateModel {
  std::string shape;  // Synthetic.
  std::optional<int64_t> num_layers;
  ops::Backend backend;
};
LongStateModel MakeLongStateModel();

}  // namespace dsv4::testing
