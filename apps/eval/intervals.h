// Confidence intervals of 95 %. They say what other documents of the same kind would give; the run itself
// repeats exactly.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"

namespace dsv4::apps {

// `low` and `high` are NaN where there is too little to say.
struct Interval {
  double value = 0;
  double low = 0;
  double high = 0;
};
// "12.345 (11.9 to 12.8)"; without an interval the value alone.
std::string ToText(const Interval& interval, int digits);
// {"value", "low", "high"}; null where there is none.
Json ToJson(const Interval& interval);

// Interval of a share of successes, by Wilson's formula.
Interval ShareInterval(int64_t successes, int64_t trials);

// A sum and how many terms it has: neighbours in a text depend on each other, so blocks of them are drawn,
// not tokens.
struct Block {
  double sum = 0;
  double count = 0;
};
// Interval of sum / count over all blocks, by the bootstrap: 2000 draws with a fixed seed.
Interval MeanInterval(std::span<const Block> blocks);

// Gathers terms into blocks of at most kBlockTerms; a text begins a new one.
class Blocks {
 public:
  static constexpr int kBlockTerms = 64;
  void BeginText() { begins_ = true; }
  void Add(double term);
  std::span<const Block> blocks() const { return blocks_; }
  double sum() const;
  double count() const;

 private:
  std::vector<Block> blocks_;
  bool begins_ = true;
};

}  // namespace dsv4::apps
