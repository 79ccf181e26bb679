// Lazily sorted order of logits, block by block.
#include "sampling/ranking.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace dsv4::sampling {
namespace {

constexpr float kLeast = -std::numeric_limits<float>::infinity();
constexpr size_t kFirstLook = 64;  // A language model is rarely in doubt between more.

}  // namespace

float Highest(std::span<const float> values) {
  float lanes[kBlock];
  std::fill(std::begin(lanes), std::end(lanes), kLeast);
  size_t i = 0;
  for (; i + kBlock <= values.size(); i += kBlock) {
    for (size_t j = 0; j < kBlock; ++j) lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
  }
  for (size_t j = 0; i + j < values.size(); ++j) lanes[j] = std::max(lanes[j], values[i + j]);
  return *std::max_element(std::begin(lanes), std::end(lanes));
}

size_t FirstPlaceOf(float value, std::span<const float> values) {
  size_t i = 0;
  for (; i + kBlock <= values.size(); i += kBlock) {
    unsigned found = 0;
    for (size_t j = 0; j < kBlock; ++j) found |= values[i + j] == value ? 1U : 0U;
    if (found != 0) break;
  }
  while (values[i] != value) ++i;
  return i;
}

Ranking::Ranking(std::span<const float> logits) : logits_(logits) {
  for (size_t i = 0; i < logits.size(); i += kBlock) highest_.push_back(Highest(Block(i)));
}

const Ranked* Ranking::At(size_t rank) {
  if (rank >= ranked_.size() && !complete_) {
    RankAtLeast(std::max({rank + 1, kFirstLook, 8 * ranked_.size()}));
  }
  return rank < ranked_.size() ? &ranked_[rank] : nullptr;
}

std::span<const float> Ranking::Block(size_t begin) const {
  return logits_.subspan(begin, std::min(kBlock, logits_.size() - begin));
}

void Ranking::RankAtLeast(size_t count) {
  // So many blocks have an entry as high as this, and all entries that are as high are the best ones.
  float lowest = std::numeric_limits<float>::lowest();
  complete_ = count >= highest_.size();
  if (!complete_) {
    std::vector<float> highest = highest_;
    const auto nth = highest.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(highest.begin(), nth, highest.end(), std::greater<>());
    complete_ = *nth == kLeast;
    if (!complete_) lowest = *nth;
  }
  ranked_.clear();
  for (size_t i = 0; i < logits_.size(); i += kBlock) {
    if (highest_[i / kBlock] < lowest) continue;
    for (size_t id = i; id < i + Block(i).size(); ++id) {
      if (logits_[id] >= lowest) ranked_.push_back({logits_[id], static_cast<int32_t>(id)});
    }
  }
  std::sort(ranked_.begin(), ranked_.end());
}

}  // namespace dsv4::sampling
