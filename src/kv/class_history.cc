// ClassHistory: a vector of the last classes, cut at its front as it grows.
#include "kv/class_history.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/text.h"

namespace dsv4::kv {

void ClassHistory::Append(std::span<const int32_t> classes) {
  length_ += static_cast<int64_t>(classes.size());
  if (look_back_ == 0) return;
  classes_.insert(classes_.end(), classes.begin(), classes.end());
  const int64_t surplus = FirstNeeded(std::max<int64_t>(0, length_ - max_rewind_)) - first();
  if (surplus > 0) classes_.erase(classes_.begin(), classes_.begin() + surplus);
}

Status ClassHistory::Cut(int64_t length) {
  DSV4_CHECK(length >= 0 && length <= length_) << length << " of " << length_;
  if (look_back_ == 0) {
    length_ = length;
    return {};
  }
  if (!CanCut(length)) {
    return FailedPrecondition(
        fmt::format("token classes: taking back {} of {} needs those from position {}, kept from {}",
                    length_ - length, Counted(length_, "token"), FirstNeeded(length), first()));
  }
  classes_.resize(classes_.size() - std::min(classes_.size(), static_cast<size_t>(length_ - length)));
  length_ = length;
  return {};
}

void ClassHistory::LookBack(std::span<int32_t> out) const {
  DSV4_CHECK(static_cast<int64_t>(out.size()) <= look_back_) << out.size() << " of " << look_back_;
  for (size_t k = 1; k <= out.size(); ++k) {
    const auto back = static_cast<int64_t>(k);
    out[k - 1] = back > length_ ? kNoClass : classes_[classes_.size() - k];
  }
}

std::span<const int32_t> ClassHistory::From(int64_t length) const {
  if (look_back_ == 0) return {};
  DSV4_CHECK(CanCut(length)) << length << " of " << length_;
  const int64_t skipped = FirstNeeded(length) - first();
  return std::span(classes_).subspan(static_cast<size_t>(skipped));
}

void ClassHistory::Restore(int64_t end, std::span<const int32_t> classes) {
  length_ = end;
  classes_.assign(classes.begin(), classes.end());
}

}  // namespace dsv4::kv
