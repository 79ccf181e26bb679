// A bench ends at the first thing that fails, with the program's name and the reason.
#pragma once

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

}  // namespace dsv4::bench
