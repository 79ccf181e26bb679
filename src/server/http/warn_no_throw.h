// WarnNoThrow: a warning of code that must go on without memory.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/log.h"

namespace dsv4::server {

// Says nothing where there is no memory for it.
template <typename... Args>
void WarnNoThrow(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    LogWarning(fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::exception&) {
  }
}

}  // namespace dsv4::server
