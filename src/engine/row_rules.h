// RowRules: how the rows of a queued step choose their tokens, where a row wants more than its logits (model::Model::Choose).
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "engine/sequence.h"

namespace dsv4::engine {

class RowRules {
 public:
  // A row whose token is not taken.
  void AddUnwanted() { rules_.emplace_back(); }
  // The row of the sequence's next token; its mask is ready. False: its constraint allows none. Then sequence.sampled says so, and the row is
  // an unwanted one.
  bool AddNext(Sequence& sequence);
  // Rows behind the tokens of a draft, one for each, behind AddNext of the sequence. Returns how many tokens may be taken of them: the rest are behind a mask that is late, or
  // one that allows nothing.
  size_t AddDraft(const Sequence& sequence, std::span<const int32_t> draft);

  // Valid until the constraint of a sequence is asked again.
  std::span<const sampling::TokenRule> rules() const { return rules_; }

 private:
  std::vector<sampling::TokenRule> rules_;
  std::deque<std::vector<uint64_t>> masks_;  // Masks behind drafts, to which rules point.
};

}  // namespace dsv4::engine
