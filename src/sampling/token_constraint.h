// TokenConstraint: what may be sampled next, as a grammar or a forced prefix decides. One per sequence. The engine
// calls those of different sequences from several threads at one time.
#pragma once

#include <cstdint>
#include <span>

namespace dsv4::sampling {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Bit id % 64 of word id / 64 says whether id may come next; ids past the last word may not. Empty: everything may. Valid until
  // the next call. At least one bit that the sampler may use is set, else sampling fails with an error.
  virtual std::span<const uint64_t> Allowed() = 0;

  // `token` was sampled; a stop token ends the sequence and is not told.
  virtual void Accept(int32_t token) = 0;
};

}  // namespace dsv4::sampling
