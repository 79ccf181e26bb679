// Ranking: logits from the highest to the lowest, lowest id first on ties; what every choice here is made by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dsv4::sampling {

struct Ranked {
  float value;
  int32_t id;
  bool operator<(const Ranked& other) const {
    return value != other.value ? value > other.value : id < other.id;
  }
};

// Loops over the vocabulary go in blocks. Their lanes stay apart and they have no early exit, so that the
// compiler makes vector code of them.
inline constexpr size_t kBlock = 64;

// -infinity of none.
float Highest(std::span<const float> values);
// The first of equals; `value` is among `values`.
size_t FirstPlaceOf(float value, std::span<const float> values);

// The entries of `logits`, which outlive this, from the best to the worst, ranked only as far as a caller
// looks; -inf is left out.
class Ranking {
 public:
  explicit Ranking(std::span<const float> logits);
  // Null behind the last.
  const Ranked* At(size_t rank);

 private:
  std::span<const float> Block(size_t begin) const;
  void RankAtLeast(size_t count);

  std::span<const float> logits_;
  std::vector<float> highest_;  // Highest logit of each block.
  std::vector<Ranked> ranked_;
  bool complete_ = false;
};

}  // namespace dsv4::sampling
