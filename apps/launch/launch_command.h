// `dsv4 launch CLIENT`: an agent or a command-line client on this machine's server, which is started where
// none runs.
#pragma once

#include <string>
#include <vector>

#include "apps/shared/model_flags.h"

namespace dsv4::apps {

struct LaunchOptions {
  std::string client;
  std::vector<std::string> client_arguments;
  std::string url;  // Address of a server that runs; empty: port `port` of this machine.
  int port = 8000;
  std::string api_key;  // Empty: none.
  bool print = false;
  double wait_seconds = 3600;  // For a server that starts.
  std::string program;         // Instead of the client's own; empty: that.
  // Words for a server that is started, beside host and port: the options of every command as typed.
  std::vector<std::string> serve_words;
};

// Returns the client's exit code, or one of ours where it did not start.
int RunLaunchCommand(const LaunchOptions& options);

}  // namespace dsv4::apps
