// The directory a conversion fills: beside the final one as "<directory>.partial", and under its name only
// when complete.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "convert/plan.h"
#include "io/random_access_file.h"

namespace dsv4::convert {

class Destination {
 public:
  // FailedPrecondition when `directory` is there and not an empty directory, lies inside `source`, or has a
  // ".partial" beside it without a journal of ours. Touches nothing.
  static Result<Destination> Prepare(const std::string& source, const std::string& directory);

  const std::string& directory() const { return directory_; }
  const std::string& partial() const { return partial_; }
  std::string journal_path() const;
  // Whether an interrupted conversion waits to be resumed.
  bool is_resumed() const { return is_resumed_; }

  // Creates the partial directory where there is none. ResourceExhausted when the disk has less room than the
  // conversion still needs, and says how much.
  Status Create(int64_t num_bytes) const;
  // Opens the plan's files, headers written.
  Result<std::vector<io::RandomAccessFile>> OpenShards(const Plan& plan) const;
  // Everything beside the shards: the index, config.json, hf_quant_config.json, and every other file of the
  // source but weights. Files are copied with their folder; hidden ones and links to folders are left out.
  Status WriteOtherFiles(const Plan& plan, const std::string& config_json,
                         const std::string& hf_quant_config) const;
  // Gives the directory its name, once all has reached the disk, and removes the journal.
  Status Publish(const std::vector<io::RandomAccessFile>& shards) const;
  // Removes the partial directory.
  void Discard() const;

 private:
  std::string source_;
  std::string directory_;
  std::string partial_;
  bool is_resumed_ = false;
};

}  // namespace dsv4::convert
