#include "model/sequence_experts.h"

#include <numeric>
#include <vector>

namespace dsv4::model {
namespace {

// Rows of terms, of all tokens and places, up to which every shard makes room for all and nobody lists which are whose.
constexpr int64_t kMaxTermBytes = int64_t{8} << 20;

std::span<std::byte> Bytes(const TensorView& tensor) {
  return {tensor.as<std::byte>(), static_cast<size_t>(tensor.num_bytes())};
}

// The tokens of all shards, one shard's behind the other's.
struct AllTokens {
  TensorView u;
  Routing routing;
};

Result<AllTokens> GatherTokens(const LayerStep& step, const TensorView& u, const Routing& routing) {
  const std::vector<int64_t>& shard_tokens = step.context().shard_tokens;
  comm::Communicator& group = *step.context().expert_shards.group;
  const int64_t total = std::accumulate(shard_tokens.begin(), shard_tokens.end(), int64_t{0});
  const int64_t top_k = routing.indices.shape[1];
  AllTokens all;
  DSV4_ASSIGN_OR_RETURN(all.u, step.NewTensor(u.dtype, {total, u.shape[1]}));
  DSV4_ASSIGN_OR_RETURN(const TensorView both, step.NewTensor(DType::kI32, {2 * total, top_k}));
  std::vector<int64_t> token_bytes;
  std::vector<int64_t> routing_bytes;
  for (const int64_t count : shard_tokens) {
    token_bytes.push_back(count * u.shape[1] * ElementBytes(u.dtype));
    routing_bytes.push_back(count * top_k * ElementBytes(DType::kI32));
  }
  DSV4_TRY(group.AllGather(Bytes(u), 1, token_bytes, Bytes(all.u)).WithContext("ffn.routed"));
  // Weights lie behind indices (NewRouting): two rows of a matrix.
  const std::span<const std::byte> mine = {routing.indices.as<const std::byte>(),
                                           2 * static_cast<size_t>(routing.indices.num_bytes())};
  DSV4_TRY(group.AllGather(mine, 2, routing_bytes, Bytes(both)).WithContext("ffn.routed"));
  all.routing = RoutingIn(both);
  return all;
}

}  // namespace

Status ExpertsOfSequences(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                          const Routing& routing, const SumByLists& by_lists, const TensorView& y) {
  const Arena::Scope scope(step.context().arena);
  const Shards& shards = step.context().expert_shards;
  const std::vector<int64_t>& shard_tokens = step.context().shard_tokens;
  DSV4_ASSIGN_OR_RETURN_STATUS(const AllTokens all, GatherTokens(step, u, routing));
  const int64_t total = all.u.shape[0];
  const int64_t top_k = routing.indices.shape[1];
  const int64_t width = u.shape[1];
  const int64_t token_bytes = top_k * width * ElementBytes(u.dtype);
  ops::OpContext& context = *step.context().backend.context;
  if (total * token_bytes > kMaxTermBytes) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView sums, step.NewTensor(DType::kF32, {total, width}));
    DSV4_RETURN_IF_ERROR(by_lists(all.u, all.routing, sums));
    const int64_t begin =
        std::accumulate(shard_tokens.begin(), shard_tokens.begin() + shards.group->rank(), int64_t{0});
    if (y.shape[0] == 0) return {};
    return context.memory().Copy(y.data, sums.Rows(begin, begin + y.shape[0]).data,
                                 static_cast<size_t>(y.num_bytes()), context.stream());
  }
  const ColumnSplit& experts = weights.splits.experts;
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView terms, step.NewTensor(u.dtype, {total, top_k, width}));
  DSV4_RETURN_IF_ERROR(step.Run("ffn.routed", step.ops().expert_terms,
                                {.x = all.u,
                                 .indices = all.routing.indices,
                                 .weights = all.routing.weights,
                                 .experts = weights.experts,
                                 .first_expert = experts.Of(shards.group->rank()).begin,
                                 .num_experts = experts.total(),
                                 .limit = SwigluLimit(step.config()),
                                 .terms = terms}));
  std::vector<int64_t> piece_bytes;
  for (const int64_t count : shard_tokens) piece_bytes.push_back(count * token_bytes);
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView parts,
                               step.NewTensor(u.dtype, {shards.group->size(), y.shape[0], top_k, width}));
  DSV4_RETURN_IF_ERROR(shards.group->AllToAll(Bytes(terms), 1, piece_bytes, Bytes(parts)));
  if (y.shape[0] == 0) return {};
  return step.Run("ffn.routed", step.ops().sum_terms,
                  {.parts = parts, .indices = routing.indices, .begins = experts.begins, .y = y});
}

}  // namespace dsv4::model
