// Routed experts over ranks: outputs gathered by assignment or by list, or sums cut by columns.
#include "model/graph/routed.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "comm/collectives.h"
#include "model/graph/sequence_experts.h"

namespace dsv4::model {
namespace {

Status RunExperts(const LayerStep& step, const LayerWeights& weights, const TensorView& x,
                  const TensorView& indices, const TensorView& expert_weights, const TensorView& y) {
  return step.Run("ffn.routed", step.ops().routed_experts,
                  {.x = x,
                   .indices = indices,
                   .weights = expert_weights,
                   .experts = weights.experts,
                   .limit = SwigluLimit(step.config()),
                   .y = y});
}

// --- Many tokens: the host lists the terms -----------------------------------------------------------------------------

// One of a token's slots that a shard's expert fills.
struct Term {
  int32_t expert = 0;
  int32_t token = 0;
  float weight = 0;
};

// The expert outputs of [experts.begin, experts.end), in the order of the op's sum.
Result<std::vector<Term>> TermsOf(const LayerStep& step, const Range& experts, const Routing& routing) {
  ops::OpContext& context = *step.context().backend.context;
  const auto count = static_cast<size_t>(routing.indices.num_elements());
  std::vector<int32_t> indices(count);
  std::vector<float> weights(count);
  DSV4_TRY(context.memory().CopyToHost(indices.data(), routing.indices.data, count * sizeof(int32_t),
                                       context.stream()));
  DSV4_TRY(context.memory().CopyToHost(weights.data(), routing.weights.data, count * sizeof(float),
                                       context.stream()));
  const auto top_k = static_cast<size_t>(routing.indices.shape[1]);
  std::vector<Term> terms;
  for (size_t i = 0; i < count; ++i) {
    if (indices[i] < experts.begin || indices[i] >= experts.end) continue;
    terms.push_back({indices[i], static_cast<int32_t>(i / top_k), weights[i]});
  }
  std::stable_sort(terms.begin(), terms.end(),
                   [](const Term& a, const Term& b) { return a.expert < b.expert; });
  return terms;
}

// Uploads one number of every term as [terms, 1].
template <typename T, typename Get>
Result<TensorView> Column(const LayerStep& step, DType dtype, const std::vector<Term>& terms,
                          const Get& get) {
  DSV4_ASSIGN_OR_RETURN(const TensorView column,
                        step.NewTensor(dtype, {static_cast<int64_t>(terms.size()), 1}));
  std::vector<T> values;
  for (const Term& term : terms) values.push_back(get(term));
  ops::OpContext& context = *step.context().backend.context;
  DSV4_TRY(
      context.memory().CopyFromHost(column.data, values.data(), values.size() * sizeof(T), context.stream()));
  return column;
}

// y = the sums of all ranks' rows [terms, D], which belong to the rows `targets` of y: in order of rank, then
// as they stand.
Status SumAll(const LayerStep& step, const TensorView& rows, std::vector<int32_t> targets,
              const TensorView& y) {
  const Shards& shards = step.context().expert_shards;
  std::vector<int64_t> row_bytes;
  if (!step.policy().sizes_only) {  // Else `targets` are those of all ranks.
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<std::vector<int32_t>> lists,
                                 comm::GatherLists(*shards.hosts, targets));
    targets.clear();
    for (const std::vector<int32_t>& list : lists) {
      targets.insert(targets.end(), list.begin(), list.end());
      row_bytes.push_back(static_cast<int64_t>(list.size()) * y.shape[1] * ElementBytes(y.dtype));
    }
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const TensorView all, step.NewTensor(DType::kF32, {static_cast<int64_t>(targets.size()), y.shape[1]}));
  DSV4_RETURN_IF_ERROR(
      shards.group->AllGather({rows.as<const std::byte>(), static_cast<size_t>(rows.num_bytes())}, 1,
                              row_bytes, {all.as<std::byte>(), static_cast<size_t>(all.num_bytes())}));
  return step.Run("ffn.routed", step.ops().sum_rows, {.rows = all, .targets = targets, .out = y});
}

// Each term by itself, through the op with one expert a row, then the sum over all ranks' terms.
Status SumListedTerms(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                      const Routing& routing, const TensorView& y) {
  const comm::Communicator& group = *step.context().expert_shards.hosts;
  const Arena::Scope scope(step.context().arena);
  const Range experts = weights.splits.experts.Of(group.rank());
  const bool dry_run = step.policy().sizes_only;
  // Then the worst case counts: all assignments of all tokens want this shard.
  std::vector<Term> terms(dry_run ? static_cast<size_t>(routing.indices.num_elements()) : 0);
  if (!dry_run) {
    DSV4_ASSIGN_OR_RETURN_STATUS(terms, TermsOf(step, experts, routing));
  }
  const auto num_terms = static_cast<int64_t>(terms.size());
  const int64_t width = u.shape[1];
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView out, step.NewTensor(DType::kF32, {num_terms, width}));
  if (num_terms > 0) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView x, step.NewTensor(u.dtype, {num_terms, width}));
    std::vector<RowRun> runs;
    for (int64_t i = 0; i < num_terms; ++i) {
      runs.push_back({terms[static_cast<size_t>(i)].token, 1, x.Rows(i, i + 1).data});
    }
    DSV4_RETURN_IF_ERROR(step.StoreRows("ffn.routed", u, runs));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView indices,
                                 Column<int32_t>(step, DType::kI32, terms, [&](const Term& term) {
                                   return term.expert - static_cast<int32_t>(experts.begin);
                                 }));
    DSV4_ASSIGN_OR_RETURN_STATUS(
        const TensorView expert_weights,
        Column<float>(step, DType::kF32, terms, [](const Term& term) { return term.weight; }));
    DSV4_RETURN_IF_ERROR(RunExperts(step, weights, x, indices, expert_weights, out));
  }
  std::vector<int32_t> targets;
  for (const Term& term : terms) targets.push_back(term.token);
  return SumAll(step, out, targets, y);
}

// --- Few tokens: terms of all assignments, on whichever rank
// ----------------------------------------------------------------

Status SumGatheredTerms(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                        const Routing& routing, const TensorView& y) {
  const Arena::Scope scope(step.context().arena);
  const auto num_shards = static_cast<int64_t>(step.context().expert_shards.group->size());
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView mine, OwnTerms(step, weights, u, routing));
  const Shape& shape = mine.shape;
  const int64_t num_rows = shape[0] * shape[1];
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView all,
                               GatherRows(step, mine.Reshaped({num_rows, shape[2]}),
                                          std::vector<int64_t>(static_cast<size_t>(num_shards), num_rows)));
  return SumTermParts(step, weights, all.Reshaped({num_shards, shape[0], shape[1], shape[2]}),
                      routing.indices, y);
}

}  // namespace

float SwigluLimit(const ModelConfig& config) {
  return config.swiglu_limit > 0 ? static_cast<float>(config.swiglu_limit)
                                 : std::numeric_limits<float>::infinity();
}

Routing RoutingIn(const TensorView& both) {
  const int64_t n = both.shape[0] / 2;
  Routing routing{.indices = both.Rows(0, n), .weights = both.Rows(n, 2 * n)};
  routing.weights.dtype = DType::kF32;
  return routing;
}

Result<Routing> NewRouting(const LayerStep& step, int64_t n) {
  const int64_t top_k = step.config().ExpertsPerToken(step.layer_plan());
  Routing routing;
  if (step.context().divide_sequences()) {
    DSV4_ASSIGN_OR_RETURN(const TensorView both, step.NewTensor(DType::kI32, {2 * n, top_k}));
    return RoutingIn(both);
  }
  DSV4_ASSIGN_OR_RETURN(routing.indices, step.NewTensor(DType::kI32, {n, top_k}));
  DSV4_ASSIGN_OR_RETURN(routing.weights, step.NewTensor(DType::kF32, {n, top_k}));
  return routing;
}

Status ServeExperts(const LayerStep& step, const LayerWeights& weights) {
  const Arena::Scope scope(step.context().arena);
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView none,
                               step.NewTensor(step.dtype(), {0, step.config().hidden_size}));
  DSV4_ASSIGN_OR_RETURN_STATUS(const Routing routing, NewRouting(step, 0));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView y, RoutedExperts(step, weights, none, routing));
  static_cast<void>(y);
  return {};
}

int64_t MostGatheredTokens(const ModelConfig& config, DType dtype, int num_shards,
                           int64_t max_gathered_terms) {
  if (num_shards > ops::kMaxTermParts) return 0;
  return max_gathered_terms /
         (config.num_experts_per_tok * config.hidden_size * ElementBytes(dtype) * num_shards);
}

Result<TensorView> OwnTerms(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                            const Routing& routing) {
  DSV4_ASSIGN_OR_RETURN(const TensorView terms,
                        step.NewTensor(u.dtype, {u.shape[0], routing.indices.shape[1], u.shape[1]}));
  const ColumnSplit& experts = weights.splits.experts;
  DSV4_TRY(step.Run("ffn.routed", step.ops().expert_terms,
                    {.x = u,
                     .indices = routing.indices,
                     .weights = routing.weights,
                     .experts = weights.experts,
                     .first_expert = experts.Of(step.context().expert_shards.group->rank()).begin,
                     .num_experts = experts.total(),
                     .limit = SwigluLimit(step.config()),
                     .terms = terms}));
  return terms;
}

Status SumTermParts(const LayerStep& step, const LayerWeights& weights, const TensorView& parts,
                    const TensorView& indices, const TensorView& y) {
  return step.Run("ffn.routed", step.ops().sum_terms,
                  {.parts = parts, .indices = indices, .begins = weights.splits.experts.begins, .y = y});
}

Result<TensorView> RoutedExperts(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                                 const Routing& routing) {
  DSV4_ASSIGN_OR_RETURN(const TensorView y, step.NewTensor(DType::kF32, u.shape));
  const Shards& shards = step.context().expert_shards;
  if (!shards.alone() && weights.splits.experts.total() > 0) {
    const bool few =
        step.context().num_tokens_of_all() <=
        MostGatheredTokens(step.config(), u.dtype, shards.group->size(), shards.max_gathered_terms);
    const SumOfTerms by_lists = [&](const TensorView& x, const Routing& chosen, const TensorView& sums) {
      return SumListedTerms(step, weights, x, chosen, sums);
    };
    if (step.context().divide_sequences()) {
      DSV4_TRY(ExpertsOfSequences(step, weights, u, routing, few ? SumOfTerms() : by_lists, y));
    } else {
      DSV4_TRY(few ? SumGatheredTerms(step, weights, u, routing, y) : by_lists(u, routing, y));
    }
    return y;
  }
  if (weights.experts.empty()) {  // The columns are fewer than the shards.
    DSV4_TRY(step.Clear(y));
  } else {
    DSV4_TRY(RunExperts(step, weights, u, routing.indices, routing.weights, y));
  }
  return y;
}

}  // namespace dsv4::model
