// Fills the files of a plan: reads, recodes, writes, reads back and compares, unit by unit.
//
// Work is cut into row blocks and byte ranges whose borders depend on shapes alone. So neither files nor
// reports depend on the number of threads. A thread holds one row block at a time: its fp32 values and their
// bytes in the target format, written and read back. Source pages are handed back as soon as they were read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "convert/journal.h"
#include "convert/plan.h"
#include "io/random_access_file.h"
#include "model/config/config.h"

namespace dsv4::convert {

class Worker {
 public:
  // Borrows everything. `files` are the plan's shards.
  Worker(const Plan& plan, const model::ModelConfig& config, std::span<const io::RandomAccessFile> files,
         ThreadPool& pool)
      : plan_(plan), config_(config), files_(files), pool_(pool) {}

  // Does the units [begin, end) and reports on each in order. DataLoss and InvalidArgument for a source that
  // cannot be believed (NaN, infinities, bad scales or expert ids). OutOfRange for a value that bf16 cannot
  // hold. All name the tensor.
  Result<std::vector<UnitRecord>> Convert(size_t begin, size_t end);

  // Hashes of what the units read and wrote, from the files as they are now. `comparisons` stays empty.
  Result<std::vector<UnitRecord>> Hash(size_t begin, size_t end);

 private:
  const Plan& plan_;
  const model::ModelConfig& config_;
  std::span<const io::RandomAccessFile> files_;
  ThreadPool& pool_;
};

}  // namespace dsv4::convert
