// Fields of requests that the server does not know: each is said once in the log, and counted. Thread-safe.
#pragma once

#include <cstddef>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "server/observe/metrics.h"

namespace dsv4::server {

class UnknownFields {
 public:
  // Names come from outside: so many have a line and a label of their own, all others are "other".
  static constexpr size_t kMaxNames = 64;

  // `metrics` outlives this.
  explicit UnknownFields(Metrics& metrics) : metrics_(metrics) {}

  // Fields of one request, by their paths ("text.verbosity"). Returns what the reply's header lists: with
  // commas, at most 16.
  std::string Note(std::string_view route, std::span<const std::string> names);

 private:
  Metrics& metrics_;
  std::mutex mutex_;
  std::set<std::string, std::less<>> said_;
};

}  // namespace dsv4::server
