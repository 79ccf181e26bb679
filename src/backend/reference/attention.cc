#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

namespace {

// What one query sees: window positions [window_begin, position] and some compressed entries.
struct VisibleSet {
  int64_t window_begin = 0;
  int64_t position = 0;
  std::vector<int64_t> entries;

  int64_t num_window() const { return position + 1 - window_begin; }
  int64_t num_keys() const { return num_window() + static_cast<int64_t>(entries.size()); }
};

Result<VisibleSet> Visible(const ops::AttentionArgs& args, const ops::AttentionSequence& sequence,
                           int64_t token) {
  VisibleSet visible;
  visible.position = sequence.first_position + token - sequence.token_begin;
  visible.window_begin = std::max<int64_t>(0, visible.position - args.window_size + 1);
  if (args.ratio == 0) return visible;
  const int64_t num_entries = (visible.position + 1) / args.ratio;
  if (args.selected.is_null()) {
    visible.entries.resize(static_cast<size_t>(num_entries));
    std::iota(visible.entries.begin(), visible.entries.end(), 0);
    return visible;
  }
  const int64_t top_k = args.selected.shape[1];
  for (int64_t i = 0; i < top_k; ++i) {
    const int64_t entry = LoadInteger(args.selected, token * top_k + i);
    if (entry == -1) continue;
    if (entry < 0 || entry >= num_entries) {
      return Error(
          InvalidArgument(fmt::format("op attention: selected[{}, {}]: {}, want -1 or 0 to {} at position {}",
                                      token, i, entry, num_entries - 1, visible.position)));
    }
    visible.entries.push_back(entry);
  }
  // In order of entry, so that the sum does not depend on the order of the list.
  std::sort(visible.entries.begin(), visible.entries.end());
  const auto repeat = std::adjacent_find(visible.entries.begin(), visible.entries.end());
  if (repeat != visible.entries.end()) {
    return Error(InvalidArgument(
        fmt::format("op attention: selected[{}]: entry {} more than once, want no repeats", token, *repeat)));
  }
  return visible;
}

// Key (and value) i of the visible set.
void LoadKey(const ops::AttentionSequence& sequence, const VisibleSet& visible, int64_t i,
             std::span<double> out) {
  if (i < visible.num_window()) {
    LoadRingRow(sequence.window, visible.window_begin + i, out);
  } else {
    LoadPagedRow(sequence.entries, visible.entries[static_cast<size_t>(i - visible.num_window())], out);
  }
}

// All heads of one query: the keys are shared, so each is read once for the logits and once as a value.
void Attend(const ops::AttentionArgs& args, const ops::AttentionSequence& sequence, const VisibleSet& visible,
            int64_t token, const std::vector<double>& sink) {
  const int64_t head_dim = args.q.shape[2];
  const size_t dim = static_cast<size_t>(head_dim);
  const size_t num_heads = sink.size();
  const size_t num_keys = static_cast<size_t>(visible.num_keys());
  std::vector<double> q(num_heads * dim);
  LoadRow(args.q, token, q);

  std::vector<double> key(dim);
  std::vector<double> weights(num_heads * num_keys);  // First the logits l_t, then r(exp(l_t - M)).
  for (size_t t = 0; t < num_keys; ++t) {
    LoadKey(sequence, visible, static_cast<int64_t>(t), key);
    for (size_t h = 0; h < num_heads; ++h) {
      weights[h * num_keys + t] =
          Dot(q.data() + h * dim, key.data(), head_dim) * static_cast<double>(args.softmax_scale);
    }
  }

  std::vector<double> normalizer(num_heads);
  for (size_t h = 0; h < num_heads; ++h) {
    const std::span<double> row = std::span(weights).subspan(h * num_keys, num_keys);
    const double max = *std::max_element(row.begin(), row.end());  // Never empty: a query sees its own token.
    normalizer[h] = std::exp(sink[h] - max);
    for (double& weight : row) {
      weight = std::exp(weight - max);
      normalizer[h] += weight;
      weight = HeldAs(args.q.dtype, weight);  // Rounded for the value product only.
    }
  }

  std::vector<double> o(num_heads * dim, 0.0);
  for (size_t t = 0; t < num_keys; ++t) {
    LoadKey(sequence, visible, static_cast<int64_t>(t), key);
    for (size_t h = 0; h < num_heads; ++h) {
      AddScaled(weights[h * num_keys + t], key, std::span(o).subspan(h * dim, dim));
    }
  }
  for (size_t i = 0; i < o.size(); ++i) o[i] /= normalizer[i / dim];
  StoreRow(o, args.o, token);
}

}  // namespace

Status Attention(ops::OpContext& context, const ops::AttentionArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const std::vector<double> sink = LoadAll(args.sink);
  if (sink.empty() || args.q.shape[2] == 0) return {};
  for (const ops::AttentionSequence& sequence : args.sequences) {
    std::vector<VisibleSet> visible;
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
      DSV4_ASSIGN_OR_RETURN_STATUS(visible.emplace_back(), Visible(args, sequence, sequence.token_begin + i));
    }
    context.threads().ParallelFor(sequence.num_tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Attend(args, sequence, visible[static_cast<size_t>(i)], sequence.token_begin + i, sink);
      }
    });
  }
  return {};
}

}  // namespace dsv4::backend::reference
