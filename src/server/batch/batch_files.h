// The two files of a batch: which requests there are, which have their answers, and answers on their way to
// the disk.
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/status.h"
#include "server/batch/batch_line.h"

namespace dsv4::server {

class BatchFiles {
 public:
  // Reads both files whole. The end of an answer that a killed run has left is cut off. Errors:
  // InvalidArgument names the line of the input, a repeated custom_id, or an answer to no request of the
  // input; NotFound; FailedPrecondition when another run writes the output. With an `endpoint` all requests
  // are its.
  static Result<BatchFiles> Open(const std::string& input, const std::string& output,
                                 std::string_view endpoint = {});
  BatchFiles(BatchFiles&& other) noexcept;
  BatchFiles& operator=(BatchFiles&& other) noexcept;
  ~BatchFiles();

  int64_t num_requests() const { return num_requests_; }
  int64_t num_answered() const { return num_answered_; }
  // Errors among the answers.
  int64_t num_failed() const { return num_failed_; }

  // The next request without an answer.
  Result<std::optional<BatchLine>> Next();
  // Appends the answer. It is on the disk within about a second, and when Flush returns.
  Status Put(const BatchAnswer& answer);
  Status Flush();

 private:
  BatchFiles() = default;
  Status ReadRequests(const std::string& path, std::string_view endpoint);
  Status ReadAnswers(const std::string& path);

  std::string input_name_;
  std::string output_name_;
  std::ifstream input_;
  int output_ = -1;
  int64_t line_number_ = 0;
  int64_t num_requests_ = 0;
  int64_t num_answered_ = 0;
  int64_t num_failed_ = 0;
  std::unordered_map<std::string, std::string>
      requests_;  // Their ids and digests, until the answers are read.
  std::unordered_set<std::string> answered_;
  std::chrono::steady_clock::time_point flushed_ = std::chrono::steady_clock::now();
};

}  // namespace dsv4::server
