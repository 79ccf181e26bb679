// A whole file as a string.
#pragma once

#include <string>

#include "base/status.h"

namespace dsv4::apps {

// NotFound names the path and the system's reason.
Result<std::string> ReadFile(const std::string& path);

}  // namespace dsv4::apps
