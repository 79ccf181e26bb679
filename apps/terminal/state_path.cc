// Path of a state file by variable, XDG folder or home.
#include "apps/terminal/state_path.h"

#include <fmt/format.h>

#include <cstdlib>

namespace dsv4::apps {

std::string StatePath(const char* variable, std::string_view file) {
  if (const char* path = std::getenv(variable); path != nullptr) return path;
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/') {
    return fmt::format("{}/dsv4/{}", state, file);
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return fmt::format("{}/.local/state/dsv4/{}", home, file);
  }
  return {};
}

}  // namespace dsv4::apps
