// Scores are fp32: the dot products of the release's FP4-rounded queries and keys are exact in it, so there they equal the
// reference's; other bf16 operands may differ where a dot product lies next to a bf16 midpoint.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

namespace {

constexpr int64_t kKeysPerTask = 256;

// Scores of entries [begin, end) for one query: `weights` [num_heads], `q` its packed heads.
void Score(const Kernels& kernels, const ops::PagedRows& keys, int64_t begin, int64_t end,
           const Activations& q, const float* weights, float* scores) {
  const int64_t count = end - begin;
  std::vector<const uint8_t*> rows;
  for (int64_t j = begin; j < end; ++j) {
    rows.push_back(At(keys.pages[static_cast<size_t>(j / keys.rows_per_page)], keys.dtype,
                      j % keys.rows_per_page * keys.width));
  }
  std::vector<float> dots(static_cast<size_t>(q.num_rows() * count));
  MultiplyPointers(PlanDots(kernels, keys.dtype), rows, keys.width, q, dots.data(), count);
  std::vector<double> sums(static_cast<size_t>(count), 0.0);
  // With bf16 the release holds the dot products, their weighted relu and the sum as bf16 tensors.
  const bool bf16 = keys.dtype == DType::kBF16;
  for (int64_t h = 0; h < q.num_rows(); ++h) {
    const float* const row = dots.data() + h * count;
    for (int64_t j = 0; j < count; ++j) {
      const float dot = bf16 ? RoundToBf16(row[j]) : row[j];
      const float relu = dot < 0.0F ? 0.0F : dot;  // NaN stays.
      const double product = static_cast<double>(weights[h]) * static_cast<double>(relu);
      sums[static_cast<size_t>(j)] +=
          bf16 ? static_cast<double>(RoundToBf16(static_cast<float>(product))) : product;
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = static_cast<float>(HeldAs(keys.dtype, sums[static_cast<size_t>(j)]));
  }
}

// The `top_k` highest scores, equal ones by lowest index, in ascending order of index. NaN counts as lowest.
void TopK(std::vector<float>& scores, int64_t top_k, int32_t* selected) {
  for (float& score : scores) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  }
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + top_k, order.end(), [&](int32_t a, int32_t b) {
    const float score_a = scores[static_cast<size_t>(a)];
    const float score_b = scores[static_cast<size_t>(b)];
    return score_a > score_b || (score_a == score_b && a < b);
  });
  std::sort(order.begin(), order.begin() + top_k);
  std::copy_n(order.begin(), top_k, selected);
}

struct Query {
  const ops::IndexerSequence* sequence;
  int64_t token;
  int64_t visible;
};

}  // namespace

Status IndexerSelect(ops::OpContext& context, const ops::IndexerSelectArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Kernels& kernels = KernelsOf(context);
  const int64_t num_heads = args.q.shape[1];
  const int64_t width = args.q.shape[2];
  const int64_t top_k = args.selected.shape[1];
  std::vector<Query> queries;
  for (const ops::IndexerSequence& sequence : args.sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
      const int64_t token = sequence.token_begin + i;
      const int64_t visible = (sequence.first_position + i + 1) / args.ratio;
      if (visible > top_k) {
        queries.push_back({&sequence, token, visible});
        continue;
      }
      int32_t* const selected = args.selected.as<int32_t>() + token * top_k;
      std::iota(selected, selected + visible, 0);
      std::fill(selected + visible, selected + top_k, -1);
    }
  }
  if (queries.empty() || top_k == 0) return {};
  const std::vector<float> weights = LoadAll(kernels, args.weights);
  // A few queries at a time: their scores fit into memory at any context length, and one query is split by entries.
  const size_t group = static_cast<size_t>(4 * context.threads().num_threads());
  for (size_t first = 0; first < queries.size(); first += group) {
    const std::span<const Query> now =
        std::span(queries).subspan(first, std::min(group, queries.size() - first));
    std::vector<Activations> q;
    std::vector<std::vector<float>> scores;
    struct Task {
      size_t query;
      int64_t begin;
    };
    std::vector<Task> tasks;
    for (size_t i = 0; i < now.size(); ++i) {
      std::vector<const uint8_t*> heads;
      for (int64_t h = 0; h < num_heads; ++h) {
        heads.push_back(At(args.q.data, args.q.dtype, (now[i].token * num_heads + h) * width));
      }
      q.emplace_back(context.threads(), kernels, PlanDots(kernels, args.q.dtype), heads, args.q.dtype, width);
      scores.emplace_back(static_cast<size_t>(now[i].visible));
      for (int64_t begin = 0; begin < now[i].visible; begin += kKeysPerTask) tasks.push_back({i, begin});
    }
    context.threads().ParallelFor(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Task& task = tasks[static_cast<size_t>(i)];
        const Query& query = now[task.query];
        Score(kernels, query.sequence->keys, task.begin, std::min(query.visible, task.begin + kKeysPerTask),
              q[task.query], weights.data() + query.token * num_heads,
              scores[task.query].data() + task.begin);
      }
    });
    context.threads().ParallelFor(static_cast<int64_t>(now.size()), 1, [&](int64_t begin, int64_t end) {
      for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        TopK(scores[i], top_k, args.selected.as<int32_t>() + now[i].token * top_k);
      }
    });
  }
  return {};
}

}  // namespace dsv4::backend::cpu
