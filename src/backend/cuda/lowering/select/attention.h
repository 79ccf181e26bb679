// Which kernel attends: attention, attention_part.
#pragma once

#include <span>

#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/lowering/room_for.h"
#include "backend/cuda/lowering/rule.h"
#include "tensor/dtype.h"

namespace dsv4::backend::cuda {

struct AttentionShape {
  DType dtype = DType::kBF16;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t max_keys = 0;  // Keys of a token: of its window and its entries.
  StoredForm rows = StoredForm::kWide;
  const void* q = nullptr;
  const void* o = nullptr;
  RoomFor column_clusters;  // For hopper_cluster_columns.
};

enum class AttentionPath : uint8_t {
  kHopperClusterColumns,
  kHopperInRegisters,
  kHopperTwoPass,
  kDecodeCluster,
  kMma,
  kAny,
};

std::span<const Rule<AttentionPath, AttentionShape>> AttentionRules();
inline Plan<AttentionPath> ChooseAttention(const AttentionShape& shape, const DeviceLimits& device) {
  return FirstFit(AttentionRules(), shape, device);
}

// attention_part, where no launch over ranks has it.
struct AttentionPartShape {
  DType dtype = DType::kBF16;
  int64_t head_dim = 0;
};
enum class AttentionPartPath : uint8_t { kMma, kAny };
std::span<const Rule<AttentionPartPath, AttentionPartShape>> AttentionPartRules();
inline Plan<AttentionPartPath> ChooseAttentionPart(const AttentionPartShape& shape,
                                                   const DeviceLimits& device) {
  return FirstFit(AttentionPartRules(), shape, device);
}

// Blocks that share a token and 64 heads in hopper_cluster_columns: as many as fill the device; 0: it has no
// room for all clusters.
int BlocksOfColumns(const AttentionShape& shape);

// Blocks that share a token and 16 heads in decode_cluster, whose keys are `tiles` tiles: 8, or as many of 16
// and 4 as take less time. A block takes its tiles one after the other, and clusters that the device has no
// room for wait. Rows of one sequence are often 16 clusters, of which an H100 holds fewer where they are of 8
// blocks. `room(blocks)`: of so many clusters; 0: of none.
int BlocksOfDecodeCluster(int64_t tiles, int64_t clusters, const RoomFor& room);
// Tiles that a block's shared memory holds the results of.
inline constexpr int64_t kMaxDecodeBlockTiles = 4;
// The same of attention_over_ranks, whose clusters have 8 blocks or 4.
int BlocksOfAttentionOverRanks(int64_t tiles, int64_t clusters, const RoomFor& room);

// Shared memory of a block of decode_cluster that holds the results of so many tiles.
constexpr size_t DecodeClusterSharedBytes(int64_t head_dim, int64_t tiles) {
  constexpr size_t kHeads = 16;
  constexpr size_t kKeys = 64;
  constexpr size_t kPad = 8;
  const auto dim = static_cast<size_t>(head_dim);
  const size_t tile =
      (kKeys + kHeads) * (dim + kPad) * 2 + kHeads * (kKeys + kPad) * 2 + kKeys * sizeof(void*);
  const size_t results =
      kHeads * (dim > kKeys + 4 ? dim : kKeys + 4) * sizeof(float) + kHeads * sizeof(float);
  return tile + kHeads * sizeof(float) + static_cast<size_t>(tiles) * results;
}

// Whether packed rows of the release are widened in front of attention (kernels/attention/widen_rows.h),
// which then reads wide ones. Each row that the tokens together may read must be read several times, and
// there must be memory for them.
struct RowReads {
  StoredForm rows = StoredForm::kWide;
  int64_t num_tokens = 0;
  int64_t num_rows = 0;   // Different ones.
  int64_t num_reads = 0;  // Reads of all tokens.
};
bool WidensFirst(const RowReads& reads);
// For fewer a launch more would cost what it saves. Rows of V4.1, which Hopper's kernels read wide alone,
// from kMinColumnsTokens on.
inline constexpr int64_t kMinWidenedTokens = 65;
inline constexpr int64_t kMinReadsOfRow = 4;
inline constexpr int64_t kMaxWidenedRows = int64_t{1} << 16;  // 64 MiB; four times that of V4.1.

// `count` or a little more: 1, 2, 3, 4, 6, 8, 12, 16, ... Launches whose size follows the context are made
// for such numbers. A sequence's next step is thereby launched as the one before it, and runs as the same
// graph.
int64_t InSteps(int64_t count);
// The same for keys, in tiles of kAttentionTileKeys, with a step at each threshold of the rules. Launches of
// attention may depend on this function of a step's positions only.
int64_t KeysInSteps(int64_t count);

// Limit of every kernel: a block of 128 threads holds eight columns a thread, and sorts a list in 32 KB of
// shared memory.
inline constexpr int64_t kMaxAttentionHeadDim = 1024;
inline constexpr int64_t kMaxAttentionList = 8192;

inline constexpr int64_t kMaxDecodeClusterTokens = 8;
inline constexpr int64_t kMaxDecodeClusterTiles =
    32;  // Tiles of 64 keys: what the shared memory of a cluster holds.
inline constexpr int64_t kMaxDecodeClusterFrequencies =
    64;  // Columns of a rotation of its output: half as many as a block has threads.
inline constexpr int64_t kMinColumnsTokens = 9;  // Fewer have decode_cluster, which rotates the output too.
inline constexpr int64_t kMaxColumnsTiles = 20;
inline constexpr int64_t kMinInRegistersTokens = 65;
inline constexpr int64_t kMaxInRegistersTiles = 10;
inline constexpr int64_t kMinTwoPassTokens = 40;  // A block a token: fewer leave most of the device idle.
inline constexpr int64_t kAttentionTileKeys = 64;

}  // namespace dsv4::backend::cuda
