// Dispatch and combine of expert parallelism where sequences live on shards.
#include "model/graph/sequence_experts.h"

#include <numeric>
#include <vector>

namespace dsv4::model {
namespace {

// The tokens of all shards, one shard's behind the other's.
struct AllTokens {
  TensorView u;
  Routing routing;
};

Result<AllTokens> GatherTokens(const LayerStep& step, const TensorView& u, const Routing& routing) {
  const std::vector<int64_t>& shard_tokens = step.context().shard_tokens;
  comm::Communicator& group = *step.context().expert_shards.group;
  const int64_t total = step.context().num_tokens_of_all();
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

// Sums of this shard's tokens, of those of all.
Status TakeOwn(const LayerStep& step, const TensorView& sums, const TensorView& y) {
  const std::vector<int64_t>& shard_tokens = step.context().shard_tokens;
  const int shard = step.context().expert_shards.group->rank();
  const int64_t begin = std::accumulate(shard_tokens.begin(), shard_tokens.begin() + shard, int64_t{0});
  if (y.shape[0] == 0) return {};
  ops::OpContext& context = *step.context().backend.context;
  return context.memory().Copy(y.data, sums.Rows(begin, begin + y.shape[0]).data,
                               static_cast<size_t>(y.num_bytes()), context.stream());
}

}  // namespace

Status ExpertsOfSequences(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                          const Routing& routing, const SumOfTerms& by_lists, const TensorView& y) {
  const Arena::Scope scope(step.context().arena);
  comm::Communicator& group = *step.context().expert_shards.group;
  DSV4_ASSIGN_OR_RETURN_STATUS(const AllTokens all, GatherTokens(step, u, routing));
  if (by_lists) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView sums, step.NewTensor(DType::kF32, all.u.shape));
    DSV4_RETURN_IF_ERROR(by_lists(all.u, all.routing, sums));
    return TakeOwn(step, sums, y);
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView terms, OwnTerms(step, weights, all.u, all.routing));
  const int64_t top_k = terms.shape[1];
  const int64_t width = terms.shape[2];
  std::vector<int64_t> piece_bytes;
  for (const int64_t count : step.context().shard_tokens)
    piece_bytes.push_back(count * top_k * width * ElementBytes(terms.dtype));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView parts,
                               step.NewTensor(terms.dtype, {group.size(), y.shape[0], top_k, width}));
  DSV4_RETURN_IF_ERROR(group.AllToAll(Bytes(terms), 1, piece_bytes, Bytes(parts)).WithContext("ffn.routed"));
  return y.shape[0] == 0 ? Status() : SumTermParts(step, weights, parts, routing.indices, y);
}

}  // namespace dsv4::model
