// OpTable: one function per op, filled by each backend and handed to the model. The model calls contracts in
// order and knows no backend. MissingOps names what a backend lacks, so that a gap is reported by name before
// a weight is read.
//
// Every function validates its arguments (the contract's Validate) before touching memory, and reports a
// Status that names the op.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/attention.h"
#include "ops/attention_part.h"
#include "ops/compressor_pool.h"
#include "ops/embed.h"
#include "ops/engram_mix.h"
#include "ops/expert_terms.h"
#include "ops/gather_rows.h"
#include "ops/grouped_linear.h"
#include "ops/hadamard_fp4.h"
#include "ops/head_rms_norm.h"
#include "ops/hyper_connection.h"
#include "ops/indexer_candidates.h"
#include "ops/indexer_select.h"
#include "ops/linear.h"
#include "ops/merge_attention.h"
#include "ops/merge_candidates.h"
#include "ops/moe_combine.h"
#include "ops/parallel_policy.h"
#include "ops/prepare_weight.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/routed_experts.h"
#include "ops/router.h"
#include "ops/row_store.h"
#include "ops/sample.h"
#include "ops/scale.h"
#include "ops/simulate_fp8.h"
#include "ops/sum_rows.h"
#include "ops/sum_terms.h"
#include "ops/swiglu.h"

namespace dsv4::ops {

template <typename Args>
using OpFunction = Status (*)(OpContext& context, const Args& args);

// X-macro over (member, Op): the list exists once. Op##Args are the arguments, and a backend's function is called Op.
#define DSV4_FOR_EACH_OP(V)          \
  V(prepare_weight, PrepareWeight)   \
  V(embed, Embed)                    \
  V(rms_norm, RmsNorm)               \
  V(head_rms_norm, HeadRmsNorm)      \
  V(linear, Linear)                  \
  V(grouped_linear, GroupedLinear)   \
  V(rope, Rope)                      \
  V(simulate_fp8, SimulateFp8)       \
  V(hadamard_fp4, HadamardFp4)       \
  V(scale, Scale)                    \
  V(hc_pre, HcPre)                   \
  V(hc_post, HcPost)                 \
  V(hc_head, HcHead)                 \
  V(engram_mix, EngramMix)           \
  V(store_rows, StoreRows)           \
  V(compressor_pool, CompressorPool) \
  V(indexer_select, IndexerSelect)   \
  V(attention, Attention)            \
  V(router, Router)                  \
  V(swiglu, Swiglu)                  \
  V(routed_experts, RoutedExperts)   \
  V(moe_combine, MoeCombine)         \
  V(sample, Sample)

// Ops that only ranks need which have a part of every layer: to divide a sequence's entries, and to sum over
// experts.
#define DSV4_FOR_EACH_SHARD_OP(V)          \
  V(indexer_candidates, IndexerCandidates) \
  V(merge_candidates, MergeCandidates)     \
  V(gather_rows, GatherRows)               \
  V(attention_part, AttentionPart)         \
  V(merge_attention, MergeAttention)       \
  V(sum_rows, SumRows)                     \
  V(expert_terms, ExpertTerms)             \
  V(sum_terms, SumTerms)

#define DSV4_FOR_EVERY_OP(V) DSV4_FOR_EACH_OP(V) DSV4_FOR_EACH_SHARD_OP(V)

struct OpTable {
#define DSV4_OP_MEMBER(name, Op) OpFunction<Op##Args> name = nullptr;
  DSV4_FOR_EVERY_OP(DSV4_OP_MEMBER)
#undef DSV4_OP_MEMBER
};

// Names of null entries, in table order: of the ops that every model needs, and of those for several ranks.
std::vector<std::string> MissingOps(const OpTable& table);
std::vector<std::string> MissingShardOps(const OpTable& table);

// A backend as the model sees it: a name for messages, its ops and what they run on.
struct Backend {
  std::string name;
  std::string modes = {};  // All else that changes its numbers, as it was made; not for people.
  OpTable table;
  std::shared_ptr<OpContext> context;
  bool packs_rows = false;  // Its ops store and read packed cache rows (tensor/cache_format.h).
  ParallelPolicy policy = {};
};

}  // namespace dsv4::ops
