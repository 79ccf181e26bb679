#include "engine/scheduler.h"

#include <algorithm>

namespace dsv4::engine {

std::vector<ScheduledChunk> ScheduleStep(std::span<const Pending> pending, const StepBudget& budget) {
  std::vector<ScheduledChunk> chunks;
  int64_t room = std::max<int64_t>(budget.max_tokens, 1);
  std::vector<size_t> prefills;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i].num_tokens > 1) prefills.push_back(i);
    if (pending[i].num_tokens != 1 || room == 0) continue;
    chunks.push_back({i, 1});
    --room;
  }
  if (prefills.empty()) return chunks;
  if (!chunks.empty()) room = std::min(room, std::max<int64_t>(budget.max_prefill_beside_decode, 1));

  std::vector<int64_t> granted(pending.size());
  const auto grant = [&](size_t i, int64_t most) {
    int64_t wanted = pending[i].num_tokens;
    if (pending[i].max_chunk > 0) wanted = std::min(wanted, pending[i].max_chunk);
    const int64_t more = std::min({wanted - granted[i], most, room});
    granted[i] += more;
    room -= more;
  };
  grant(prefills[0], std::max<int64_t>(room / 4, 1));
  std::stable_sort(prefills.begin(), prefills.end(),
                   [&](size_t a, size_t b) { return pending[a].num_tokens < pending[b].num_tokens; });
  for (const size_t i : prefills) grant(i, room);
  for (size_t i = 0; i < pending.size(); ++i) {
    if (granted[i] > 0) chunks.push_back({i, granted[i]});
  }
  return chunks;
}

}  // namespace dsv4::engine
