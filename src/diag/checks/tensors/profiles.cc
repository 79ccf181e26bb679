// Sums of squares by row and column, their logarithms and correlations.
#include "diag/checks/tensors/profiles.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace dsv4::diag {

Squares RowSquares(const Weight& weight) {
  std::vector<float> row(static_cast<size_t>(weight.cols));
  Squares squares(static_cast<size_t>(weight.rows));
  for (int64_t i = 0; i < weight.rows; ++i) {
    DequantizeRow(weight, i, row.data());
    for (const float value : row) squares[static_cast<size_t>(i)] += double{value} * double{value};
  }
  return squares;
}

Squares ColumnSquares(const Weight& weight, int64_t most) {
  std::vector<float> row(static_cast<size_t>(weight.cols));
  Squares squares(static_cast<size_t>(weight.cols));
  const int64_t count = std::min(most, weight.rows);
  for (int64_t i = 0; i < count; ++i) {
    DequantizeRow(weight, i * weight.rows / count, row.data());
    for (size_t j = 0; j < row.size(); ++j) squares[j] += double{row[j]} * double{row[j]};
  }
  return squares;
}

Squares NumberSquares(const TensorView& numbers, int64_t begin, int64_t count) {
  const float* const values = numbers.as<const float>() + begin;
  Squares squares(static_cast<size_t>(count));
  std::transform(values, values + count, squares.begin(), [](float x) { return double{x} * double{x}; });
  return squares;
}

Profile Standard(Squares squares) {
  for (double& square : squares) square = std::log(square + 1e-24);
  return StandardLogs(std::move(squares));
}

Profile StandardLogs(std::vector<double> logs) {
  const auto count = static_cast<double>(logs.size());
  const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / count;
  double sum = 0;
  for (double& log : logs) {
    log -= mean;
    sum += log * log;
  }
  if (!std::isfinite(sum) || sum < 1e-12 * count) return {};
  Profile profile(logs.size());
  std::ranges::transform(logs, profile.begin(),
                         [&](double log) { return static_cast<float>(log / std::sqrt(sum)); });
  return profile;
}

Profile RowProfile(const Weight& weight) { return Standard(RowSquares(weight)); }
Profile ColumnProfile(const Weight& weight) { return Standard(ColumnSquares(weight)); }
Profile NumberProfile(const TensorView& numbers, int64_t begin, int64_t count) {
  return Standard(NumberSquares(numbers, begin, count));
}

double Tie(const Profile& rows, const Profile& columns) {
  if (rows.empty() || rows.size() != columns.size()) return 0;
  return std::inner_product(rows.begin(), rows.end(), columns.begin(), 0.0) *
         std::sqrt(static_cast<double>(rows.size()));
}

}  // namespace dsv4::diag
