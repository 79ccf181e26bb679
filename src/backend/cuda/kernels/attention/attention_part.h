// attention_part: its parameters, which rows are here, its lists, its kernels; and merge_attention.
#pragma once

#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/lowering/work/over_ranks.h"
#include "backend/cuda/lowering/work/part_params.h"
#include "base/status.h"
#include "ops/merge_attention.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// The rows that are here of one token's list, and how many (RowsToList).
void LaunchPartRows(LaunchContext& context, const SequenceTable& table, const PartParams& params,
                    const RowsToList& list);

// `work` without its list: params say where the rows are.
Status LaunchAttentionPart(LaunchContext& context, const AttentionPartWork& work, AttentionPartPath kernel);

void LaunchMergeAttention(LaunchContext& context, const ops::MergeAttentionArgs& args);

}  // namespace dsv4::backend::cuda
