// A server that this process asks over HTTP, and one that it starts as a child.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace dsv4::apps {

// The id of the first model that the server at `url` answers to. Unavailable: nothing listens there.
Result<std::string> ServedModel(const std::string& url, const std::string& key);

class LocalServer {
 public:
  // Starts `dsv4 serve` on `port` of this machine with `words` behind; its output goes to the file `log`.
  static Result<LocalServer> Start(int port, const std::vector<std::string>& words, const std::string& log);
  LocalServer(LocalServer&& other) noexcept;
  LocalServer& operator=(LocalServer&&) = delete;
  // Asks it to end, and waits.
  ~LocalServer();

  // Ok while it lives; its last lines otherwise.
  Status Check();

 private:
  LocalServer(pid_t process, std::string log) : process_(process), log_(std::move(log)) {}
  pid_t process_;
  std::string log_;
};

}  // namespace dsv4::apps
