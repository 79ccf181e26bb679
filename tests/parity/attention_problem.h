// Attention problems with random numbers, and what the contract's formula says of them.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

namespace dsv4::test {

struct Geometry {
  int64_t num_heads;
  int64_t head_dim;
  int64_t window_size;
  int64_t ratio;
  int64_t top_k;  // 0: no list.
};

// One sequence: keys by position, entries by index.
struct Context {
  int64_t first_position = 0;
  int64_t num_tokens = 0;
  std::vector<double>
      keys;  // [first_position + num_tokens, head_dim]; those outside every window are never put.
  std::vector<double> entries;  // [visible, head_dim]
};

struct Problem {
  Geometry geometry;
  DType dtype = DType::kBF16;
  float softmax_scale = 0.0F;
  std::vector<double> q;
  std::vector<double> sink;
  std::vector<double> selected;  // [num_tokens, top_k]
  std::vector<Context> contexts;
};

Problem MakeProblem(const Geometry& geometry, DType dtype, const std::vector<int64_t>& first_positions,
                    const std::vector<int64_t>& lengths, uint32_t seed);

struct Expected {
  std::vector<double> values;
  std::vector<double> magnitudes;
  std::vector<double> slack;  // The most that rounding in fp32 may move a result by.
};
// The formula of the contract; `round_weights` false gives ordinary softmax attention with a sink.
Expected Formula(const Problem& problem, bool round_weights);

}  // namespace dsv4::test
