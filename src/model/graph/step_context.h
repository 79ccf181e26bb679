// Common state of the sub-layers of one pass: the configuration, the backend, the arena, the plan of the pass
// and its arrays. It also has the few steps that sub-layers are written in: a linear, a norm, a rotation.
// Each allocates its output, runs its op, names itself in errors ("layer 3, attn.q_a: ...") and shows its
// result to the observer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/sequence_state.h"
#include "model/config/config.h"
#include "model/config/layer_plan.h"
#include "model/config/numerics.h"
#include "model/graph/observer.h"
#include "model/graph/pass_arrays.h"
#include "model/graph/pass_plan.h"
#include "model/graph/shards.h"
#include "ops/op_table.h"
#include "tensor/arena.h"

namespace dsv4::model {

// The rotary frequencies on the device, F32 [qk_rope_head_dim / 2].
struct EngramLookup;  // engram.h

struct RopeTables {
  TensorView plain;     // Layers of RopeKind::kPlain.
  TensorView compress;  // Everything in layers of RopeKind::kCompressed.
};

struct StepContext {
  const ModelConfig& config;
  const ops::Backend& backend;
  const RopeTables& rope;
  Numerics numerics = Numerics::kRelease;
  bool clamp_shared_expert = true;
  Arena& arena;
  const PassPlan& plan;
  PassArrays& arrays;
  Observer* observer = nullptr;
  EngramLookup* engram = nullptr;
  Shards shards;  // Shards that divide a layer, its routed experts apart.
  Shards
      expert_shards;  // Shards that divide the routed experts and the head: the same, unless sequences are divided.
  // Owners of the sequences: how many tokens of the pass each of expert_shards has, this one's being the
  // plan's.
  std::vector<int64_t> shard_tokens = {};
  // Rows of the residual streams of a long pass where shards that cut sums divide them: how many rows each
  // keeps, in order. Hyper-connections and norms are then of those rows, and sub-layers get all shards'.
  std::vector<int64_t> stream_rows = {};

  bool divide_sequences() const { return !shard_tokens.empty(); }
  bool divide_streams() const { return !stream_rows.empty(); }
  // The rows of the pass whose streams are here.
  Range own_rows() const {
    return divide_streams() ? PartOf(stream_rows, shards.group->rank()) : Range{0, plan.num_tokens};
  }
  // Tokens of the pass, on all shards where these divide the sequences.
  int64_t num_tokens_of_all() const {
    return divide_sequences() ? std::accumulate(shard_tokens.begin(), shard_tokens.end(), int64_t{0})
                              : plan.num_tokens;
  }
  bool simulate() const { return numerics == Numerics::kRelease; }
  DType activation_dtype() const { return simulate() ? DType::kBF16 : DType::kF32; }
};

// Part of the sequences that is among `rows` of the pass, as if these were all: of ops::AttentionSequence or
// ops::IndexerSequence. Where it is not all of them, it is in `some`.
template <typename Sequence>
std::span<const Sequence> SequencesOf(const Range& rows, std::span<const Sequence> sequences,
                                      std::vector<Sequence>* some) {
  if (sequences.empty() || (rows.begin == 0 && sequences.front().token_begin == 0 &&
                            rows.end >= sequences.back().token_begin + sequences.back().num_tokens)) {
    return sequences;
  }
  for (Sequence sequence : sequences) {
    const int64_t begin = std::max(rows.begin, sequence.token_begin);
    const int64_t end = std::min(rows.end, sequence.token_begin + sequence.num_tokens);
    if (begin >= end) continue;
    sequence.first_position += begin - sequence.token_begin;
    sequence.token_begin = begin - rows.begin;
    sequence.num_tokens = end - begin;
    some->push_back(sequence);
  }
  return *some;
}

// A StepContext inside one layer, or before and after the layers.
class LayerStep {
 public:
  LayerStep(const StepContext& context, const LayerPlan& layer) : context_(context), layer_(layer) {}
  // Outside of the layers.
  explicit LayerStep(const StepContext& context) : context_(context) {}

  const StepContext& context() const { return context_; }
  const ModelConfig& config() const { return context_.config; }
  const PassPlan& plan() const { return context_.plan; }
  const ops::OpTable& ops() const { return context_.backend.table; }
  const ops::ParallelPolicy& policy() const { return context_.backend.policy; }
  int layer() const { return layer_.number; }
  const LayerPlan& layer_plan() const { return layer_; }
  DType dtype() const { return context_.activation_dtype(); }

  Result<TensorView> NewTensor(DType dtype, Shape shape) const {
    return context_.arena.Allocate(dtype, shape);
  }

  // Clears a tensor that nothing writes.
  Status Clear(const TensorView& tensor) const;

  // An array for ops of this layer (PassArrays).
  template <typename T>
  std::span<const T> Make(PassArrays::Recipe<T> recipe, int64_t which = 0) const {
    return context_.arrays.Make(
        recipe, plan(),
        {.layer = layer_.window, .entries = layer_.entries, .keys = layer_.keys, .which = which});
  }

  void Observe(std::string_view name, const TensorView& tensor) const {
    if (context_.observer != nullptr) context_.observer->OnTensor(layer_.number, name, tensor);
  }

  template <typename Args>
  Status Run(std::string_view name, ops::OpFunction<Args> op, const Args& args) const {
    const Status status = op(*context_.backend.context, args);
    return status.ok() ? status : WithPlace(name, status);
  }

  // W x, [n, out_features] of `out`.
  Result<TensorView> Linear(std::string_view name, const TensorView& x, const Weight& weight,
                            DType out) const;
  // In place.
  Status RmsNorm(std::string_view name, const TensorView& x, const TensorView& weight) const;
  // In place, [rows, heads, width] with this layer's table; `positions` is [rows].
  Status Rope(std::string_view name, const TensorView& x, const TensorView& positions, bool inverse) const;
  // Copies rows of `source` to the given rows.
  Status StoreRows(std::string_view name, const TensorView& source, std::span<const RowRun> runs) const;
  // The same to rows of the cache, in its format.
  Status StoreCacheRows(std::string_view name, const TensorView& source, std::span<const RowRun> runs,
                        const CacheFormat& format) const;

 private:
  Status WithPlace(std::string_view name, const Status& status) const;

  const StepContext& context_;
  const LayerPlan layer_;
};

}  // namespace dsv4::model
