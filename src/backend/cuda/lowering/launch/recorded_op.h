// An op as it is recorded: what it is, what it works on, and what it reads and writes. Ops that may share a
// launch wait here until it is known which (fusion_rules.h); all others are launched at once.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "backend/cuda/lowering/launch/accesses.h"
#include "backend/cuda/lowering/launch/row_group.h"
#include "backend/cuda/lowering/work/attention.h"
#include "backend/cuda/lowering/work/hyper_connection.h"
#include "backend/cuda/lowering/work/linear.h"
#include "backend/cuda/lowering/work/moe.h"
#include "backend/cuda/lowering/work/over_ranks.h"
#include "backend/cuda/lowering/work/packing.h"

namespace dsv4::backend::cuda {

enum class OpKind : uint8_t {
  kLinear,         // linear, and grouped_linear of one group,
  kGroupedLinear,  // or of several.
  kExperts,        // routed_experts
  kSwiglu,
  kRouter,
  kAttention,
  kRope,
  kCombine,  // moe_combine
  kRankSum,  // The sum over ranks.
  kHcPost,
  kHcPre,
  kNorm,          // rms_norm in place.
  kRowStep,       // All of RowStepKind.
  kPackedLinear,  // A linear of tokens that it packed,
  kTokensToPack,  // and the tokens of the next, which are asked for in front of it.
  kCandidates,    // indexer_candidates of a few tokens, by a cluster each.
  kGather,        // An all-gather by LL words,
  kAllToAll,      // an all-to-all.
  kMergeCandidates,
  kRowsHere,  // The list of attention_part, which is asked for in front of it.
  kAttentionPart,
  kMergeAttention,
};

struct RecordedOp {
  OpKind kind;
  OpAccesses accesses;
  std::variant<LinearWork, JointExpertsWork, SwigluWork, RouterWork, AttentionWork, RopeWork, CombineWork,
               RankSumWork, HcPostWork, HcPreWork, NormWork, RowsWork, CandidatesWork, ExchangeWork,
               MergeCandidatesWork, ChosenList, AttentionPartWork, MergeAttentionWork, PackedTokensWork>
      work;
};

// Ops of one launch, or of two that belong together, in the order of calls.
struct OpGroup {
  std::vector<RecordedOp> ops;
  // Launched already: what is known of its results stands here for the next op.
  bool launched = false;
  // hc_pre's post and comb are another launch's work.
  bool leaves_mix = false;
  // A pair of linears: where its results go beside y, as this rank's part of a sum.
  PeerLinks links = {};
  // Row steps: the launch that they make.
  std::optional<RowGroup> rows = {};

  // The op fits, or is the first.
  void Add(RecordedOp op) {
    if (const auto* const step = std::get_if<RowsWork>(&op.work)) {
      if (!rows.has_value()) rows.emplace();
      rows->Add(*step);
    }
    ops.push_back(std::move(op));
  }

  const RecordedOp& first() const { return ops.front(); }
  const RecordedOp& last() const { return ops.back(); }
  template <typename Work>
  const Work& As(size_t i) const {
    return std::get<Work>(ops[i].work);
  }
  template <typename Work>
  const Work& Last() const {
    return std::get<Work>(last().work);
  }
};

}  // namespace dsv4::backend::cuda
