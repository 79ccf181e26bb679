// Uploaded files, and batches of requests that they hold (/v1/files, /v1/batches), in a directory that
// outlives the process.
//
// One server uses it at a time (DIR/lock). A file is DIR/files/ID.data, and ID.json says what it is.
// A batch is DIR/batches/ID.json, and ID.answers has its answers so far.
//
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace dsv4::server {

struct BatchStoreOptions {
  std::string directory;
  int64_t max_bytes = 0;  // Taken by all files; > 0.
};

struct NewBatch {
  std::string endpoint;
  std::string input_file;
  std::string metadata = "null";  // JSON.
};

// A batch that has not ended.
struct BatchJob {
  std::string id;
  uint64_t owner = 0;
  std::string endpoint;
  std::string input_path;
  std::string answers_path;
  int64_t expires_at = 0;
  bool is_cancelling = false;
};

enum class BatchEnd : uint8_t { kCompleted, kCancelled, kExpired };

// From any thread. Objects are OpenAI's, as JSON in one line. Ids of others' files and batches are NotFound.
class BatchStore {
 public:
  // Makes the directory, for its owner alone. FailedPrecondition when another server uses it; Unavailable
  // with the system's reason.
  static Result<std::unique_ptr<BatchStore>> Open(BatchStoreOptions options);
  ~BatchStore();
  BatchStore(const BatchStore&) = delete;
  BatchStore& operator=(const BatchStore&) = delete;

  // Keys of clients are mixed with it to owners; the same at every start.
  const std::string& secret() const { return secret_; }

  // InvalidArgument when there is no room.
  Result<std::string> AddFile(uint64_t owner, std::string_view name, std::string_view purpose,
                              std::string_view content);
  Result<std::string> File(uint64_t owner, const std::string& id) const;
  // A page of the list, the newest first where the query (server/api/list_page.h) asks for no other order; `purpose` is read too.
  Result<std::string> Files(uint64_t owner, std::string_view query = {}) const;
  Result<std::ifstream> Content(uint64_t owner, const std::string& id) const;
  Status EraseFile(uint64_t owner, const std::string& id);

  Result<std::string> AddBatch(uint64_t owner, const NewBatch& batch);
  Result<std::string> Batch(uint64_t owner, const std::string& id) const;
  Result<std::string> Batches(uint64_t owner, std::string_view query = {}) const;
  // InvalidArgument for one that has ended.
  Result<std::string> Cancel(uint64_t owner, const std::string& id);

  // For the thread that runs batches.

  // The oldest batch that has not ended.
  std::optional<BatchJob> Oldest() const;
  bool IsCancelling(const std::string& id) const;
  Status Begin(const std::string& id);
  Status Count(const std::string& id, int64_t total, int64_t answered, int64_t failed);
  // Nothing was asked, and why.
  Status Fail(const std::string& id, std::string_view message);
  // Makes the files of answers and of errors out of the answers there are.
  Status End(const std::string& id, BatchEnd end);

 private:
  explicit BatchStore(BatchStoreOptions options) : options_(std::move(options)) {}
  Status Prepare();

  const BatchStoreOptions options_;
  std::string secret_;
  int lock_ = -1;
  mutable std::mutex mutex_;
};

}  // namespace dsv4::server
