// Fault that a kernel reports when the data it reads breaks the contract of its op. Shared by host and device
// code.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

enum class FaultKind : int32_t {
  kNone = 0,
  kTokenId,         // embed: place[0] token, value, limit ids
  kPosition,        // rope: place[0] token, value
  kRouterTokenId,   // router: place[0] token, value, limit ids
  kHashExpert,      // router: place[0] id, place[1] slot, value, limit experts
  kExpertIndex,     // routed_experts: place[0] token, place[1] slot, value, limit experts
  kTermIndex,       // expert_terms: as kExpertIndex
  kSummedIndex,     // sum_terms: as kExpertIndex
  kSelectedEntry,   // attention: place[0] token, place[1] slot, value, limit visible entries
  kRepeatedEntry,   // attention: place[0] token, value
  kCandidateBlock,  // indexer_select: place[0] token, place[1] slot, value block, limit visible entries
  kCacheRow,        // store_rows: place[0] row, place[1] column, value bits of an fp32 number
  // routed_experts whose experts the host multiplies: place[0] layer with such experts, place[1] rows, value
  // number of the request
  kHostExpertsLate,  // limit ms
  kHostExpertsFailed,
};

struct Fault {
  FaultKind kind = FaultKind::kNone;
  int64_t place[2] = {0, 0};
  int64_t value = 0;
  int64_t limit = 0;
};

}  // namespace dsv4::backend::cuda
