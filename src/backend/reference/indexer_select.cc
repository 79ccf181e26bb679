// Reference indexer: scores in double, exact top-k by score and index, and candidates of ranks merged the
// same way.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"
#include "base/text.h"

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
          HeldAs(keys.format.dtype, Dot(q.data() + static_cast<int64_t>(head) * width, key.data(), width));
      sum += HeldAs(keys.format.dtype, weights[head] * std::max(dot, 0.0));
    }
    scores[static_cast<size_t>(j)] = HeldAs(keys.format.dtype, sum);
  }
  return scores;
}

// The `top_k` highest scores, equal ones by lowest index, in ascending order of index. NaN counts as lowest,
// so that the order stays one.
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

// Queries and the keys that are here.
struct Problem {
  const TensorView& q;
  const TensorView& weights;
  int64_t top_k;
  int64_t ratio;
  EntryShard shard;
};

// Keys of this rank that a query sees, and their scores. Empty where it sees no more than top_k of all ranks'
// entries, which are then chosen without scores.
struct Scored {
  int64_t num_rows = 0;
  std::vector<double> scores;
};

Scored Score(const Problem& problem, const ops::IndexerSequence& sequence, int64_t token) {
  const int64_t position = sequence.first_position + token - sequence.token_begin;
  const int64_t visible = (position + 1) / problem.ratio;
  Scored scored{.num_rows = problem.shard.NumRows(visible), .scores = {}};
  if (visible <= problem.top_k) return scored;
  const int64_t num_heads = problem.q.shape[1];
  std::vector<double> q(static_cast<size_t>(num_heads * problem.q.shape[2]));
  std::vector<double> weights(static_cast<size_t>(num_heads));
  LoadRow(problem.q, token, q);
  LoadRow(problem.weights, token, weights);
  scored.scores = Scores(q, weights, sequence.keys, scored.num_rows);
  return scored;
}

// The rows that are chosen of those here, in ascending order.
std::vector<int32_t> Chosen(const Scored& scored, int64_t top_k) {
  if (scored.num_rows > top_k) return TopK(scored.scores, top_k);
  std::vector<int32_t> all(static_cast<size_t>(scored.num_rows));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// A list of a query, filled up with -1.
void StoreList(std::vector<int32_t> list, const TensorView& lists, int64_t token) {
  list.resize(static_cast<size_t>(lists.shape[1]), -1);
  std::ranges::copy(list, lists.as<int32_t>() + token * lists.shape[1]);
}

// The best blocks of a query that sees so many entries, in ascending order.
std::vector<int32_t> BestBlocks(const ops::IndexerSelectArgs& args, std::span<const double> scores,
                                int64_t visible) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const int64_t num_blocks = (visible + args.block_size - 1) / args.block_size;
  std::vector<int32_t> all(static_cast<size_t>(num_blocks));
  std::iota(all.begin(), all.end(), 0);
  if (num_blocks <= args.best.shape[1]) return all;
  std::vector<double> blocks(all.size(), kNone);
  for (int64_t j = 0; j < visible; ++j) {
    double& block = blocks[static_cast<size_t>(j / args.block_size)];
    const double score = scores[static_cast<size_t>(j)];
    if (!std::isnan(score)) block = std::max(block, score);
  }
  blocks.back() = std::numeric_limits<double>::infinity();
  return TopK(blocks, args.best.shape[1]);
}

// The visible entries of the blocks that a query may choose from, in ascending order.
Result<std::vector<int32_t>> EntriesWithin(const ops::IndexerSelectArgs& args, int64_t visible,
                                           int64_t token) {
  std::vector<int32_t> entries;
  const int32_t* const blocks = args.within.as<const int32_t>() + token * args.within.shape[1];
  for (int64_t i = 0; i < args.within.shape[1] && blocks[i] >= 0; ++i) {
    const int64_t begin = blocks[i] * args.block_size;
    if (begin >= visible) {
      return Error(OutOfRange(fmt::format("indexer_select: within[{}, {}]: block {}, wanted one of {}", token,
                                          i, blocks[i], Counted(visible, "entry"))));
    }
    for (int64_t j = begin; j < std::min(visible, begin + args.block_size); ++j)
      entries.push_back(static_cast<int32_t>(j));
  }
  std::ranges::sort(entries);
  return entries;
}

Status Select(const ops::IndexerSelectArgs& args, const ops::IndexerSequence& sequence, int64_t token) {
  const int64_t top_k = args.selected.shape[1];
  const int64_t visible = (sequence.first_position + token - sequence.token_begin + 1) / args.ratio;
  const bool few_blocks =
      args.best.is_null() || (visible + args.block_size - 1) / args.block_size <= args.best.shape[1];
  // With a top_k of 0 all scores are made.
  const Problem problem = {.q = args.q,
                           .weights = args.weights,
                           .top_k = few_blocks ? top_k : 0,
                           .ratio = args.ratio,
                           .shard = {}};
  Scored scored;
  if (args.within.is_null()) {
    scored = Score(problem, sequence, token);
    StoreList(Chosen(scored, top_k), args.selected, token);
    if (!args.best.is_null()) StoreList(BestBlocks(args, scored.scores, visible), args.best, token);
    return {};
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<int32_t> entries, EntriesWithin(args, visible, token));
  if (std::ssize(entries) > top_k) {
    const Scored all = Score(problem, sequence, token);
    for (const int32_t entry : entries) scored.scores.push_back(all.scores[static_cast<size_t>(entry)]);
    std::vector<int32_t> chosen;
    for (const int32_t i : TopK(scored.scores, top_k)) chosen.push_back(entries[static_cast<size_t>(i)]);
    entries = std::move(chosen);
  }
  StoreList(std::move(entries), args.selected, token);
  return {};
}

Status ListCandidates(const ops::IndexerCandidatesArgs& args, const ops::IndexerSequence& sequence,
                      int64_t token) {
  const int64_t top_k = args.candidates.shape[1];
  const Problem problem = {
      .q = args.q, .weights = args.weights, .top_k = top_k, .ratio = args.ratio, .shard = args.shard};
  Scored scored = Score(problem, sequence, token);
  for (double& score : scored.scores) score = static_cast<float>(score);
  std::vector<uint64_t> candidates;
  for (const int32_t row : Chosen(scored, top_k)) {
    const double score = scored.scores.empty() ? 0.0 : scored.scores[static_cast<size_t>(row)];
    candidates.push_back(ops::MakeCandidate(static_cast<float>(score), args.shard.Entry(row)));
  }
  std::sort(candidates.begin(), candidates.end(), std::greater<>());
  candidates.resize(static_cast<size_t>(top_k), 0);
  std::copy(candidates.begin(), candidates.end(), args.candidates.as<uint64_t>() + token * top_k);
  return {};
}

template <typename Args, typename Visit>
Status ForEachQuery(ops::OpContext& context, const Args& args, const Visit& visit) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  std::vector<Status> faults(static_cast<size_t>(args.q.shape[0]));
  for (const ops::IndexerSequence& sequence : args.sequences) {
    context.threads().ParallelFor(sequence.num_tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t token = sequence.token_begin + i;
        faults[static_cast<size_t>(token)] = visit(args, sequence, token);
      }
    });
  }
  for (const Status& fault : faults) DSV4_RETURN_IF_ERROR(fault);
  return {};
}

}  // namespace

Status IndexerSelect(ops::OpContext& context, const ops::IndexerSelectArgs& args) {
  return ForEachQuery(context, args, Select);
}

Status IndexerCandidates(ops::OpContext& context, const ops::IndexerCandidatesArgs& args) {
  return ForEachQuery(context, args, ListCandidates);
}

Status MergeCandidates(ops::OpContext&, const ops::MergeCandidatesArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t count = args.candidates.shape[1];
  const int64_t top_k = args.selected.shape[1];
  for (int64_t token = 0; token < args.candidates.shape[0]; ++token) {
    const uint64_t* const begin = args.candidates.as<const uint64_t>() + token * count;
    std::vector<uint64_t> best(begin, begin + count);
    std::sort(best.begin(), best.end(), std::greater<>());
    best.resize(static_cast<size_t>(top_k), 0);
    std::vector<int32_t> chosen;
    for (const uint64_t candidate : best) {
      if (candidate != 0) chosen.push_back(ops::EntryOfCandidate(candidate));
    }
    std::sort(chosen.begin(), chosen.end());
    chosen.resize(static_cast<size_t>(top_k), -1);
    std::copy(chosen.begin(), chosen.end(), args.selected.as<int32_t>() + token * top_k);
  }
  return {};
}

}  // namespace dsv4::backend::reference
