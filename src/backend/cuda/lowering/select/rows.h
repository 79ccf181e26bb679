// Which kernels turn rows into rows: norms, rope, rounding, scaling, pools, stores, SwiGLU and moe_combine.
#pragma once

#include <cstddef>
#include <span>

#include "backend/cuda/lowering/rule.h"
#include "backend/cuda/lowering/select/hyper_connection.h"
#include "tensor/cache_format.h"
#include "tensor/dtype.h"

namespace dsv4::backend::cuda {

// x [num_tokens, num_heads, width] of head_rms_norm and rope.
struct HeadsShape {
  DType x_dtype = DType::kBF16;
  DType y_dtype = DType::kBF16;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t width = 0;
  const void* x = nullptr;
  const void* y = nullptr;
};
// Path kManyHeads is a launch of its own. Path kRows becomes a step of the launch on rows in front of it,
// which runs as head_rows, many_rows or row_tracks.
enum class HeadsPath : uint8_t { kManyHeads, kRows };
std::span<const Rule<HeadsPath, HeadsShape>> HeadNormRules();
std::span<const Rule<HeadsPath, HeadsShape>> RopeRules();

// Steps on `num_rows` rows: the kernel of the launch that they share. `norm_first`: the first step is
// rms_norm.
struct RowsShape {
  int64_t num_rows = 0;
  bool is_bf16 = true;
  bool one_track = true;
  bool norm_first = false;
  bool of_heads = false;  // head_rms_norm, rope, hadamard_fp4.
};
enum class RowsPath : uint8_t { kHeadRows, kManyRows, kRowTracks };
std::span<const Rule<RowsPath, RowsShape>> RowsRules();

inline constexpr int64_t kMinManyHeadsTokens = 257;
inline constexpr int64_t kMinManyHeads = 8;
inline constexpr int64_t kManyHeadRows = 1024;
inline constexpr int64_t kManyRows = 257;

// `count` elements, in rows of `width`.
struct ElementsShape {
  DType dtype = DType::kBF16;
  int64_t count = 0;
  int64_t width = 0;
  const void* a = nullptr;  // Operands and the result, for their alignment.
  const void* b = nullptr;
  const void* y = nullptr;
};
enum class ElementsPath : uint8_t { kSeveral, kEach };
std::span<const Rule<ElementsPath, ElementsShape>> SwigluRules();
std::span<const Rule<ElementsPath, ElementsShape>> MoeCombineRules();

// scale: a step on one row, or a launch of its own.
struct ScaleShape {
  int64_t count = 0;
};
enum class ScalePath : uint8_t { kRows, kEach };
std::span<const Rule<ScalePath, ScaleShape>> ScaleRules();

// store_rows. A step on rows has an operand that the launch in front has too (Lowering::ContinuesRows).
// Without one, and for rows that no step takes, they are packed or copied by a launch of their own.
struct StoreShape {
  DType dtype = DType::kBF16;
  size_t num_runs = 0;
  bool packs = false;
  CacheScale scale = CacheScale::kE8m0;  // Scale of packed rows.
  bool continues_rows = false;
};
enum class StorePath : uint8_t { kRows, kPack, kCopy };
std::span<const Rule<StorePath, StoreShape>> StoreRules();
// Whether a launch that packs has a row in the registers of its block.
bool PacksInRegisters(const CacheFormat& format, int64_t width);

// compressor_pool: entries of few tokens are rows, which later steps go on with; others have a launch of
// their own.
struct PoolShape {
  DType dtype = DType::kBF16;
  int64_t tokens_of_entry = 0;
  int64_t width = 0;
};
enum class PoolPath : uint8_t { kRows, kPool };
std::span<const Rule<PoolPath, PoolShape>> PoolRules();

inline constexpr int64_t kMaxRowWidth = 16384;  // Width of steps on rows, in elements.
// Runs of a step that stores: a block looks through them at once.
inline constexpr size_t kMaxJoinedRuns = 64;
// A row of bf16 that a block has in registers, and groups of it that are rounded or packed. A group of e4m3
// has two warps, one of e2m1 has one.
inline constexpr int kRegisterColumns = 4;  // A thread's.
inline constexpr int kMaxRegisterRow = kRegisterColumns * kNarrowRowThreads;
inline constexpr int kRegisterGroup = 64;
inline constexpr int kRegisterWarpGroup = 32;  // V4.1's: of a warp, e4m3 and e2m1 alike.
inline constexpr int kRegisterE2m1Group = 32;
inline constexpr int kRegisterHalfGroup = 16;  // V4.1's entries: of half a warp.
// Groups of e4m3 that are rounded and packed in registers.
constexpr bool IsRegisterE4m3Group(int64_t group) {
  return group == kRegisterGroup || group == kRegisterWarpGroup;
}
// Limits of PooledRow (kernels/rows/compressor_rows.cuh) takes: so many tokens of an entry, and columns.
inline constexpr int kMaxPooledInRows = 8;
inline constexpr int64_t kMaxPooledWidth = kMaxRegisterRow;

// hadamard_fp4 without a rotation: a step on rows, or a launch of its own.
struct RoundShape {
  DType dtype = DType::kBF16;
  int64_t num_rows = 0;
  int64_t width = 0;
  int64_t group = 0;
  const void* x = nullptr;
};
enum class RoundPath : uint8_t { kEights, kRows };
std::span<const Rule<RoundPath, RoundShape>> RoundRules();

inline constexpr int64_t kManyElements = int64_t{1} << 20;
inline constexpr int64_t kMaxRouterAndSwigluTokens = 8;  // More fill the device without sharing a launch.

}  // namespace dsv4::backend::cuda
