// Which ops become one launch: the one list of rules. An op's file asks for a rule where it can apply it (CudaContext::Fused says that
// it did); the bits are those of the ops one by one, and DSV4_CUDA_SYNC=1 runs them one by one. docs/cuda/fusion.md is made of this list.
//
// A rule applies when the launch to replace is the last and still in the list (DeviceQueue::LaunchInPlaceOf), and no block of the fused
// launch writes what another block reads or writes: MayRunTogether decides that from what both declare.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "backend/cuda/runtime/memory_range.h"

namespace dsv4::backend::cuda {

enum class FusionRule : uint8_t {
  kLinearsGemv,
  kLinearsSplitK,
  kGroupedLinearPair,
  kExpertsAndLinear,
  kSwigluRouter,
  kAttentionRope,
  kRowSteps,
  kCombinePost,
  kPostPre,
  kPreNorm,
  kCombIntoLinear,
  kIndexerList,
  kPackedTokens,
  kSumOverRanks,
  kPairSend,
  kCandidatesOverRanks,
  kAttentionOverRanks,
};

struct FusionRow {
  FusionRule rule;
  const char* name;
  const char* ops;     // In the order of calls.
  const char* launch;  // The file of the kernel that does them, below kernels/ or collectives/.
  const char* up_to;
};

// One row a rule, in the order of the enum.
std::span<const FusionRow> FusionRows();
const FusionRow& RowOf(FusionRule rule);
std::string FusionTableMarkdown();

// What an op reads and writes beside what only its own blocks touch.
struct Accesses {
  std::span<const MemoryRange> reads;
  std::span<const MemoryRange> writes;
};

// Whether blocks of the two ops may run in any order: neither writes what the other reads or writes.
bool MayRunTogether(const Accesses& first, const Accesses& second);

// Limits of rules that are not those of their kernels (lowering/select).
inline constexpr int64_t kMaxFusedMatrices = 8;
inline constexpr int64_t kMaxFusedExpertsLinearTokens = 1;

}  // namespace dsv4::backend::cuda
