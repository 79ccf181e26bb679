// Tensors for op tests: owned, guarded memory, and seeded values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace dsv4::test {

// A tensor in the middle of a larger allocation. Everything outside its elements (before, after, and between
// rows) holds bytes of 0xFF, which are NaN in bf16 and f32. So do the elements themselves until they are set.
// An op that reads outside sees NaN, and one that writes outside is found by GuardsIntact. One that forgets
// an output leaves NaN.
class TestTensor {
 public:
  // `row_gap` elements lie between the rows of the first dimension.
  TestTensor(DType dtype, const Shape& shape, int64_t row_gap = 0);
  // Contiguous, holding `values` rounded to the dtype (integers for I32 and I64).
  TestTensor(DType dtype, const Shape& shape, std::span<const double> values, int64_t row_gap = 0);

  // A copy would leave its view pointing at the original's memory.
  TestTensor(const TestTensor&) = delete;
  TestTensor& operator=(const TestTensor&) = delete;
  TestTensor(TestTensor&&) = default;
  TestTensor& operator=(TestTensor&&) = default;

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: stands for its view in op arguments.

  void Set(std::span<const double> values);
  // In row-major order of the shape.
  std::vector<double> Values() const;
  // The elements' bytes in the same order, for bitwise comparison.
  std::vector<std::byte> Bytes() const;
  bool GuardsIntact() const;

 private:
  int64_t row_elements() const;
  std::byte* RowBegin(int64_t row) const;

  std::vector<std::byte> memory_;
  TensorView view_;
  int64_t row_stride_ = 0;
};

// Values rounded to a dtype, as a tensor of it would hold them.
std::vector<double> Rounded(DType dtype, std::span<const double> values);

// Deterministic values; a seed names the sequence.
class Random {
 public:
  explicit Random(uint32_t seed) : generator_(seed) {}
  double Normal() { return normal_(generator_); }
  double Uniform() { return std::uniform_real_distribution<double>(0.0, 1.0)(generator_); }
  int64_t Below(int64_t bound) { return std::uniform_int_distribution<int64_t>(0, bound - 1)(generator_); }
  std::vector<double> Normals(int64_t count, double sigma = 1.0);
  // Normal values of magnitudes from 2^-30 to 2^30, with zeros and bf16 subnormals strewn in.
  std::vector<double> Spread(int64_t count);

 private:
  std::mt19937 generator_;
  std::normal_distribution<double> normal_;
};

// How far a correctly rounded result of dtype may lie from the exact value. The sum before the rounding is
// over terms whose magnitudes add up to `magnitude`. The bound is half a step of the dtype, plus the slack of
// a double sum. Where the value passes through fp32 on its way to bf16, fp32's own step is added.
double RoundingBound(DType dtype, double exact, double magnitude);

// Expects |got - want| <= RoundingBound everywhere; reports the worst place. `magnitudes` may be empty: then
// |want|.
void ExpectRounded(DType dtype, std::span<const double> got, std::span<const double> want,
                   std::span<const double> magnitudes, const std::string& what);

}  // namespace dsv4::test
