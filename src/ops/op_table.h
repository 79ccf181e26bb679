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

// X-macro over (member, Args): the list exists once.
#define DSV4_FOR_EACH_OP(V)              \
  V(prepare_weight, PrepareWeightArgs)   \
  V(embed, EmbedArgs)                    \
  V(rms_norm, RmsNormArgs)               \
  V(head_rms_norm, HeadRmsNormArgs)      \
  V(linear, LinearArgs)                  \
  V(grouped_linear, GroupedLinearArgs)   \
  V(rope, RopeArgs)                      \
  V(simulate_fp8, SimulateFp8Args)       \
  V(hadamard_fp4, HadamardFp4Args)       \
  V(scale, ScaleArgs)                    \
  V(hc_pre, HcPreArgs)                   \
  V(hc_post, HcPostArgs)                 \
  V(hc_head, HcHeadArgs)                 \
  V(store_rows, StoreRowsArgs)           \
  V(compressor_pool, CompressorPoolArgs) \
  V(indexer_select, IndexerSelectArgs)   \
  V(attention, AttentionArgs)            \
  V(router, RouterArgs)                  \
  V(swiglu, SwigluArgs)                  \
  V(routed_experts, RoutedExpertsArgs)   \
  V(moe_combine, MoeCombineArgs)         \
  V(sample, SampleArgs)

// Those that only ranks need which have a part of every layer: to divide a sequence's entries, and to sum over experts.
#define DSV4_FOR_EACH_SHARD_OP(V)              \
  V(indexer_candidates, IndexerCandidatesArgs) \
  V(merge_candidates, MergeCandidatesArgs)     \
  V(gather_rows, GatherRowsArgs)               \
  V(attention_part, AttentionPartArgs)         \
  V(merge_attention, MergeAttentionArgs)       \
  V(sum_rows, SumRowsArgs)                     \
  V(expert_terms, ExpertTermsArgs)             \
  V(sum_terms, SumTermsArgs)

struct OpTable {
#define DSV4_OP_MEMBER(name, Args) OpFunction<Args> name = nullptr;
  DSV4_FOR_EACH_OP(DSV4_OP_MEMBER)
  DSV4_FOR_EACH_SHARD_OP(DSV4_OP_MEMBER)
#undef DSV4_OP_MEMBER
};

// Names of null entries, in table order: of the ops that every model needs, and of those for several ranks.
std::vector<std::string> MissingOps(const OpTable& table);
std::vector<std::string> MissingShardOps(const OpTable& table);

// A backend as the model sees it: a name for messages, its ops and what they run on.
struct Backend {
  std::string name;
  OpTable table;
  std::shared_ptr<OpContext> context;
  bool packs_rows = false;  // Its ops store and read packed cache rows (tensor/cache_format.h).
};

}  // namespace dsv4::ops
