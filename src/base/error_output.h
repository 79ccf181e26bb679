// Standard error, for messages to people. It may be full, closed, or a pipe that is not read: no program
// fails or hangs for that.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string_view>
#include <utility>

namespace dsv4 {

// All of `text`, or as much as standard error takes; waits at most a second for one that is not read, once.
void WriteError(std::string_view text) noexcept;

template <typename... Args>
void PrintError(fmt::format_string<Args...> format, Args&&... args) {
  WriteError(fmt::format(format, std::forward<Args>(args)...));
}

// While it lives a thread writes what goes to standard error, and callers never wait (base/line_writer.h).
// For servers.
class BackgroundErrors {
 public:
  BackgroundErrors();
  ~BackgroundErrors();
  BackgroundErrors(const BackgroundErrors&) = delete;
  BackgroundErrors& operator=(const BackgroundErrors&) = delete;
};

}  // namespace dsv4
