// The few numbers that checks compare tensors by. Sums in double.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsv4::diag {

double Rms(std::span<const float> values);
double MaxAbs(std::span<const float> values);
bool AllFinite(std::span<const float> values);
// 1 for two zero vectors, 0 when only one is zero.
double Cosine(std::span<const float> a, std::span<const float> b);
// The same of numbers about their mean, which is their correlation. 0 where the product of both lengths is at
// most `least`, or no number.
double Correlation(std::span<const double> a, std::span<const double> b, double least = 0);
// max |a - b| / max(rms(a), rms(b)); 0 when they are equal bit for bit or both zero, infinity when only one
// is finite.
double RelativeError(std::span<const float> a, std::span<const float> b);
// The upper one of two; 0 without values. None is NaN.
double Median(std::vector<double> values);
// The lowest index on ties.
int64_t ArgMax(std::span<const float> values);
// The highest value's lead over the second.
double Margin(std::span<const float> values);
// The logarithm of softmax(logits)[token].
double LogProbability(std::span<const float> logits, int32_t token);
// KL(softmax(a) || softmax(b)) in nats.
double SoftmaxKl(std::span<const float> a, std::span<const float> b);

}  // namespace dsv4::diag
