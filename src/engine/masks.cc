// Turns of owners at masks that are late.
#include "engine/masks.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/parallel.h"

namespace dsv4::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Time beyond kMaskAtOnce in a step, for the masks of one owner one after the other, and for those of all
// owners.
constexpr std::chrono::microseconds kMaskOfOwner(2000);
constexpr std::chrono::microseconds kMaskOfAll(4000);

}  // namespace

void Masks::Prepare() {
  std::vector<Sequence*> constrained;
  for (const auto& sequence : core_.running) {
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
  if (core_.options.threads != nullptr)
    core_.options.threads->ParallelFor(std::ssize(constrained), 1, prepare);
  else
    prepare(0, std::ssize(constrained));
  std::erase_if(constrained, [](const Sequence* sequence) { return !sequence->mask_late; });
  std::map<uint64_t, std::vector<Sequence*>> owners;
  for (Sequence* const sequence : constrained) owners[sequence->request.owner].push_back(sequence);
  // The next step begins behind the owner that this one ends with.
  const Clock::time_point end = Clock::now() + kMaskOfAll;
  auto owner = owners.upper_bound(last_owner_);
  for (size_t i = 0; i < owners.size() && Clock::now() < end; ++i, ++owner) {
    if (owner == owners.end()) owner = owners.begin();
    const Clock::time_point until = std::min(end, Clock::now() + kMaskOfOwner);
    for (Sequence* const sequence : owner->second) {
      if (Clock::now() >= until) break;
      sequence->mask_late = !sequence->request.constraint->Prepare(until);
    }
    last_owner_ = owner->first;
  }
}

}  // namespace dsv4::engine
