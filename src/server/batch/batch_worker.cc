// The thread that takes batches out of the store.
#include "server/batch/batch_worker.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <new>
#include <string>
#include <utility>

#include "base/log.h"
#include "server/batch/batch_files.h"
#include "server/batch/run_batch.h"

namespace dsv4::server {
namespace {

// How often the store is asked for a batch, and the counts of one that runs are written.
constexpr std::chrono::milliseconds kLook(200);
constexpr std::chrono::seconds kBetweenCounts(1);

}  // namespace

BatchWorker::BatchWorker(BatchStore& store, Ask ask, int64_t in_flight)
    : store_(store), ask_(std::move(ask)), in_flight_(in_flight), thread_([this] { Run(); }) {}

BatchWorker::~BatchWorker() {
  stopping_ = true;
  thread_.join();
}

void BatchWorker::Run() {
  std::string said;  // A disk that fails costs one line, however often it is tried.
  while (!stopping_) {
    try {
      const std::optional<BatchJob> job = store_.Oldest();
      const Status status = job ? Answer(*job) : Status();
      if (!status.ok() && status.message() != said)
        LogWarning(fmt::format("batch {}: {}", job->id, status.ToString()));
      said = status.message();
      if (job && status.ok()) continue;
    } catch (const std::bad_alloc&) {  // Tried again.
    }
    std::this_thread::sleep_for(kLook);
  }
}

Status BatchWorker::Answer(const BatchJob& job) {
  if (job.is_cancelling) return store_.End(job.id, BatchEnd::kCancelled);
  Result<BatchFiles> files = BatchFiles::Open(job.input_path, job.answers_path, job.endpoint);
  if (!files) {
    if (files.error().code() == StatusCode::kUnavailable) return files.error();  // The disk's fault.
    std::string_view message = files.error().message();
    // Clients know the file by its id.
    if (message.starts_with(job.input_path)) message.remove_prefix(job.input_path.size() + 2);
    return store_.Fail(job.id, message);
  }
  DSV4_RETURN_IF_ERROR(store_.Begin(job.id));
  auto counted = std::chrono::steady_clock::now();
  const auto count = [&] {
    counted = std::chrono::steady_clock::now();
    return store_.Count(job.id, files->num_requests(), files->num_answered(), files->num_failed());
  };
  DSV4_RETURN_IF_ERROR(count());
  bool is_cancelled = false;
  bool is_expired = false;
  bool is_unknown = false;
  auto looked = std::chrono::steady_clock::now();
  const Status status =
      RunBatch({.ask =
                    [&](HttpRequest request) {
                      std::unique_ptr<Reply> reply = ask_(std::move(request), job.owner);
                      if (reply != nullptr) return reply;
                      is_unknown = true;
                      return MakeReply({.status = 503}, "{}");
                    },
                .next = [&] { return files->Next(); },
                .put =
                    [&](const BatchAnswer& answer) {
                      DSV4_RETURN_IF_ERROR(files->Put(answer));
                      return std::chrono::steady_clock::now() - counted > kBetweenCounts ? count() : Status();
                    },
                .stop =
                    [&] {
                      is_expired = std::time(nullptr) > job.expires_at;
                      if (std::chrono::steady_clock::now() - looked > kLook) {
                        looked = std::chrono::steady_clock::now();
                        is_cancelled = store_.IsCancelling(job.id);
                      }
                      return stopping_ || is_expired || is_cancelled || is_unknown;
                    },
                .in_flight = in_flight_});
  if (is_unknown) return store_.Fail(job.id, "the API key that made it is not known any more");
  if (stopping_ && !status.ok()) return {};
  if (!status.ok() && status.code() != StatusCode::kCancelled) return status;
  DSV4_RETURN_IF_ERROR(files->Flush());
  DSV4_RETURN_IF_ERROR(count());
  return store_.End(job.id, status.ok()    ? BatchEnd::kCompleted
                            : is_cancelled ? BatchEnd::kCancelled
                                           : BatchEnd::kExpired);
}

}  // namespace dsv4::server
