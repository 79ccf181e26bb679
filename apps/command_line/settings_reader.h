// Settings of a file: the part of TOML that options need, with the line of each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::apps {

struct Setting {
  std::vector<std::string> path;  // "run", "temperature".
  std::vector<std::string> values;
  int line = 0;  // From 1.
};

// Reads [tables], dotted and quoted keys, strings, numbers, true and false, and lists of them over any lines.
// InvalidArgument begins with "line N: " and says what is there and what was wanted. A key that comes twice
// is one too.
Result<std::vector<Setting>> ReadSettings(std::string_view text);

}  // namespace dsv4::apps
