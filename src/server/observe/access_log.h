// One line for every request that was answered, in a file of its own:
//
//   2026-11-25T21:48:09.123+0000 127.0.0.1 "POST /v1/chat/completions" 200 1234 0.532 req_0123456789abcdef01234567
//
// time of the end, client ("-" on a unix socket), request, status, bytes of the body, seconds, x-request-id.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/line_writer.h"
#include "base/status.h"

namespace dsv4::server {

struct AccessLine {
  std::string client;
  std::string method;
  std::string path;
  std::string id;
  int status = 0;  // 0: the client left before there was a head.
  uint64_t num_bytes = 0;
  double seconds = 0.0;
};

// From any thread, which never waits for the file: lines that it does not take are lost (base/line_writer.h).
// Lines are appended whole, so that the file may be copied and cut while the server runs.
class AccessLog {
 public:
  // "-": standard output. InvalidArgument names a file that cannot be opened.
  static Result<std::unique_ptr<AccessLog>> Open(const std::string& path);
  void Write(const AccessLine& line);
  // Goes on in the file that now has the path: the old one was renamed or removed. An error leaves the old
  // one.
  Status Reopen();

 private:
  AccessLog(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor), writer_(descriptor, "access log") {}
  const std::string path_;
  const int descriptor_;  // The writer's.
  LineWriter writer_;
};

}  // namespace dsv4::server
