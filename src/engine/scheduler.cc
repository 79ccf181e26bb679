#include "engine/scheduler.h"

#include <algorithm>

namespace dsv4::engine {

std::vector<ScheduledChunk> ScheduleStep(std::span<const Pending> pending, int64_t max_step_tokens) {
  std::vector<ScheduledChunk> chunks;
  int64_t room = std::max<int64_t>(max_step_tokens, 1);
  const auto schedule = [&](bool decoding) {
    for (size_t i = 0; i < pending.size() && room > 0; ++i) {
      const int64_t wanted = pending[i].num_tokens;
      if (wanted <= 0 || (wanted == 1) != decoding) continue;
      const int64_t granted = std::min(wanted, room);
      chunks.push_back({i, granted});
      room -= granted;
    }
  };
  schedule(/*decoding=*/true);
  schedule(/*decoding=*/false);
  return chunks;
}

}  // namespace dsv4::engine
