// LogSink: messages that a thread logs go to a callback instead of stderr while it lives. For libraries that
// may print nothing.
#pragma once

#include <functional>
#include <string>

#include "base/log.h"

namespace dsv4 {

class LogSink {
 public:
  using Callback = std::function<void(LogLevel, const std::string&)>;
  // `callback` outlives this; empty: messages are dropped.
  explicit LogSink(const Callback& callback);
  ~LogSink();
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;

 private:
  const Callback* before_;
};

}  // namespace dsv4
