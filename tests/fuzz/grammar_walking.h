// A text under a grammar, byte by byte, as fuzz targets of grammars walk it.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/matcher.h"
#include "grammar/testing.h"

namespace dsv4::grammar::testing {

// The part of `text` that the grammar takes; what does not fit is skipped, so that most texts go somewhere.
// Aborts where a mask is empty or what must come is not taken.
struct Walked {
  std::string text;
  bool complete;
};
inline Walked Walk(const std::shared_ptr<const Program>& program, std::string_view text) {
  Matcher matcher(program, ToyTrie(), {kStop});
  TokenMask mask(matcher.num_ids());
  matcher.Mask(mask);
  if (mask.Count() == 0) std::abort();
  std::string accepted = matcher.ForcedBytes();
  if (accepted.size() > 4096 || !matcher.AcceptBytes(accepted).ok()) std::abort();
  size_t next_mask = 0;
  for (const char c : text) {
    if (!matcher.AcceptBytes({&c, 1}).ok()) continue;
    accepted.push_back(c);
    const std::string forced = matcher.ForcedBytes();
    if (forced.size() > 4096 || !matcher.AcceptBytes(forced).ok()) std::abort();
    accepted += forced;
    if (accepted.size() < next_mask) continue;
    next_mask = accepted.size() + 8;
    matcher.Mask(mask);
    if (mask.Count() == 0) std::abort();
  }
  return {std::move(accepted), matcher.IsComplete()};
}

}  // namespace dsv4::grammar::testing
