// TokenConstraint: what may be sampled next, as a grammar or a forced prefix decides. One per sequence. The engine
// calls those of different sequences from several threads at one time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"

namespace dsv4::sampling {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Bit id % 64 of word id / 64 says whether id may come next; ids past the last word may not. Empty: everything may. Valid until
  // the next call. Without a bit the sequence fails with WhyNone.
  virtual std::span<const uint64_t> Allowed() = 0;
  // Why the last Allowed() had no bit.
  virtual Status WhyNone() const { return Internal("sampling: its constraint allows no token"); }

  // Works until `deadline` on what Allowed() is about to say, and goes on there the next time; true once it is there. Allowed() itself waits for all of it.
  virtual bool Prepare(std::chrono::steady_clock::time_point /*deadline*/) { return true; }

  // Whether Allowed() is empty until a token comes that ends this (a grammar that waits for its first marker). Tokens can then be chosen
  // by logits alone, without asking.
  virtual bool IsWaiting() const { return false; }

  // Another at the same place, for what may come behind tokens that have not been sampled.
  virtual std::unique_ptr<TokenConstraint> Copy() const = 0;

  // `token` was sampled; a stop token ends the sequence and is not told.
  virtual void Accept(int32_t token) = 0;

  // For drafts of what comes next (engine/speculator.cc); neither accepts anything, and neither changes what Allowed() says.
  // How many of the first tokens of `draft` may come, one after the other: it is cut there.
  virtual size_t CountAllowed(std::span<const int32_t> draft) { return draft.size(); }
  // Up to `most` tokens that spell the text that must come here, whatever is sampled. It may come in other tokens.
  virtual std::vector<int32_t> Forced(size_t /*most*/) { return {}; }
};

}  // namespace dsv4::sampling
