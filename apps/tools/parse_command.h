// `dsv4 parse --cases F [--lenient]`: parses completions, one JSON object per case and line on stdout.
#pragma once

#include <iosfwd>
#include <string>

namespace dsv4::apps {

struct ParseOptions {
  // A JSON list of {name, completion, mode}, mode "chat" or "thinking". Other members are ignored.
  std::string cases_path;
  // The server's repairing parser instead of the reference's strict one; it never fails.
  bool lenient = false;
};

// Writes {"name", "message"} or {"name", "error"} per case, in order. Exit codes as for RunEncodeCommand.
int RunParseCommand(const ParseOptions& options, std::ostream& out);
int RunParseCommand(const ParseOptions& options);  // to stdout

}  // namespace dsv4::apps
