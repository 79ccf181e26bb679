// Rewrites a checkpoint in other weight formats: any dialect the loader reads in, the release's names out.
//
// Memory does not grow with the checkpoint: a thread holds one row block as fp32 and in the new format. A row
// block has about 2^18 elements, or one row of FP8 blocks where that is more. Every written byte is read back
// and compared. The report says for each kind of module whether its values are the source's bit for bit, and
// if not how far off they are. Output and report do not depend on the number of threads or on interruptions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "convert/plan.h"
#include "convert/recode.h"

namespace dsv4::convert {

struct Progress {
  int64_t done_bytes = 0;     // Bytes of the source's tensors.
  int64_t resumed_bytes = 0;  // The part of them that an earlier run did.
  int64_t total_bytes = 0;
};

struct ConvertOptions {
  FormatRequest formats;
  int num_threads = 1;
  int64_t max_shard_bytes = int64_t{4} << 30;
  // Source bytes between two entries of the journal: what an interruption loses.
  int64_t batch_bytes = int64_t{64} << 20;
  // Called now and then; false stops the conversion, to be resumed. May be empty.
  std::function<bool(const Progress&)> progress;
};

// Linears of one kind that went from one format to another.
struct ModuleReport {
  std::string module;  // "attn.wq_a"
  std::string from;    // As `inspect` names formats.
  std::string to;
  int64_t num_tensors = 0;
  bool kept = false;  // Bytes were copied.
  Comparison comparison;
  std::string worst_tensor;  // The one with the largest relative error; empty when all are lossless.
  double worst_error = 0;    // Its relative RMS.
};

struct ConvertReport {
  std::vector<ModuleReport> modules;  // In the order of the tensor table.
  int64_t num_other_tensors = 0;      // Norms and other small tensors, copied.
  int64_t num_draft_and_vision = 0;   // Copied under their own names.
  int64_t source_bytes = 0;           // Tensors'.
  int64_t output_bytes = 0;           // Bytes of files with tensors.
  int64_t resumed_bytes = 0;          // Bytes of the source, done by an earlier run and found intact.
  int64_t num_shards = 0;

  bool lossless() const;
};

// Converts the checkpoint in `source` into the new directory `destination`. What an interrupted run left in
// "<destination>.partial" is checked against both checkpoints and continued; a run that found the source
// faulty leaves nothing.
//   NotFound, InvalidArgument, DataLoss, OutOfRange   the source, as the loader would say it, or what it cannot become
//   FailedPrecondition   the destination is taken, or the interrupted run had another source or other options
//   ResourceExhausted    no room on the disk; the partial directory stays
//   Cancelled            `progress` said so; the partial directory stays
Result<ConvertReport> Convert(const std::string& source, const std::string& destination,
                              const ConvertOptions& options);

}  // namespace dsv4::convert
