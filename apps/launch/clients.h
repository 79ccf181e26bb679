// How each client that `dsv4 launch` knows is pointed at a server: environment, arguments, files. Tried
// settings: docs/agents.md.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv4::apps {

struct ServerAddress {
  std::string url;    // "http://127.0.0.1:8000", no slash at its end.
  std::string model;  // The id that the server answers to.
  std::string key;    // "none" where the server wants none: clients insist on one.
};

struct ClientSetup {
  std::string program;  // Looked up in PATH.
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::pair<std::string, std::string>> files;  // Path and text, written before it starts.
};

// "aider", "claude", "codex", "llm", "opencode".
std::vector<std::string> ClientNames();
// `folder`: where a client may keep what is only of this server; llm's user folder. InvalidArgument when
// `client` is unknown.
Result<ClientSetup> SetupOf(std::string_view client, const ServerAddress& server, const std::string& folder);

// The setup as lines for a POSIX shell, which do the same by hand.
std::string AsShell(const ClientSetup& setup);

}  // namespace dsv4::apps
