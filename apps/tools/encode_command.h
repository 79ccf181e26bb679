// `dsv4 encode --cases F`: renders conversations to prompt text, one JSON object per case and line on stdout.
#pragma once

#include <iosfwd>
#include <string>

namespace dsv4::apps {

struct EncodeOptions {
  // A JSON list of {name, messages, tools, options{thinking_mode, drop_thinking, reasoning_effort,
  // add_default_bos_token, revision, context}}; only name and messages are required. Other members are
  // ignored.
  std::string cases_path;
};

// Writes {"name", "rendered"} or {"name", "error"} per case, in order. Returns the process exit code: 0, also
// when a case is an error; 3 when the file cannot be read or is not such a list (nothing is written then), or
// 1 when stdout fails.
int RunEncodeCommand(const EncodeOptions& options, std::ostream& out);
int RunEncodeCommand(const EncodeOptions& options);  // to stdout

}  // namespace dsv4::apps
