// Sequences that others need not wait for: the next mask is not ready, or the events are not taken.
#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include "engine/sequence.h"

namespace dsv4::engine {
namespace {

using std::chrono::microseconds;

// Time beyond that in a step, for the masks of one owner one after the other, and for those of all owners.
constexpr microseconds kMaskOfOwner(2000);
constexpr microseconds kMaskOfAll(4000);

}  // namespace

void Engine::PrepareMasks() {
  std::vector<Sequence*> constrained;
  for (const auto& sequence : running_) {
    sequence->mask_late = false;
    if (sequence->request.constraint != nullptr && sequence->max_tokens > 0)
      constrained.push_back(sequence.get());
  }
  if (constrained.empty()) return;
  const auto prepare = [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      Sequence& sequence = *constrained[i];
      sequence.mask_late = !sequence.request.constraint->Prepare(Clock::now() + kMaskAtOnce);
    }
  };
  const auto count = static_cast<int64_t>(constrained.size());
  if (options_.threads != nullptr)
    options_.threads->ParallelFor(count, 1, prepare);
  else
    prepare(0, count);
  std::erase_if(constrained, [](const Sequence* sequence) { return !sequence->mask_late; });
  // The next step begins behind the owner that this one ended with.
  std::map<uint64_t, std::vector<Sequence*>> owners;
  for (Sequence* const sequence : constrained) owners[sequence->request.owner].push_back(sequence);
  const Clock::time_point end = Clock::now() + kMaskOfAll;
  auto owner = owners.upper_bound(last_mask_owner_);
  for (size_t i = 0; i < owners.size() && Clock::now() < end; ++i, ++owner) {
    if (owner == owners.end()) owner = owners.begin();
    const Clock::time_point until = std::min(end, Clock::now() + kMaskOfOwner);
    for (Sequence* const sequence : owner->second) {
      if (Clock::now() >= until) break;
      sequence->mask_late = !sequence->request.constraint->Prepare(until);
    }
    last_mask_owner_ = owner->first;
  }
}

bool Engine::IsUnread(const Sequence& sequence) const {
  return sequence.unread_since &&
         std::chrono::duration<double>(Clock::now() - *sequence.unread_since).count() >=
             options_.unread_seconds;
}

void Engine::SetUnread(const std::function<std::optional<Clock::time_point>(RequestId)>& since) {
  for (const auto& sequence : running_) sequence->unread_since = since(sequence->id);
  for (const auto& sequence : waiting_) sequence->unread_since = since(sequence->id);
}

size_t Engine::LongestUnread() const {
  size_t longest = running_.size();
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!IsUnread(*running_[i])) continue;
    if (longest == running_.size() || *running_[i]->unread_since < *running_[longest]->unread_since)
      longest = i;
  }
  return longest;
}

}  // namespace dsv4::engine
