// Seconds that something took.
#pragma once

#include <chrono>

namespace dsv4 {

// Runs from when it is made.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Adds the seconds of its life to a sum.
class AddsSeconds {
 public:
  explicit AddsSeconds(double& sum) : sum_(sum) {}
  ~AddsSeconds() { sum_ += stopwatch_.seconds(); }
  AddsSeconds(const AddsSeconds&) = delete;
  AddsSeconds& operator=(const AddsSeconds&) = delete;

 private:
  double& sum_;
  const Stopwatch stopwatch_;
};

}  // namespace dsv4
