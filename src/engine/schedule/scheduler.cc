// One step's grants: a token for each answer, then prompts by age and by what they lack.
#include "engine/schedule/scheduler.h"

#include <algorithm>

namespace dsv4::engine {
namespace {

// Shares tokens among prompts of one priority.
class Grants {
 public:
  Grants(std::span<const Pending> pending, int64_t room)
      : pending_(pending), granted_(pending.size()), room_(room) {}

  void Share(std::vector<size_t> prompts) {
    const auto by = [&](auto key) {
      std::ranges::stable_sort(prompts,
                               [&](size_t a, size_t b) { return key(pending_[a]) < key(pending_[b]); });
    };
    const bool late = std::ranges::any_of(prompts, [&](size_t i) { return pending_[i].overdue; });
    int64_t for_old = late ? room_ : (room_ + 1) / 2;
    by([](const Pending& prompt) { return prompt.arrival; });
    for (const size_t i : prompts) for_old -= Grant(i, for_old);
    by([](const Pending& prompt) { return prompt.num_tokens; });
    for (const size_t i : prompts) Grant(i, room_);
  }

  int64_t of(size_t i) const { return granted_[i]; }

 private:
  int64_t Grant(size_t i, int64_t most) {
    int64_t wanted = pending_[i].num_tokens;
    if (pending_[i].max_chunk > 0) wanted = std::min(wanted, pending_[i].max_chunk);
    const int64_t more = std::min({wanted - granted_[i], most, room_});
    granted_[i] += more;
    room_ -= more;
    return more;
  }

  std::span<const Pending> pending_;
  std::vector<int64_t> granted_;
  int64_t room_;
};

}  // namespace

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

  Grants grants(pending, room);
  std::ranges::stable_sort(prefills,
                           [&](size_t a, size_t b) { return pending[a].priority < pending[b].priority; });
  for (auto begin = prefills.begin(); begin != prefills.end();) {
    const auto end = std::find_if(begin, prefills.end(),
                                  [&](size_t i) { return pending[i].priority != pending[*begin].priority; });
    grants.Share({begin, end});
    begin = end;
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    if (grants.of(i) > 0) chunks.push_back({i, grants.of(i)});
  }
  return chunks;
}

}  // namespace dsv4::engine
