// The API keys that `dsv4 serve` is given, on the command line and in a file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::apps {

// Refuses a key that no client can send or that was not meant: InvalidArgument says why, and begins with
// `where`.
Status CheckApiKey(std::string_view key, std::string_view where);

// One key a line, lines ended by LF or CRLF; empty lines are none. InvalidArgument names the file's line.
Result<std::vector<std::string>> ParseApiKeys(std::string_view text, const std::string& path);

}  // namespace dsv4::apps
