// Reading and appending the files of a batch.
#include "server/batch/batch_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/write_file.h"

namespace dsv4::server {
namespace {

Status SystemError(const std::string& path, std::string_view action) {
  return {StatusCode::kUnavailable, fmt::format("{}: {}: {}", path, action, std::strerror(errno))};
}

bool IsBlank(const std::string& line) { return line.find_first_not_of(" \t\r") == std::string::npos; }

}  // namespace

BatchFiles::BatchFiles(BatchFiles&& other) noexcept { *this = std::move(other); }

BatchFiles& BatchFiles::operator=(BatchFiles&& other) noexcept {
  std::swap(input_name_, other.input_name_);
  std::swap(output_name_, other.output_name_);
  std::swap(input_, other.input_);
  std::swap(output_, other.output_);
  std::swap(line_number_, other.line_number_);
  std::swap(num_requests_, other.num_requests_);
  std::swap(num_answered_, other.num_answered_);
  std::swap(num_failed_, other.num_failed_);
  std::swap(requests_, other.requests_);
  std::swap(answered_, other.answered_);
  std::swap(flushed_, other.flushed_);
  return *this;
}

BatchFiles::~BatchFiles() {
  if (output_ >= 0) ::close(output_);
}

Result<BatchFiles> BatchFiles::Open(const std::string& input, const std::string& output,
                                    std::string_view endpoint) {
  if (input == "-" || output == "-")
    return Error(
        InvalidArgument("-: wanted a file: requests are read twice, and answers before the first is asked"));
  BatchFiles files;
  files.input_name_ = input;
  files.output_name_ = output;
  DSV4_TRY(files.ReadRequests(input, endpoint));
  std::error_code error;
  if (std::filesystem::equivalent(input, output, error))
    return Error(InvalidArgument(output + ": the input itself; answers need a file of their own"));
  DSV4_TRY(files.ReadAnswers(output));
  files.requests_ = {};
  return files;
}

Status BatchFiles::ReadRequests(const std::string& path, std::string_view endpoint) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return NotFound(path + ": there is no such file");
  if (!std::filesystem::is_regular_file(path, error))
    return InvalidArgument(path + ": not a regular file; it is read twice");
  input_.open(path);
  std::string text;
  for (int64_t number = 1; std::getline(input_, text); ++number) {
    if (IsBlank(text)) continue;
    Result<BatchLine> line = ReadBatchLine(text, number);
    if (!line) return line.error().WithContext(path);
    if (!endpoint.empty() && line->url != endpoint) {
      return InvalidArgument(fmt::format("{}: line {}: url: got '{}', the batch's endpoint is {}", path,
                                         number, line->url, endpoint));
    }
    if (!requests_.emplace(line->custom_id, line->Digest()).second) {
      return InvalidArgument(fmt::format("{}: line {}: custom_id: '{}' is an earlier line's too", path,
                                         number, line->custom_id));
    }
    ++num_requests_;
  }
  if (!input_.eof()) return InvalidArgument(path + ": cannot be read");
  if (num_requests_ == 0) return InvalidArgument(path + ": no requests");
  input_.clear();
  input_.seekg(0);
  return {};
}

Status BatchFiles::ReadAnswers(const std::string& path) {
  output_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (output_ < 0) return SystemError(path, "cannot open");
  struct stat status = {};
  if (::fstat(output_, &status) != 0 || !S_ISREG(status.st_mode))
    return InvalidArgument(path + ": not a regular file; what it has is looked at first");
  if (::flock(output_, LOCK_EX | LOCK_NB) != 0)
    return FailedPrecondition(path + ": another run writes its answers there");
  std::ifstream answers(path);
  std::string text;
  int64_t whole = 0;
  for (int64_t number = 1; std::getline(answers, text); ++number) {
    if (answers.eof()) break;  // Without a line's end: the run was killed in its midst.
    whole += static_cast<int64_t>(text.size()) + 1;
    const Result<AnsweredLine> line = ReadAnsweredLine(text);
    if (!line) {
      return InvalidArgument(
          fmt::format("{}: line {}: no answer of a batch: {}; answers need a file of their own", path, number,
                      line.error().message()));
    }
    const auto request = requests_.find(line->custom_id);
    if (request == requests_.end()) {
      return InvalidArgument(fmt::format("{}: line {}: custom_id: '{}' is no request of {}", path, number,
                                         line->custom_id, input_name_));
    }
    if (!line->digest.empty() && line->digest != request->second) {
      return InvalidArgument(fmt::format(
          "{}: line {}: custom_id: '{}' is the answer to another request than that of {}; answers need a "
          "file of their own",
          path, number, line->custom_id, input_name_));
    }
    if (!answered_.insert(line->custom_id).second) {
      return InvalidArgument(fmt::format("{}: line {}: custom_id: '{}' is an earlier line's too", path,
                                         number, line->custom_id));
    }
    ++num_answered_;
    if (!line->ok) ++num_failed_;
  }
  if (whole < status.st_size && ::ftruncate(output_, whole) != 0) return SystemError(path, "cannot cut");
  return {};
}

Result<std::optional<BatchLine>> BatchFiles::Next() {
  std::string text;
  while (std::getline(input_, text)) {
    ++line_number_;
    if (IsBlank(text)) continue;
    DSV4_ASSIGN_OR_RETURN(BatchLine line, ReadBatchLine(text, line_number_));
    if (!answered_.contains(line.custom_id)) return line;
  }
  return std::nullopt;
}

Status BatchFiles::Put(const BatchAnswer& answer) {
  DSV4_RETURN_IF_ERROR(WriteAll(output_, WriteBatchAnswer(answer), output_name_));
  ++num_answered_;
  if (!answer.ok()) ++num_failed_;
  constexpr std::chrono::seconds kBetweenFlushes(1);
  return std::chrono::steady_clock::now() - flushed_ > kBetweenFlushes ? Flush() : Status();
}

Status BatchFiles::Flush() {
  flushed_ = std::chrono::steady_clock::now();
  return ::fdatasync(output_) == 0 ? Status() : SystemError(output_name_, "cannot flush");
}

}  // namespace dsv4::server
