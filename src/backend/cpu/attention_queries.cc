// Lists of the rows and entries that each query of an attention call sees, and runs of neighbouring queries
// that share them.
#include "backend/cpu/attention_queries.h"

#include <fmt/format.h>

#include <algorithm>

namespace dsv4::backend::cpu {
namespace {

// The entries that `selected` names for the query at `position`, checked.
Status TakeSelected(const AttentionProblem& problem, int64_t position, Query& query) {
  const int64_t num_visible = (position + 1) / problem.ratio;
  const int64_t top_k = problem.selected.shape[1];
  const int32_t* const list = problem.selected.as<const int32_t>() + query.token * top_k;
  // Most often all there are, in order.
  int64_t num_first = 0;
  while (num_first < std::min(top_k, num_visible) && list[num_first] == static_cast<int32_t>(num_first))
    ++num_first;
  query.num_entries = problem.shard.NumRows(num_first);
  if (std::all_of(list + num_first, list + top_k, [](int32_t entry) { return entry == -1; })) return {};
  std::vector<int32_t>& chosen = query.chosen;
  for (int64_t i = 0; i < top_k; ++i) {
    if (list[i] == -1) continue;
    if (list[i] < 0 || list[i] >= num_visible) {
      return InvalidArgument(fmt::format("op {}: selected[{}, {}]: {}, want -1 or 0 to {} at position {}",
                                         problem.op, query.token, i, list[i], num_visible - 1, position));
    }
    chosen.push_back(list[i]);
  }
  if (!std::is_sorted(chosen.begin(), chosen.end())) std::sort(chosen.begin(), chosen.end());
  const auto repeat = std::adjacent_find(chosen.begin(), chosen.end());
  if (repeat != chosen.end()) {
    return InvalidArgument(fmt::format("op {}: selected[{}]: entry {} more than once, want no repeats",
                                       problem.op, query.token, *repeat));
  }
  if (problem.shard.count > 1) {
    std::erase_if(chosen, [&](int32_t entry) { return !problem.shard.Has(entry); });
    for (int32_t& entry : chosen) entry = static_cast<int32_t>(problem.shard.Row(entry));
  }
  query.num_entries = static_cast<int64_t>(chosen.size());
  return {};
}

}  // namespace

Result<std::vector<Query>> AttentionQueries(ops::OpContext& context, const AttentionProblem& problem) {
  std::vector<Query> queries;
  for (const ops::AttentionSequence& sequence : problem.sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
      const int64_t position = sequence.first_position + i;
      const bool window = problem.window_size > 0;
      queries.push_back(
          {.sequence = &sequence,
           .token = sequence.token_begin + i,
           .window_begin = window ? std::max<int64_t>(0, position - problem.window_size + 1) : 0,
           .window_end = window ? position + 1 : 0,
           .num_entries = 0,
           .chosen = {}});
    }
  }
  if (problem.ratio == 0) return queries;
  std::vector<Status> statuses(queries.size());
  context.threads().ParallelFor(static_cast<int64_t>(queries.size()), 64, [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      Query& query = queries[i];
      const int64_t position = query.sequence->first_position + query.token - query.sequence->token_begin;
      if (problem.selected.is_null()) {
        query.num_entries = problem.shard.NumRows((position + 1) / problem.ratio);
      } else {
        statuses[i] = TakeSelected(problem, position, query);
      }
    }
  });
  for (Status& status : statuses) {
    if (!status.ok()) return Error(std::move(status));
  }
  return queries;
}

std::vector<std::span<const Query>> NeighbouringQueries(std::span<const Query> queries, int64_t num_heads,
                                                        int64_t window_size) {
  constexpr int64_t kMaxRows = 256;
  constexpr int64_t kMaxLogits = 1 << 17;
  std::vector<std::span<const Query>> groups;
  for (size_t begin = 0; begin < queries.size();) {
    size_t end = begin;
    int64_t num_entries = 0;
    for (; end < queries.size() && queries[end].sequence == queries[begin].sequence; ++end) {
      num_entries = std::max(num_entries, queries[end].num_entries);
      const int64_t rows = static_cast<int64_t>(end - begin + 1) * num_heads;
      if (end > begin && (rows > kMaxRows || rows * (window_size + num_entries) > kMaxLogits)) break;
    }
    groups.push_back(queries.subspan(begin, end - begin));
    begin = end;
  }
  return groups;
}

}  // namespace dsv4::backend::cpu
