// Keys that each query of an attention call sees.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "backend/cpu/cpu_ops.h"

namespace dsv4::backend::cpu {

// Attention over all that queries see, or over a part of it.
struct AttentionProblem {
  std::string_view op;  // For errors.
  TensorView q;
  TensorView selected;  // May be null.
  float softmax_scale = 0.0F;
  int64_t window_size = 0;  // 0: no window.
  int64_t ratio = 0;        // 0: no entries.
  EntryShard shard;
  std::span<const ops::AttentionSequence> sequences;
};

struct Query {
  const ops::AttentionSequence* sequence = nullptr;
  int64_t token = 0;
  int64_t window_begin = 0;
  int64_t window_end = 0;
  int64_t num_entries = 0;      // It sees rows [0, num_entries) of the entries here,
  std::vector<int32_t> chosen;  // or, if not empty, these in ascending order.
};

// In order of tokens. InvalidArgument as the contracts say of `selected`.
Result<std::vector<Query>> AttentionQueries(ops::OpContext& context, const AttentionProblem& problem);

// Neighbouring queries of a sequence, as many as share a row to advantage and keep their logits in the cache.
std::vector<std::span<const Query>> NeighbouringQueries(std::span<const Query> queries, int64_t num_heads,
                                                        int64_t window_size);

}  // namespace dsv4::backend::cpu
