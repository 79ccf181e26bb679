// List of the logs in which kernels note times of their stages, and the file to which they go.
#include "backend/cuda/device/sync/stage_times.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace dsv4::backend::cuda {
namespace {

// The last of a log.
constexpr uint64_t kWrittenRecords = uint64_t{1} << 15;
static_assert(kWrittenRecords <= kStageRecords);

std::vector<ReadStageLog>& Logs() {
  static std::vector<ReadStageLog> logs;
  return logs;
}

}  // namespace

bool RegisterStageLog(ReadStageLog read) {
  Logs().push_back(read);
  return true;
}

void WriteStageTimes() {
  const char* const path = std::getenv("DSV4_CUDA_STAGE_TIMES");
  if (path == nullptr || Logs().empty()) return;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "w"), std::fclose);
  if (file == nullptr) {
    std::perror(path);
    return;
  }
  std::vector<StageRecord> records(kStageRecords);
  for (const ReadStageLog read : Logs()) {
    unsigned long long count = 0;
    if (!read(records.data(), &count)) continue;
    for (uint64_t i = count - std::min<uint64_t>(count, kWrittenRecords); i < count; ++i) {
      const StageRecord& record = records[i % kStageRecords];
      std::fprintf(file.get(), "%u %u %u %u %lld", static_cast<unsigned>(record.kernel), record.block,
                   record.num_blocks, record.sm, static_cast<long long>(record.num_bytes));
      for (const uint64_t time : record.times)
        std::fprintf(file.get(), " %llu", static_cast<unsigned long long>(time));
      std::fprintf(file.get(), "\n");
    }
  }
}

}  // namespace dsv4::backend::cuda
