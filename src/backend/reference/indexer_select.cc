#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

namespace {

// Score of every visible entry for one query; `q` is [num_heads, width].
std::vector<double> Scores(std::span<const double> q, std::span<const double> weights,
                           const ops::PagedRows& keys, int64_t visible) {
  const int64_t width = keys.width;
  std::vector<double> scores(static_cast<size_t>(visible));
  std::vector<double> key(static_cast<size_t>(width));
  for (int64_t j = 0; j < visible; ++j) {
    LoadPagedRow(keys, j, key);
    double sum = 0.0;
    for (size_t head = 0; head < weights.size(); ++head) {
      // The release holds the dot products and their weighted relu as bf16 tensors.
      const double dot =
          HeldAs(keys.dtype, Dot(q.data() + static_cast<int64_t>(head) * width, key.data(), width));
      sum += HeldAs(keys.dtype, weights[head] * std::max(dot, 0.0));
    }
    scores[static_cast<size_t>(j)] = HeldAs(keys.dtype, sum);
  }
  return scores;
}

// The `top_k` highest scores, equal ones by lowest index, in ascending order of index. NaN counts as lowest, so that the
// order stays one.
std::vector<int32_t> TopK(const std::vector<double>& scores, int64_t top_k) {
  const auto rank = [&](int32_t i) {
    const double score = scores[static_cast<size_t>(i)];
    return std::isnan(score) ? -std::numeric_limits<double>::infinity() : score;
  };
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + top_k, order.end(),
                   [&](int32_t a, int32_t b) { return rank(a) > rank(b) || (rank(a) == rank(b) && a < b); });
  order.resize(static_cast<size_t>(top_k));
  std::sort(order.begin(), order.end());
  return order;
}

void Select(const ops::IndexerSelectArgs& args, const ops::IndexerSequence& sequence, int64_t token) {
  const int64_t num_heads = args.q.shape[1];
  const int64_t top_k = args.selected.shape[1];
  const int64_t position = sequence.first_position + token - sequence.token_begin;
  const int64_t visible = (position + 1) / args.ratio;
  std::vector<int32_t> chosen;
  if (visible <= top_k) {
    chosen.resize(static_cast<size_t>(visible));
    std::iota(chosen.begin(), chosen.end(), 0);
  } else {
    std::vector<double> q(static_cast<size_t>(num_heads * args.q.shape[2]));
    std::vector<double> weights(static_cast<size_t>(num_heads));
    LoadRow(args.q, token, q);
    LoadRow(args.weights, token, weights);
    chosen = TopK(Scores(q, weights, sequence.keys, visible), top_k);
  }
  chosen.resize(static_cast<size_t>(top_k), -1);
  std::copy(chosen.begin(), chosen.end(), args.selected.as<int32_t>() + token * top_k);
}

}  // namespace

Status IndexerSelect(ops::OpContext& context, const ops::IndexerSelectArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  for (const ops::IndexerSequence& sequence : args.sequences) {
    context.threads().ParallelFor(sequence.num_tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) Select(args, sequence, sequence.token_begin + i);
    });
  }
  return {};
}

}  // namespace dsv4::backend::reference
