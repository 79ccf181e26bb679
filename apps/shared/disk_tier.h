// A model on the host that is larger than the memory it may use. Its routed experts are read from disk when
// they are chosen (docs/expert-tiers.md, "From disk").
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "apps/shared/model_flags.h"
#include "apps/shared/model_source.h"
#include "base/status.h"
#include "io/checkpoint.h"
#include "io/chosen_reads.h"
#include "io/disk_rate.h"
#include "model/planning/memory_plan.h"

namespace dsv4::apps {

struct DiskTier {
  // Bytes.
  int64_t experts = 0;    // Routed ones, in their files.
  int64_t rest = 0;       // Part of the weights that is in memory all the time,
  int64_t beside = 0;     // as are the states of all sequences and a step.
  int64_t available = 0;  // Bytes of memory.
  double chosen = 0;      // Bytes of chosen experts, by a token.
  // Context of each sequence that is planned: with all experts in memory, or, where that does not do, with
  // none.
  int64_t longest_context = 0;
  double piece = 0;  // Bytes of an expert's weight, the mean: what is read at once.
  io::DiskRate disk;

  // Whether all is in memory without this.
  bool fits() const { return experts + rest + beside <= available; }
  // Whether there is memory for all that is no expert.
  bool rest_fits() const { return rest + beside <= available; }
  // Share of the experts that there is memory for: the share of chosen ones that are not read, if all are
  // chosen equally often.
  double ShareInMemory() const;
  // Rate that the disk allows at most, of one sequence.
  double TokensPerSecond() const;
};

// Without `disk`. The bytes are those of headers; the errors of model::PlanMemory.
Result<DiskTier> PlanDiskTier(const model::ModelConfig& config,
                              const std::shared_ptr<const io::Checkpoint>& checkpoint,
                              const model::ModelOptions& options, const model::MemoryRequest& request,
                              int64_t available);

// Whether the model of `source` reads its experts from disk, on a backend of the host. It does where it is
// larger than the memory that this machine or its control group has left, or where the flags say so. A
// warning then says so, with the disk's rate, which takes half a second to measure. Null otherwise, and where
// not even the rest fits, which is a warning too. Where memory is so scarce that a plan was made, `left` is
// told what it leaves, unless null. Errors: those of PlanDiskTier; InvalidArgument where the flags ask for
// what is in no file; Unimplemented with ranks.
Result<std::shared_ptr<io::ChosenReads>> ReadsFromDisk(
    const ModelFlags& flags, const ModelSource& source, const model::ModelConfig& config,
    const std::shared_ptr<const io::Checkpoint>& checkpoint, const model::ModelOptions& options,
    const model::MemoryRequest& request, RoomLeft* left = nullptr);

// "1.81 GB of routed experts are read from disk when they are chosen: ..., at most 4.2 tok/s".
std::string ToText(const DiskTier& tier);

}  // namespace dsv4::apps
