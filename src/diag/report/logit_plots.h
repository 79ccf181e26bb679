// How sure the model is at each position, and whether a change of its logits matters there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "diag/report/plot.h"

namespace dsv4::diag {

// One value a position.
struct PositionLogits {
  std::vector<double> margin;  // Margin of the highest logit over the second.
  std::vector<double> top1;    // Probability of the most probable token,
  std::vector<double> top5;    // and of the five most probable together.
};

// `logits` is [positions, vocab_size].
PositionLogits MeasureLogits(std::span<const float> logits, int64_t vocab_size);

// The largest |a - b| of each position; infinity where only one is finite.
std::vector<double> LargestChanges(std::span<const float> a, std::span<const float> b, int64_t vocab_size);

struct LogitChange {
  std::string name;  // "token by token"
  std::vector<double> largest;
};
// Margins beside changes: where a change reaches half the margin, another token can win.
Plot MarginPlot(const PositionLogits& logits, const std::vector<LogitChange>& changes);
Plot TopPlot(const PositionLogits& logits);

}  // namespace dsv4::diag
