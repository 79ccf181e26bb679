// ClassHistory: the classes of a sequence's last tokens (tokenizer/token_classes.h), by which rows of n-gram
// tables are found before a pass. They lie in the host's memory: a few numbers a sequence.
//
// A sequence keeps what its next token looks back to, and what it looks back to when tokens are taken back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace dsv4::kv {

// No class: an image's position, or one before the first token. N-grams end at it.
inline constexpr int32_t kNoClass = -1;

class ClassHistory {
 public:
  // `look_back`: tokens in front of the next one that are wanted; 0: nothing is kept.
  ClassHistory(int64_t look_back, int64_t max_rewind) : look_back_(look_back), max_rewind_(max_rewind) {}

  int64_t length() const { return length_; }
  // Adds a sequence's next tokens. Without a look-back their number alone counts.
  void Append(std::span<const int32_t> classes);
  // Whether it can go back to `length`, which is at most length(): always by max_rewind from the longest
  // length reached.
  bool CanCut(int64_t length) const {
    return look_back_ == 0 || length == 0 || FirstNeeded(length) >= first();
  }
  // Forgets the tokens from `length` on. FailedPrecondition where CanCut is false.
  Status Cut(int64_t length);

  // out[k - 1]: the class of the token k back from the next one; kNoClass before the first.
  void LookBack(std::span<int32_t> out) const;

  // Classes of positions FirstNeeded(length) .. length() - 1: what a copy must have to be cut to `length`.
  std::span<const int32_t> From(int64_t length) const;
  int64_t FirstNeeded(int64_t length) const { return look_back_ < length ? length - look_back_ : 0; }
  // Becomes what From(length) was taken of at `end` tokens.
  void Restore(int64_t end, std::span<const int32_t> classes);

 private:
  int64_t first() const { return length_ - static_cast<int64_t>(classes_.size()); }

  int64_t look_back_;
  int64_t max_rewind_;
  int64_t length_ = 0;
  std::vector<int32_t> classes_;  // The last positions.
};

}  // namespace dsv4::kv
