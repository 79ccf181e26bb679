// StepPrices: seconds of a step by its rows, learnt from steps that ran. Two curves: steps that only decode,
// and steps that read prompts.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace dsv4::engine {

// Seconds over rows: a point for each half octave of rows, the average of the latest steps there, and
// straight lines between them.
class PriceCurve {
 public:
  static constexpr int64_t kMostRows = int64_t{1} << 20;

  void Saw(int64_t rows, double seconds);
  // A larger step that took less shows what a smaller one may take. Beyond the largest point in proportion,
  // which is the most that it can be. 0 where nothing is known.
  double At(int64_t rows) const;
  bool empty() const { return largest_ == 0; }
  // Rows of the smallest and largest point; 0: none.
  int64_t smallest() const { return smallest_; }
  int64_t largest() const { return largest_; }

 private:
  static constexpr int kPoints = 41;
  struct Point {
    double rows = 0.0;  // 0: not seen.
    double seconds = 0.0;
    int64_t seen = 0;
    int64_t age = 0;  // Steps of other points since.
  };
  static int IndexOf(int64_t rows);

  std::array<Point, kPoints> points_ = {};
  int64_t smallest_ = 0;
  int64_t largest_ = 0;
};

class StepPrices {
 public:
  // A step of `decode` rows of answers and `prefill` tokens of prompts took so long.
  void RecordStep(int64_t decode, int64_t prefill, double seconds);
  // Seconds of a step that only decodes; 0 while nothing is known. More rows than were seen are taken for no
  // dearer, until they are seen.
  double Decode(int64_t rows) const { return decode_.At(std::min(rows, decode_.largest())); }
  // Seconds of one that reads `prefill` > 0 tokens of prompts as well; 0 while nothing is known.
  double Mixed(int64_t decode, int64_t prefill) const;
  bool knows_prefill() const { return !mixed_.empty(); }
  // Rows of the largest step with prompts that was seen.
  int64_t largest_mixed() const { return mixed_.largest(); }

 private:
  PriceCurve decode_;
  PriceCurve mixed_;  // By all rows.
};

}  // namespace dsv4::engine
