// A bench ends at the first thing that fails, with the program's name and the reason.
#pragma once

#include <cuda_runtime_api.h>
#include <errno.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "base/status.h"

namespace dsv4::bench {

[[noreturn]] inline void Die(const std::string& message) {
  fmt::print(stderr, "{}: {}\n", program_invocation_short_name, message);
  std::exit(1);
}
inline void Must(const Status& status) {
  if (!status.ok()) Die(status.ToString());
}
template <typename T>
T Must(Result<T> result) {
  if (!result.has_value()) Die(result.error().ToString());
  return std::move(*result);
}
inline void Must(cudaError_t error) {
  if (error != cudaSuccess) Die(cudaGetErrorString(error));
}

}  // namespace dsv4::bench
