// Downloads a checkpoint from a hub that speaks Hugging Face's resolve API, into the cache layout of
// huggingface_hub (hub/reference.h).
//
// Several files at a time. A download that ends early goes on where it stopped, in this call or a later one.
// Every file's digest is checked before it gets its name, so a snapshot has only whole files, and its ref is
// written last. Two processes that pull the same file wait for each other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/status.h"
#include "hub/reference.h"

namespace dsv4::hub {

struct PullProgress {
  int64_t bytes_done = 0;  // Part of bytes_total; files that were there count as done.
  int64_t bytes_total = 0;
  int64_t bytes_fetched = 0;  // By this call.
};

// A fetch that is about to begin, told before the first byte of a weight.
struct PullPlan {
  std::string commit;
  int64_t num_files = 0;
  int64_t num_bytes = 0;     // Sum over all files.
  int64_t weight_bytes = 0;  // The safetensors alone.
  int64_t bytes_to_come = 0;
  int64_t bytes_free = 0;                       // On the disk of the cache; -1 where the system does not say.
  std::optional<std::filesystem::path> config;  // config.json, where the repository has one.
};

struct PullOptions {
  Reference reference;
  Settings settings;
  bool all_files = false;  // Else those of IsNeeded.
  bool verify = false;     // Files that are there already are hashed again.
  int num_transfers = 4;   // At a time.
  int num_retries = 8;     // In a row without a byte more, before a file is given up.
  double retry_seconds =
      0.5;  // Before the first; doubled for each, up to 30. A server's Retry-After counts instead, up to 300.
  double stall_seconds = 30;  // A transfer of less than 1 KiB a second for so long is begun anew.
  std::function<void(const PullProgress&)> progress;  // A few times a second; may be empty.
  std::function<bool()> cancelled;                    // Asked as often; may be empty.
  std::function<Status(const PullPlan&)>
      check;  // Once; an error is that of Pull, and no weight is fetched. May be empty.
};

struct PullResult {
  std::filesystem::path snapshot;
  std::string commit;
  int64_t num_files = 0;
  int64_t num_bytes = 0;      // Sum over all files.
  int64_t bytes_fetched = 0;  // By this call.
};

// Errors name the file and the last cause:
//   NotFound            no such repository, revision or file
//   FailedPrecondition  the token is missing or may not
//   ResourceExhausted   no space, which is checked before the first byte, or a full disk
//   DataLoss            a digest is wrong three times
//   Unavailable         retries are used up
//   InvalidArgument     the hub's answers make no sense
//   Cancelled
// What came stays and is used by the next call.
Result<PullResult> Pull(const PullOptions& options);

}  // namespace dsv4::hub
