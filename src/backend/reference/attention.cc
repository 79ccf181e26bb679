// Attention, a part of it, and parts put together.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

namespace {

// Queries and keys, of all that they see or of a part of it.
struct Problem {
  std::string_view op;
  const TensorView& q;
  const TensorView& selected;
  float softmax_scale;
  int64_t window_size;  // 0: no window.
  int64_t ratio;
  EntryShard shard;
  std::span<const ops::AttentionSequence> sequences;
  bool ordered = false;
};

// Rows that one query sees: window positions [window_begin, window_end) and some compressed entries, by their
// rows.
struct VisibleSet {
  int64_t window_begin = 0;
  int64_t window_end = 0;
  std::vector<int64_t> rows;

  int64_t num_window() const { return window_end - window_begin; }
  int64_t num_keys() const { return num_window() + static_cast<int64_t>(rows.size()); }
};

Result<VisibleSet> Visible(const Problem& problem, const ops::AttentionSequence& sequence, int64_t token) {
  VisibleSet visible;
  const int64_t position = sequence.first_position + token - sequence.token_begin;
  if (problem.window_size > 0) {
    visible.window_begin = std::max<int64_t>(0, position - problem.window_size + 1);
    visible.window_end = position + 1;
  }
  if (problem.ratio == 0) return visible;
  const int64_t num_entries = (position + 1) / problem.ratio;
  if (problem.selected.is_null()) {
    visible.rows.resize(static_cast<size_t>(problem.shard.NumRows(num_entries)));
    std::iota(visible.rows.begin(), visible.rows.end(), 0);
    return visible;
  }
  const int64_t top_k = problem.selected.shape[1];
  const int64_t most = std::min(top_k, num_entries);
  std::vector<int64_t> entries;
  for (int64_t i = 0; i < top_k; ++i) {
    const int64_t entry = LoadInteger(problem.selected, token * top_k + i);
    const int64_t before = entries.empty() ? -1 : entries.back();
    if (problem.ordered && (i < most ? entry <= before : entry != -1)) {
      return Error(
          InvalidArgument(fmt::format("op {}: ordered: selected[{}, {}]: {}, want {} rising entries, then -1",
                                      problem.op, token, i, entry, most)));
    }
    if (entry == -1) continue;
    if (entry < 0 || entry >= num_entries) {
      return Error(
          InvalidArgument(fmt::format("op {}: selected[{}, {}]: {}, want -1 or 0 to {} at position {}",
                                      problem.op, token, i, entry, num_entries - 1, position)));
    }
    entries.push_back(entry);
  }
  // In order of entry, so that the sum does not depend on the order of the list.
  std::sort(entries.begin(), entries.end());
  const auto repeat = std::adjacent_find(entries.begin(), entries.end());
  if (repeat != entries.end()) {
    return Error(InvalidArgument(fmt::format("op {}: selected[{}]: entry {} more than once, want no repeats",
                                             problem.op, token, *repeat)));
  }
  for (const int64_t entry : entries) {
    if (problem.shard.Has(entry)) visible.rows.push_back(problem.shard.Row(entry));
  }
  return visible;
}

// Key (and value) i of the visible set.
void LoadKey(const ops::AttentionSequence& sequence, const VisibleSet& visible, int64_t i,
             std::span<double> out) {
  if (i < visible.num_window()) {
    LoadRingRow(sequence.window, visible.window_begin + i, out);
  } else {
    LoadPagedRow(sequence.entries, visible.rows[static_cast<size_t>(i - visible.num_window())], out);
  }
}

// All heads of one query: weighted values relative to the largest logit.
struct Sums {
  std::vector<double> values;  // [num_heads, head_dim]
  std::vector<double> max;     // By head.
  std::vector<double> sum;     // Sum of the weights, the sink's included.
};

// The keys are shared by the heads, so each is read once for the logits and once as a value. Without keys the
// largest logit is -infinity. `sink` is empty for a part.
Sums Attend(const Problem& problem, const ops::AttentionSequence& sequence, const VisibleSet& visible,
            int64_t token, const std::vector<double>& sink) {
  const int64_t head_dim = problem.q.shape[2];
  const size_t dim = static_cast<size_t>(head_dim);
  const auto num_heads = static_cast<size_t>(problem.q.shape[1]);
  const size_t num_keys = static_cast<size_t>(visible.num_keys());
  std::vector<double> q(num_heads * dim);
  LoadRow(problem.q, token, q);

  std::vector<double> key(dim);
  std::vector<double> weights(num_heads * num_keys);  // First the logits l_t, then r(exp(l_t - M)).
  for (size_t t = 0; t < num_keys; ++t) {
    LoadKey(sequence, visible, static_cast<int64_t>(t), key);
    for (size_t h = 0; h < num_heads; ++h) {
      weights[h * num_keys + t] =
          Dot(q.data() + h * dim, key.data(), head_dim) * static_cast<double>(problem.softmax_scale);
    }
  }

  constexpr double kNone = -std::numeric_limits<double>::infinity();
  Sums sums{.values = std::vector<double>(num_heads * dim, 0.0),
            .max = std::vector<double>(num_heads, kNone),
            .sum = std::vector<double>(num_heads, 0.0)};
  for (size_t h = 0; h < num_heads && num_keys > 0; ++h) {
    const std::span<double> row = std::span(weights).subspan(h * num_keys, num_keys);
    const double max = *std::max_element(row.begin(), row.end());
    sums.max[h] = max;
    if (!sink.empty()) sums.sum[h] = std::exp(sink[h] - max);
    for (double& weight : row) {
      weight = std::exp(weight - max);
      sums.sum[h] += weight;
      weight = HeldAs(problem.q.dtype, weight);  // Rounded for the value product only.
    }
  }

  for (size_t t = 0; t < num_keys; ++t) {
    LoadKey(sequence, visible, static_cast<int64_t>(t), key);
    for (size_t h = 0; h < num_heads; ++h) {
      AddScaled(weights[h * num_keys + t], key, std::span(sums.values).subspan(h * dim, dim));
    }
  }
  return sums;
}

// Calls store(token, sums) for every query, on any thread.
template <typename Store>
Status ForEachQuery(ops::OpContext& context, const Problem& problem, const std::vector<double>& sink,
                    const Store& store) {
  for (const ops::AttentionSequence& sequence : problem.sequences) {
    std::vector<VisibleSet> visible;
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
      DSV4_ASSIGN_OR_RETURN_STATUS(visible.emplace_back(),
                                   Visible(problem, sequence, sequence.token_begin + i));
    }
    context.threads().ParallelFor(sequence.num_tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t token = sequence.token_begin + i;
        store(token, Attend(problem, sequence, visible[static_cast<size_t>(i)], token, sink));
      }
    });
  }
  return {};
}

}  // namespace

Status Attention(ops::OpContext& context, const ops::AttentionArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const std::vector<double> sink = LoadAll(args.sink);
  if (sink.empty() || args.q.shape[2] == 0) return {};
  const auto dim = static_cast<size_t>(args.q.shape[2]);
  const Problem problem = {.op = "attention",
                           .q = args.q,
                           .selected = args.selected,
                           .softmax_scale = args.softmax_scale,
                           .window_size = args.window_size,
                           .ratio = args.ratio,
                           .shard = {},
                           .sequences = args.sequences,
                           .ordered = args.ordered};
  return ForEachQuery(context, problem, sink, [&](int64_t token, Sums sums) {
    // A query sees its own token, so there is a key.
    for (size_t i = 0; i < sums.values.size(); ++i) sums.values[i] /= sums.sum[i / dim];
    StoreRow(sums.values, args.o, token);
  });
}

Status AttentionPart(ops::OpContext& context, const ops::AttentionPartArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const auto num_heads = static_cast<size_t>(args.q.shape[1]);
  if (num_heads == 0) return {};
  const auto dim = static_cast<size_t>(args.q.shape[2]);
  const Problem problem = {.op = "attention_part",
                           .q = args.q,
                           .selected = args.selected,
                           .softmax_scale = args.softmax_scale,
                           .window_size = args.window_size,
                           .ratio = args.ratio,
                           .shard = args.shard,
                           .sequences = args.sequences};
  return ForEachQuery(context, problem, {}, [&](int64_t token, const Sums& sums) {
    std::vector<double> row;
    for (size_t h = 0; h < num_heads; ++h) {
      const auto values = sums.values.begin() + static_cast<int64_t>(h * dim);
      row.insert(row.end(), values, values + static_cast<int64_t>(dim));
      row.insert(row.end(), {sums.max[h], sums.sum[h]});
    }
    StoreRow(row, args.part, token);
  });
}

Status MergeAttention(ops::OpContext&, const ops::MergeAttentionArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const std::vector<double> sink = LoadAll(args.sink);
  const int64_t num_parts = args.parts.shape[0];
  const auto dim = static_cast<size_t>(args.o.shape[2]);
  const int64_t num_rows = args.o.shape[0] * args.o.shape[1];
  std::vector<std::vector<double>> rows(static_cast<size_t>(num_parts), std::vector<double>(dim + 2));
  for (int64_t i = 0; i < num_rows; ++i) {
    double max = -std::numeric_limits<double>::infinity();
    for (size_t part = 0; part < rows.size(); ++part) {
      const int64_t begin = (static_cast<int64_t>(part) * num_rows + i) * static_cast<int64_t>(dim + 2);
      LoadValues(args.parts.data, args.parts.dtype, begin, rows[part]);
      max = std::max(max, rows[part][dim]);
    }
    std::vector<double> o(dim, 0.0);
    double sum = 0.0;
    for (const std::vector<double>& row : rows) {
      if (row[dim + 1] == 0) continue;  // No keys.
      const double factor = std::exp(row[dim] - max);
      sum += factor * row[dim + 1];
      AddScaled(factor, std::span(row).first(dim), o);
    }
    if (sum != 0) {
      sum += std::exp(sink[static_cast<size_t>(i % args.o.shape[1])] - max);
      for (double& value : o) value /= sum;
    }
    StoreValues(o, args.o.data, args.o.dtype, i * static_cast<int64_t>(dim));
  }
  return {};
}

}  // namespace dsv4::backend::reference
