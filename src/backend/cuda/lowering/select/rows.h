// Which kernels turn rows into rows: norms, rope, rounding, stores, SwiGLU and moe_combine.
#pragma once

#include <span>

#include "backend/cuda/lowering/rule.h"
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
// kManyHeads is a launch of its own. kRows becomes a step of the launch on rows in front of it, which runs as head_rows, many_rows or
// row_tracks.
enum class HeadsPath : uint8_t { kManyHeads, kRows };
std::span<const Rule<HeadsPath, HeadsShape>> HeadNormRules();
std::span<const Rule<HeadsPath, HeadsShape>> RopeRules();

// Steps on `num_rows` rows: the kernel of the launch that they share. `norm_first`: the first step is rms_norm.
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

inline constexpr int64_t kManyElements = int64_t{1} << 20;
inline constexpr int64_t kMaxRouterAndSwigluTokens = 8;  // More fill the device without sharing a launch.

}  // namespace dsv4::backend::cuda
