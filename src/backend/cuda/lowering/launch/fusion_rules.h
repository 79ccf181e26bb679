// Which ops become one launch: the one table of rules. The bits are those of the ops one by one, and
// DSV4_CUDA_SYNC=1 runs them one by one. docs/cuda/fusion.md is made of this table.
//
// Ops are recorded in the order of calls (recorded_op.h). A rule names two kinds of op that may follow each
// other, and says whether these two fit. Blocks of one launch may get in each other's way. One function
// decides that from the declared reads and writes of ops (MayShareLaunch in accesses.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "backend/cuda/lowering/launch/recorded_op.h"

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
  kPackedTokens,
  kSumOverRanks,
  kPairSend,
  kCandidatesOverRanks,
  kAttentionOverRanks,
};

// Fate of the next op where a rule fits.
enum class Effect : uint8_t {
  kJoin,       // Part of the group's launch.
  kOwnLaunch,  // A launch of its own, which is told what the group has left: OpGroup::launched.
  kHandOver,   // A launch of its own, behind the group's; work goes from one to the other.
};

// Answers that the rules ask of the device: its shared memory (DeviceLimits), and how many blocks of a kernel
// it runs at once. The latter depends on the compiled kernel.
class DeviceRoom {
 public:
  virtual ~DeviceRoom() = default;
  virtual size_t shared_bytes() const = 0;
  // gemm/gemv_pair: whether there is a kernel for the two, and all its blocks run at once.
  virtual bool HoldsPair(const LinearWork& groups, const LinearWork& linear) const = 0;
  // moe/gemv_joint: whether all its blocks run at once, with room for tiles of all matrices.
  virtual bool HoldsExpertsAndLinear(const JointExpertsWork& experts, const LinearWork& linear) const = 0;
  // hyper_connection/hc_cluster.
  virtual bool HoldsHcCluster(int64_t dim, bool over_ranks) const = 0;
};

// The group's last op and the next one.
struct FusionPattern {
  OpKind first = {};
  OpKind next = {};
  Effect effect = Effect::kJoin;
  bool (*fits)(const OpGroup& group, const RecordedOp& next,
               const DeviceRoom& room) = nullptr;                 // Null: no pattern.
  void (*hand_over)(OpGroup& group, RecordedOp& next) = nullptr;  // For kHandOver.
};

struct FusionRow {
  FusionRule rule;
  const char* name;
  const char* ops;     // In the order of calls.
  const char* launch;  // The file of the kernel that does them, below kernels/ or collectives/.
  const char* up_to;
  std::array<FusionPattern, 5> patterns = {};
};

// One row a rule, in the order of the enum.
std::span<const FusionRow> FusionRows();
const FusionRow& RowOf(FusionRule rule);
std::string FusionTableMarkdown();

struct Fusion {
  FusionRule rule;
  const FusionPattern* pattern;
};
// The first rule that the two fit.
std::optional<Fusion> FindFusion(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room);

// Limits of rules that are not those of their kernels (lowering/select).
inline constexpr int64_t kMaxFusedExpertsLinearTokens = 8;

}  // namespace dsv4::backend::cuda
