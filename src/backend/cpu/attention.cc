// Attention as two small matrix products a query: heads against the visible rows for the logits, weights against the same
// rows for the values. All heads share K = V, so a block of heads reads each row once for both.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

namespace {

using RowPointers = std::vector<const uint8_t*>;

// The rows that the query `token` sees, window first, then entries in ascending order, so that a sum does not depend on the
// order of the list.
Result<RowPointers> VisibleRows(const ops::AttentionArgs& args, const ops::AttentionSequence& sequence,
                                int64_t token) {
  const int64_t position = sequence.first_position + token - sequence.token_begin;
  RowPointers rows;
  for (int64_t p = std::max<int64_t>(0, position - args.window_size + 1); p <= position; ++p) {
    rows.push_back(At(sequence.window.data, sequence.window.dtype,
                      p % sequence.window.capacity * sequence.window.width));
  }
  if (args.ratio == 0) return rows;
  const ops::PagedRows& entries = sequence.entries;
  const auto entry_row = [&](int64_t entry) {
    return At(entries.pages[static_cast<size_t>(entry / entries.rows_per_page)], entries.dtype,
              entry % entries.rows_per_page * entries.width);
  };
  const int64_t num_entries = (position + 1) / args.ratio;
  if (args.selected.is_null()) {
    for (int64_t entry = 0; entry < num_entries; ++entry) rows.push_back(entry_row(entry));
    return rows;
  }
  const int64_t top_k = args.selected.shape[1];
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < top_k; ++i) {
    const int64_t entry = LoadInteger(args.selected, token * top_k + i);
    if (entry == -1) continue;
    if (entry < 0 || entry >= num_entries) {
      return Error(
          InvalidArgument(fmt::format("op attention: selected[{}, {}]: {}, want -1 or 0 to {} at position {}",
                                      token, i, entry, num_entries - 1, position)));
    }
    chosen.push_back(entry);
  }
  if (!std::is_sorted(chosen.begin(), chosen.end())) std::sort(chosen.begin(), chosen.end());
  const auto repeat = std::adjacent_find(chosen.begin(), chosen.end());
  if (repeat != chosen.end()) {
    return Error(InvalidArgument(
        fmt::format("op attention: selected[{}]: entry {} more than once, want no repeats", token, *repeat)));
  }
  for (const int64_t entry : chosen) rows.push_back(entry_row(entry));
  return rows;
}

// Heads [begin, end) of one query.
void Attend(ops::OpContext& context, const ops::AttentionArgs& args, const std::vector<float>& sink,
            const Activations& q, const RowPointers& rows, int64_t token, int64_t begin, int64_t end) {
  const Kernels& kernels = KernelsOf(context);
  const DType dtype = args.q.dtype;
  const int64_t num_heads = args.q.shape[1];
  const int64_t dim = args.q.shape[2];
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  const int64_t count = end - begin;
  std::vector<float> weights(
      static_cast<size_t>(count * num_rows));  // First the logits, then r(exp(l_t - M)).
  MultiplyPointers(PlanDots(kernels, dtype), rows, dim,
                   q.Slice(token * num_heads + begin, token * num_heads + end), weights.data(), num_rows);

  std::vector<double> normalizer(static_cast<size_t>(count));
  for (int64_t h = 0; h < count; ++h) {
    float* const row = weights.data() + h * num_rows;
    const double scale = static_cast<double>(args.softmax_scale);
    // A negative scale turns the order around.
    const auto [low, high] = std::minmax_element(row, row + num_rows);
    const double max = scale * static_cast<double>(scale < 0 ? *low : *high);
    double sum = std::exp(static_cast<double>(sink[static_cast<size_t>(begin + h)]) - max);
    for (int64_t t = 0; t < num_rows; ++t) {
      const double weight = std::exp(static_cast<double>(row[t]) * scale - max);
      sum += weight;
      row[t] = static_cast<float>(HeldAs(dtype, weight));  // Rounded for the value product only.
    }
    normalizer[static_cast<size_t>(h)] = sum;
  }

  std::vector<float> o(static_cast<size_t>(count * dim), 0.0F);
  kernels.add_weighted_rows(weights.data(), num_rows, count, rows.data(), dtype == DType::kBF16, num_rows,
                            dim, o.data());
  for (int64_t h = 0; h < count; ++h) {
    float* const row = o.data() + h * dim;
    for (int64_t d = 0; d < dim; ++d) {
      row[d] = static_cast<float>(static_cast<double>(row[d]) / normalizer[static_cast<size_t>(h)]);
    }
  }
  StoreFloats(kernels, o.data(), count * dim,
              args.o.as<uint8_t>() + (token * num_heads + begin) * dim * ElementBytes(dtype), dtype);
}

}  // namespace

Status Attention(ops::OpContext& context, const ops::AttentionArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Kernels& kernels = KernelsOf(context);
  const int64_t num_tokens = args.q.shape[0];
  const int64_t num_heads = args.q.shape[1];
  const int64_t dim = args.q.shape[2];
  if (num_tokens == 0 || num_heads == 0 || dim == 0) return {};
  const std::vector<float> sink = LoadAll(kernels, args.sink);
  std::vector<RowPointers> visible;
  for (const ops::AttentionSequence& sequence : args.sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
      DSV4_ASSIGN_OR_RETURN_STATUS(visible.emplace_back(),
                                   VisibleRows(args, sequence, sequence.token_begin + i));
    }
  }
  RowPointers heads;
  for (int64_t i = 0; i < num_tokens * num_heads; ++i)
    heads.push_back(At(args.q.data, args.q.dtype, i * dim));
  const Activations q(context.threads(), kernels, PlanDots(kernels, args.q.dtype), heads, args.q.dtype, dim);

  // Few queries are split by heads, whole tiles of them, so that all threads have work; many are not, to read rows once.
  const int64_t num_threads = context.threads().num_threads();
  constexpr int64_t kHeadTile = 4;
  const int64_t parts = num_tokens >= 2 * num_threads ? 1 : num_threads;
  const int64_t block = ((num_heads + parts - 1) / parts + kHeadTile - 1) / kHeadTile * kHeadTile;
  const int64_t blocks = (num_heads + block - 1) / block;
  context.threads().ParallelFor(num_tokens * blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t token = i / blocks;
      const int64_t begin = i % blocks * block;
      Attend(context, args, sink, q, visible[static_cast<size_t>(token)], token, begin,
             std::min(num_heads, begin + block));
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
