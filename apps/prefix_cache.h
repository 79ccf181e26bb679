// Sequence states kept between the turns of one conversation, so that a new prompt computes only what it adds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/sequence_state.h"

namespace dsv4::apps {

class PrefixCache {
 public:
  // Keeps a state and the tokens it holds (tokens.size() == state.length()); the oldest goes when there are more than kMaxKept.
  // A turn keeps two: the prompt's end, where the next turn's prompt branches off when it drops the old reasoning, and
  // the answer's end, where it goes on otherwise.
  void Keep(std::span<const int32_t> tokens, kv::SequenceState state);

  // A state that holds the longest usable proper prefix of `prompt`, or nullopt. A kept state whose tokens run past the common
  // prefix is rewound, as far as its rings allow.
  std::optional<kv::SequenceState> Find(std::span<const int32_t> prompt) const;

  void Clear() { kept_.clear(); }

 private:
  static constexpr size_t kMaxKept = 4;
  struct Kept {
    std::vector<int32_t> tokens;
    kv::SequenceState state;
  };
  std::vector<Kept> kept_;
};

}  // namespace dsv4::apps
