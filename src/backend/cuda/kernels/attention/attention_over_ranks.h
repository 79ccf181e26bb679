// Attention of one token over ranks that divide its entries, in one launch: queries to the entries, parts of what they find back to
// their heads, merged and rotated. It does what five launches do, one after the other joining the first (attention_part, merge_attention
// and rope between an all-gather and an all-to-all of LL words), whose bits are the same, and whose words travel as theirs: what
// another rank has joined does not matter.
#pragma once

#include <memory>
#include <span>

#include "backend/cuda/collectives/ll_exchange.h"
#include "backend/cuda/kernels/attention/attention_part.h"
#include "backend/cuda/kernels/attention/sequences.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "ops/merge_attention.h"
#include "ops/rope.h"

namespace dsv4::backend::cuda {

struct AttentionOverRanks;

// The launch is an LL all-gather of `num_bytes` from every rank into `all`: it may be one of a token's queries.
void NoteGathered(CudaContext& context, uint64_t launch, const PeerLinks& links, const void* mine, void* all,
                  int64_t num_bytes);

// What the kernel needs to gather the queries of this attention_part, if the open attention's launch is their all-gather, and the last, and
// the kernel takes such a part; else null.
std::shared_ptr<AttentionOverRanks> OpenQueries(CudaContext& context, const PartParams& part, DType dtype,
                                                int64_t max_keys);
// Launches it, in place of `before` unless that is 0; false: too late.
bool PartOverRanks(CudaContext& context, uint64_t before, const AttentionOverRanks& over_ranks,
                   const SequenceTable& table, const PartParams& part, int64_t max_keys);

// The same for an all-to-all of parts, pieces of `piece_bytes` for every rank,
bool PartsJoinPart(CudaContext& context, const void* mine, void* parts, std::span<const int64_t> piece_bytes);
// for merge_attention,
bool MergeJoinsParts(CudaContext& context, const ops::MergeAttentionArgs& args);
// and for the rotation of what that gives.
bool RopeJoinsRanks(CudaContext& context, const ops::RopeArgs& args);

}  // namespace dsv4::backend::cuda
