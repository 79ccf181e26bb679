// Profiles of tensors: sizes of rows, columns or numbers, comparable by correlation.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/weight.h"
#include "tensor/tensor.h"

namespace dsv4::diag {

// Sums of squares, one for each row or column. Columns are measured by `most` rows, spread evenly.
using Squares = std::vector<double>;
constexpr int64_t kSampledRows = 1024;  // Enough to measure columns.

Squares RowSquares(const Weight& weight);
Squares ColumnSquares(const Weight& weight, int64_t most = kSampledRows);
Squares NumberSquares(const TensorView& numbers, int64_t begin, int64_t count);

// Logarithms about their mean, of length 1. Empty where a value is no number or all are alike.
using Profile = std::vector<float>;

Profile Standard(Squares squares);
// Numbers that are logarithms already.
Profile StandardLogs(std::vector<double> logs);
Profile RowProfile(const Weight& weight);
Profile ColumnProfile(const Weight& weight);
Profile NumberProfile(const TensorView& numbers, int64_t begin, int64_t count);

// Correlation in standard deviations from chance; 0 where there is nothing to compare.
double Tie(const Profile& rows, const Profile& columns);

}  // namespace dsv4::diag
