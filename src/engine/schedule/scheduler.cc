// One step's grants: a token for each answer, then shares of owners, of which prompts get parts by age and by
// what they lack.
#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <map>
#include <utility>

namespace dsv4::engine {
namespace {

// Shares tokens among prompts.
class Grants {
 public:
  explicit Grants(std::span<const Pending> pending) : pending_(pending), granted_(pending.size()) {}

  // Shares among prompts of an owner, or of several that are as one: the lowest priority number first.
  void ShareByPriority(std::vector<size_t> prompts, int64_t room) {
    room_ = room;
    std::ranges::stable_sort(prompts,
                             [&](size_t a, size_t b) { return pending_[a].priority < pending_[b].priority; });
    for (auto begin = prompts.begin(); begin != prompts.end();) {
      const auto end = std::find_if(
          begin, prompts.end(), [&](size_t i) { return pending_[i].priority != pending_[*begin].priority; });
      Share({begin, end});
      begin = end;
    }
  }

  // Most that a step can read of these.
  int64_t Wanted(const std::vector<size_t>& prompts) const {
    int64_t wanted = 0;
    for (const size_t i : prompts) wanted += Wanted(i);
    return wanted;
  }

  int64_t of(size_t i) const { return granted_[i]; }

 private:
  // Among prompts of one priority.
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

  int64_t Wanted(size_t i) const {
    const Pending& prompt = pending_[i];
    return prompt.max_chunk > 0 ? std::min(prompt.num_tokens, prompt.max_chunk) : prompt.num_tokens;
  }

  int64_t Grant(size_t i, int64_t most) {
    const int64_t more = std::min({Wanted(i) - granted_[i], most, room_});
    granted_[i] += more;
    room_ -= more;
    return more;
  }

  std::span<const Pending> pending_;
  std::vector<int64_t> granted_;
  int64_t room_ = 0;
};

void ShareAmongOwners(std::span<const Pending> pending, const std::vector<size_t>& prompts, int64_t room,
                      Grants& grants) {
  std::map<uint64_t, std::vector<size_t>> by_owner;
  for (const size_t i : prompts) by_owner[pending[i].owner].push_back(i);
  if (by_owner.size() <= 1 || by_owner.size() == prompts.size()) return grants.ShareByPriority(prompts, room);
  std::vector<std::pair<int64_t, std::vector<size_t>>> owners;
  for (auto& [owner, its] : by_owner) {
    const int64_t wanted = grants.Wanted(its);
    owners.emplace_back(wanted, std::move(its));
  }
  // The owner that wants least comes first: what is left of its share is the others'.
  std::ranges::sort(owners);
  auto left = static_cast<int64_t>(owners.size());
  for (auto& [wanted, its] : owners) {
    const int64_t share = std::min(wanted, (room + left - 1) / left);
    grants.ShareByPriority(std::move(its), share);
    room -= share;
    --left;
  }
}

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

  Grants grants(pending);
  ShareAmongOwners(pending, prefills, room, grants);
  for (size_t i = 0; i < pending.size(); ++i) {
    if (grants.of(i) > 0) chunks.push_back({i, grants.of(i)});
  }
  return chunks;
}

}  // namespace dsv4::engine
