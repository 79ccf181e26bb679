// Rules of rows: what a sequence's sampler wants, and the mask of its constraint, in front of a draft and within it.
#include "engine/row_rules.h"

#include <algorithm>
#include <chrono>

#include "engine/masks.h"

namespace dsv4::engine {
namespace {

bool AllowsNone(std::span<const uint64_t> allowed) {
  return !allowed.empty() && std::ranges::all_of(allowed, [](uint64_t word) { return word == 0; });
}

bool Permits(std::span<const uint64_t> permitted, int32_t token) {
  const auto id = static_cast<size_t>(token);
  return permitted.empty() || (id / 64 < permitted.size() && (permitted[id / 64] >> (id % 64) & 1) != 0);
}

}  // namespace

bool RowRules::AddNext(Sequence& sequence) {
  std::span<const uint64_t> allowed;
  sampling::TokenConstraint* const constraint = sequence.request.constraint.get();
  if (constraint != nullptr) allowed = constraint->Allowed();
  if (AllowsNone(allowed)) {
    sequence.sampled.emplace_back(Error(constraint->WhyNone()));
    AddUnwanted();
    return false;
  }
  rules_.push_back(sequence.sampler.RuleAfter({}));
  rules_.back().permitted = allowed;
  return true;
}

size_t RowRules::AddDraft(const Sequence& sequence, std::span<const int32_t> draft) {
  const size_t end = rules_.size() + draft.size();
  std::unique_ptr<sampling::TokenConstraint> constraint;
  if (sequence.request.constraint != nullptr && !draft.empty())
    constraint = sequence.request.constraint->Copy();
  size_t num_ready = 0;
  for (const int32_t token : draft) {
    // Nothing comes behind a stop token or one that is forbidden, and a constraint is not told of them.
    if (sequence.request.stop_tokens.contains(token) || !Permits(rules_.back().permitted, token)) break;
    std::span<const uint64_t> allowed;
    if (constraint != nullptr) {
      constraint->Accept(token);
      if (!constraint->Prepare(std::chrono::steady_clock::now() + kMaskAtOnce)) break;
      allowed = constraint->Allowed();
      if (AllowsNone(allowed)) break;
    }
    rules_.push_back(sequence.sampler.RuleAfter(draft.first(++num_ready)));
    if (!allowed.empty()) rules_.back().permitted = masks_.emplace_back(allowed.begin(), allowed.end());
  }
  rules_.resize(end);
  return num_ready;
}

}  // namespace dsv4::engine
