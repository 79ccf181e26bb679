#include "apps/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dsv4::apps {

void PrefixCache::Keep(std::span<const int32_t> tokens, kv::SequenceState state) {
  DSV4_CHECK(static_cast<int64_t>(tokens.size()) == state.length())
      << tokens.size() << " tokens, state of " << state.length();
  if (kept_.size() == kMaxKept) kept_.erase(kept_.begin());
  kept_.push_back({{tokens.begin(), tokens.end()}, std::move(state)});
}

std::optional<kv::SequenceState> PrefixCache::Find(std::span<const int32_t> prompt) const {
  if (prompt.empty()) return std::nullopt;
  std::optional<kv::SequenceState> best;
  for (const Kept& kept : kept_) {
    const auto common =
        std::mismatch(kept.tokens.begin(), kept.tokens.end(), prompt.begin(), prompt.end()).first;
    // The prompt's last token is always computed: its logits are wanted.
    const int64_t usable =
        std::min<int64_t>(common - kept.tokens.begin(), static_cast<int64_t>(prompt.size()) - 1);
    if (usable <= 0 || (best && best->length() >= usable)) continue;
    Result<kv::SequenceState> state = kept.state.Fork();
    if (state && state->Rewind(state->length() - usable).ok()) best = std::move(*state);
  }
  return best;
}

}  // namespace dsv4::apps
