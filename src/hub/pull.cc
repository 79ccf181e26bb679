// Download of a checkpoint: plan, parallel transfers, retries, space, digests and the snapshot's links.
#include "hub/pull.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "base/write_file.h"
#include "hub/listing.h"
#include "hub/partial_file.h"
#include "hub/transfer.h"

namespace dsv4::hub {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxListingBytes = size_t{32} << 20;
constexpr int kMaxWrongDigests = 3;
// Retries of a name without an address, before anything has come: a machine without a network, or a name that
// is wrong. Later it was there once.
constexpr int kRetriesOfNames = 1;
constexpr int kFailuresToTell = 3;  // In a row: before, most are mended by the next try.
constexpr double kLongestWait = 30, kLongestRetryAfter = 300;  // Seconds.

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

bool IsCancelled(const PullOptions& options) { return options.cancelled && options.cancelled(); }

// How long to wait after the `failures`-th failure in a row.
double WaitAfter(const PullOptions& options, int failures, double retry_after) {
  if (retry_after > 0) return std::min(retry_after, kLongestRetryAfter);
  double wait = options.retry_seconds;
  for (int i = 1; i < failures && wait < kLongestWait; ++i) wait *= 2;
  return std::min(wait, kLongestWait);
}

Status GivenUp(const Status& cause, int tries) {
  return {cause.code(), fmt::format("gave up after {}: {}", Counted(tries, "try"), cause.message())};
}

class TextSink final : public BodySink {
 public:
  Status Begin(int64_t from, int64_t) override {
    text.clear();
    return from == 0 ? Status()
                     : Status(StatusCode::kUnavailable, "the server sends a part that was not asked for");
  }
  Status Write(std::string_view bytes) override {
    if (text.size() + bytes.size() > kMaxListingBytes)
      return InvalidArgument(fmt::format("listing: more than {}", Counted(kMaxListingBytes, "byte")));
    text += bytes;
    return {};
  }
  std::string text;
};

Result<Listing> FetchListing(const PullOptions& options, Transfers& transfers) {
  const std::string url = ListingUrl(options.settings.endpoint, options.reference);
  for (int failures = 1;; ++failures) {
    TextSink sink;
    transfers.Start(0, {.url = url, .token = options.settings.token, .stall_seconds = options.stall_seconds},
                    sink);
    std::vector<Transfers::Finished> finished;
    while (finished.empty()) {
      finished = transfers.Run(0.2);
      // The sink goes with this call, so a transfer that is still running must not outlive it: the caller
      // drops `transfers`.
      if (finished.empty() && IsCancelled(options)) return Error(Cancelled("pull: cancelled"));
    }
    const TransferOutcome& outcome = finished.front().outcome;
    const int retries =
        outcome.unnamed ? std::min(options.num_retries, kRetriesOfNames) : options.num_retries;
    if (outcome.status.ok()) {
      Result<Listing> listing = ParseListing(sink.text);
      if (listing) return listing;
      // A listing that was cut does not parse; a server whose listings never do is told apart by the tries.
      if (failures > options.num_retries) return Error(listing.error().WithContext(url));
    } else if (outcome.status.code() == StatusCode::kNotFound) {
      return Error(
          NotFound(fmt::format("no such repository or revision on {} ({}); a private one wants HF_TOKEN",
                               options.settings.endpoint, outcome.status.message())));
    } else if (!outcome.retry || failures > retries) {
      const Status status = outcome.retry ? GivenUp(outcome.status, failures) : outcome.status;
      return Error(status.WithContext(url));
    }
    const double wait = WaitAfter(options, failures, outcome.retry_after);
    // Tries may take minutes, and no bar moves yet.
    LogWarning(fmt::format("{}: try {} of {} failed: {}; the next in {:.1f} s", url, failures, retries + 1,
                           outcome.status.ok() ? "not a listing" : outcome.status.message(), wait));
    const auto until = Clock::now() + Seconds(wait);
    while (Clock::now() < until) {
      if (IsCancelled(options)) return Error(Cancelled("pull: cancelled"));
      transfers.Run(0.1);
    }
  }
}

// One file of the hub, however many names it has in the snapshot.
struct Job {
  const RemoteFile* file = nullptr;
  enum class State : uint8_t { kWaiting, kHashing, kRunning, kDone } state = State::kWaiting;
  std::unique_ptr<PartialFile> partial;
  Clock::time_point not_before;
  int failures = 0;  // In a row.
  int wrong_digests = 0;
  int64_t size_before = 0;  // Size of the file when the transfer began.
  bool told_to_wait = false;
};

class Download {
 public:
  Download(const PullOptions& options, const Listing& listing, std::vector<const RemoteFile*> files)
      : options_(options),
        listing_(listing),
        repository_(RepositoryFolder(options.settings.cache, options.reference)) {
    std::map<std::string, size_t> by_digest;
    for (const RemoteFile* file : files) {
      if (by_digest.emplace(file->digest, jobs_.size()).second) {
        jobs_.emplace_back();
        jobs_.back().file = file;
      }
    }
    // Small ones first: config.json is there, and wrong repositories show, before hours of weights.
    std::ranges::stable_sort(jobs_, {}, [](const Job& job) { return job.file->num_bytes; });
  }

  Status Run(Transfers& transfers) {
    DSV4_RETURN_IF_ERROR(CheckSpace());
    while (std::ranges::any_of(jobs_, [](const Job& job) { return job.state != Job::State::kDone; })) {
      if (IsCancelled(options_)) return Cancelled("pull: cancelled; the same command goes on from here");
      bool hashing = false;
      for (size_t i = 0; i < jobs_.size(); ++i) {
        Job& job = jobs_[i];
        const std::string& name = job.file->name;
        if (job.state == Job::State::kWaiting && NumActive() < options_.num_transfers &&
            Clock::now() >= job.not_before) {
          if (Status status = Begin(job); !status.ok()) return status.WithContext(name);
        }
        if (job.state == Job::State::kHashing) {
          const Result<bool> whole = job.partial->HashSome();
          if (!whole) return whole.error().WithContext(name);
          if (*whole) {
            if (Status status = Fetch(static_cast<int>(i), transfers); !status.ok())
              return status.WithContext(name);
          } else {
            hashing = true;
          }
        }
      }
      for (const Transfers::Finished& finished : transfers.Run(hashing ? 0 : 0.1)) {
        Job& job = jobs_[static_cast<size_t>(finished.id)];
        if (Status status = End(job, finished.outcome); !status.ok())
          return status.WithContext(job.file->name);
      }
      Report();
    }
    return {};
  }

  int64_t num_bytes() const {
    int64_t sum = 0;
    for (const Job& job : jobs_) sum += job.file->num_bytes;
    return sum;
  }
  int64_t bytes_fetched() const { return bytes_fetched_; }
  // ResourceExhausted where the disk has no room for what is to come.
  Status CheckSpace() const {
    std::error_code error;
    fs::create_directories(repository_, error);
    if (error) {
      return FailedPrecondition(
          fmt::format("{}: cannot make the folder: {}", repository_.string(), error.message()));
    }
    const int64_t missing = BytesToCome();
    const fs::space_info space = fs::space(repository_, error);
    if (!error && missing > static_cast<int64_t>(space.available)) {
      return ResourceExhausted(fmt::format(
          "{}: {:.3f} GB are to come, {:.3f} GB are free (HF_HOME names another place)", repository_.string(),
          static_cast<double>(missing) / 1e9, static_cast<double>(space.available) / 1e9));
    }
    return {};
  }

  // Bytes that are neither there nor in a file that was begun.
  int64_t BytesToCome() const {
    std::error_code error;
    int64_t missing = 0;
    for (const Job& job : jobs_) {
      int64_t there = 0;
      for (const char* suffix : {"", ".incomplete"}) {
        const auto size = fs::file_size(repository_ / "blobs" / (job.file->digest + suffix), error);
        if (!error) there = std::max(there, static_cast<int64_t>(size));
      }
      missing += std::max<int64_t>(job.file->num_bytes - there, 0);
    }
    return missing;
  }

 private:
  int NumActive() const {
    return static_cast<int>(std::ranges::count_if(jobs_, [](const Job& job) {
      return job.state == Job::State::kHashing || job.state == Job::State::kRunning;
    }));
  }

  Status Begin(Job& job) {
    Result<std::unique_ptr<PartialFile>> partial =
        PartialFile::Open(repository_, *job.file, options_.verify && job.wrong_digests == 0);
    if (!partial) return partial.error();
    if (*partial == nullptr) {
      if (!std::exchange(job.told_to_wait, true))
        LogInfo(fmt::format("{}: another process fetches it; waiting", job.file->name));
      job.not_before = Clock::now() + Seconds(0.5);
      return {};
    }
    job.partial = std::move(*partial);
    if (job.partial->was_whole()) {
      Done(job);
    } else {
      job.state = Job::State::kHashing;
    }
    return {};
  }

  // Bytes that lay there are hashed: fetches the rest, if there is one.
  Status Fetch(int id, Transfers& transfers) {
    Job& job = jobs_[static_cast<size_t>(id)];
    job.size_before = job.partial->size();
    job.state = Job::State::kRunning;
    if (job.size_before == job.file->num_bytes) return End(job, {});
    transfers.Start(
        id,
        {.url = FileUrl(options_.settings.endpoint, options_.reference, listing_.commit, job.file->name),
         .token = options_.settings.token,
         .from = job.size_before,
         .stall_seconds = options_.stall_seconds},
        *job.partial);
    return {};
  }

  Status End(Job& job, const TransferOutcome& outcome) {
    const int64_t came = job.partial->size() - job.size_before;
    if (came > 0) bytes_fetched_ += came;
    Status status = outcome.status;
    double retry_after = outcome.retry_after;
    if (status.ok()) {
      status = job.partial->Finish();
      if (status.ok()) {
        Done(job);
        return {};
      }
      if (status.code() == StatusCode::kDataLoss) {
        LogWarning(fmt::format("{}: {}", job.file->name, status.message()));
        if (++job.wrong_digests >= kMaxWrongDigests) return status;
        status = Status(StatusCode::kUnavailable, status.message());
      }
    }
    if (status.code() != StatusCode::kUnavailable) return status;
    job.failures = came > 0 ? 1 : job.failures + 1;
    if (job.failures > options_.num_retries) return GivenUp(status, job.failures);
    const std::string text =
        fmt::format("{}: try {} failed: {}", job.file->name, job.failures, status.message());
    job.failures < kFailuresToTell ? LogDebug(text) : LogWarning(text);
    job.partial.reset();
    job.state = Job::State::kWaiting;
    job.not_before = Clock::now() + Seconds(WaitAfter(options_, job.failures, retry_after));
    return {};
  }

  static void Done(Job& job) {
    job.partial.reset();
    job.state = Job::State::kDone;
  }

  void Report() {
    if (!options_.progress || Clock::now() < next_report_) return;
    next_report_ = Clock::now() + Seconds(0.1);
    PullProgress progress{.bytes_total = num_bytes(), .bytes_fetched = bytes_fetched_};
    for (const Job& job : jobs_) {
      if (job.state == Job::State::kDone) {
        progress.bytes_done += job.file->num_bytes;
      } else if (job.partial != nullptr) {
        progress.bytes_done += job.partial->size();
        if (job.state == Job::State::kRunning)
          progress.bytes_fetched += std::max<int64_t>(job.partial->size() - job.size_before, 0);
      }
    }
    options_.progress(progress);
  }

  const PullOptions& options_;
  const Listing& listing_;
  const fs::path repository_;
  std::vector<Job> jobs_;
  int64_t bytes_fetched_ = 0;
  Clock::time_point next_report_;
};

// A small file, whole or not at all.
Status WriteText(const fs::path& path, std::string_view text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  return WriteFile(path.string(), text, {.flush = false, .mode = 0644});
}

// The name of a file in the snapshot: a link to its bytes.
Status Link(const fs::path& repository, const fs::path& snapshot, const RemoteFile& file) {
  const fs::path link = snapshot / file.name;
  std::error_code error;
  fs::create_directories(link.parent_path(), error);
  const fs::path target = fs::path(repository / "blobs" / file.digest).lexically_relative(link.parent_path());
  if (fs::read_symlink(link, error) == target && !error) return {};
  const fs::path temporary = link.string() + fmt::format(".{}.new", getpid());
  fs::remove(temporary, error);
  fs::create_symlink(target, temporary, error);
  if (!error) fs::rename(temporary, link, error);
  if (!error) return {};
  return FailedPrecondition(fmt::format("{}: cannot link: {}", link.string(), error.message()));
}

// Fetches config.json and hands the plan to the caller.
Status Check(const PullOptions& options, const Listing& listing, const std::vector<const RemoteFile*>& files,
             const Download& download) {
  PullPlan plan = {.commit = listing.commit,
                   .num_files = static_cast<int64_t>(files.size()),
                   .bytes_to_come = download.BytesToCome()};
  const fs::path repository = RepositoryFolder(options.settings.cache, options.reference);
  const RemoteFile* config = nullptr;
  for (const RemoteFile* file : files) {
    plan.num_bytes += file->num_bytes;
    if (file->name.ends_with(".safetensors")) plan.weight_bytes += file->num_bytes;
    if (file->name == "config.json") config = file;
  }
  DSV4_RETURN_IF_ERROR(download.CheckSpace());
  if (config != nullptr) {
    Download first(options, listing, {config});
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::unique_ptr<Transfers> transfers, Transfers::Make());
    DSV4_RETURN_IF_ERROR(first.Run(*transfers));
    plan.config = repository / "blobs" / config->digest;
  }
  std::error_code error;
  const fs::space_info space = fs::space(repository, error);
  plan.bytes_free = error ? -1 : static_cast<int64_t>(space.available);
  return options.check(plan);
}

}  // namespace

Result<PullResult> Pull(const PullOptions& options) {
  Result<Listing> listing = Error(Internal("pull: not begun"));
  {
    DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Transfers> transfers, Transfers::Make());
    listing = FetchListing(options, *transfers);
  }
  if (!listing) return Error(listing.error());
  std::vector<const RemoteFile*> files;
  for (const RemoteFile& file : listing->files) {
    if (options.all_files || IsNeeded(file.name)) files.push_back(&file);
  }
  const auto is_weights = [](const RemoteFile* file) { return file->name.ends_with(".safetensors"); };
  const bool gguf = std::ranges::any_of(listing->files,
                                        [](const RemoteFile& file) { return file.name.ends_with(".gguf"); });
  if (gguf && std::ranges::none_of(files, is_weights) && !options.all_files) {
    return Error(
        NotFound("its weights are GGUF, the format of llama.cpp; dsv4 reads safetensors: pull the repository "
                 "that they were made from"));
  }
  if (files.empty())
    return Error(NotFound(
        fmt::format("none of its {} belongs to a checkpoint", Counted(listing->files.size(), "file"))));

  Download download(options, *listing, files);
  if (options.check) DSV4_TRY(Check(options, *listing, files, download));
  PullResult result;
  {
    DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Transfers> transfers, Transfers::Make());
    DSV4_TRY(download.Run(*transfers));
  }
  const fs::path repository = RepositoryFolder(options.settings.cache, options.reference);
  result.snapshot = repository / "snapshots" / listing->commit;
  for (const RemoteFile* file : files) DSV4_TRY(Link(repository, result.snapshot, *file));
  if (options.reference.revision != listing->commit)
    DSV4_TRY(WriteText(repository / "refs" / options.reference.revision, listing->commit));
  result.commit = listing->commit;
  result.num_files = static_cast<int64_t>(files.size());
  for (const RemoteFile* file : files) result.num_bytes += file->num_bytes;
  result.bytes_fetched = download.bytes_fetched();
  return result;
}

}  // namespace dsv4::hub
