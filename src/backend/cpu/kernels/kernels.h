// The functions that exist once per instruction-set tier. They take raw pointers and sizes, since an ISA unit
// shares no inline code with the rest. So the linker can never pick an AVX copy of a function for a machine
// without AVX.
//
// Every tier computes the same sums; only the order inside a sum differs. Within a tier the order for a pair
// (row, token) depends on the number of columns and the stored format alone. The number of tokens and the
// thread do not matter.
#pragma once

#include <cstdint>

#include "backend/cpu/kernels/fp4_keys.h"
#include "backend/cpu/kernels/panels.h"
#include "backend/cpu/kernels/rows.h"

namespace dsv4::backend::cpu {

// FP8 scales belong to chunks of so many columns,
inline constexpr int64_t kChunk = 128;
// or to so many columns of one.
inline constexpr int64_t kFineColumns = 32;
// Packed activations are padded with zeros to whole packs, and ordered pack by pack.
inline constexpr int64_t kPackColumns = 256;
// Kernels that multiply by tiles meet so many tokens in one.
inline constexpr int64_t kTileTokens = 16;

// How the elements of a stored row lie in memory (formats/weight.h). kFp8 means one scale per row and chunk,
// kFp8Fine one per row and kFineColumns.
enum class RowFormat : uint8_t { kF32, kF16, kBf16, kFp8, kMxFp4, kNvFp4, kFp8Fine };
inline constexpr int kNumRowFormats = 7;

// out[token * out_stride + row] = sum_k row[k] x[token][k], for all rows and tokens.
struct MultiplyArgs {
  const uint8_t* rows = nullptr;  // Row i at rows + i * row_bytes.
  int64_t row_bytes = 0;
  const uint8_t* scales = nullptr;  // kMxFp4, kNvFp4: the codes of row i at scales + i * scale_bytes.
  int64_t scale_bytes = 0;
  // kFp8: one per chunk, the same for all rows of the call. kFp8Fine: one per kFineColumns of whole chunks.
  const float* chunk_scales = nullptr;
  int64_t num_rows = 0;
  int64_t cols = 0;
  const void* x = nullptr;        // Packed, in the format's order.
  int64_t x_stride = 0;           // Elements from token to token, at least whole packs.
  const void* x_tiles = nullptr;  // Tiles that tile_activations made of x, where the kernels have it.
  int64_t num_tokens = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  void* scratch = nullptr;  // 64-byte aligned, kScratchBytesPerPack for every pack of columns.
};

// Look-up tables that depend on the columns, and unpacked weights of a block of rows.
inline constexpr int64_t kTableBytesPerPack = 512;
inline constexpr int64_t kUnpackedBytesPerPack = 32 * 2 * kPackColumns;
inline constexpr int64_t kScratchBytesPerPack = kTableBytesPerPack + kUnpackedBytesPerPack;

struct FormatKernel {
  const uint8_t* order = nullptr;                        // Which column of a pack is the i-th packed one.
  void (*multiply)(const MultiplyArgs& args) = nullptr;  // Null: not a format of these kernels.
  float unit = 1.0F;  // A power of two that results have to be multiplied by.
};

struct MatmulKernels {
  // Packed activations are bf16 (they must be exact in it) or fp32.
  bool bf16_activations = false;
  // The kernels take activations as tiles: packed rows, at most kTileTokens of them `row_bytes` apart and
  // `num_bytes` long, to at most kTileTokens * num_bytes at `to`. A single row is its tile as it lies. Null:
  // the kernels take rows.
  void (*tile_activations)(const uint8_t* rows, int64_t row_bytes, int64_t num_rows, int64_t num_bytes,
                           uint8_t* to) = nullptr;
  FormatKernel formats[kNumRowFormats] = {};  // By RowFormat.
  // Whole packs of bf16 in an order; null: element by element.
  void (*arrange)(const uint8_t* order, const uint8_t* in, int64_t count, uint8_t* out) = nullptr;
};

struct Kernels {
  MatmulKernels floats;
  MatmulKernels bf16;  // No formats: the tier has no bf16 dot products.
  RowKernels rows;
  PanelKernels float_panels;
  PanelKernels bf16_panels;  // `lanes` 0: the tier has no bf16 dot products.
  Fp4KeyKernels fp4_keys;

  // SIM8 of one row: groups of `group` columns, the last may be shorter (formats/quantize.h RoundToFp8Groups,
  // same bits).
  void (*round_fp8)(const float* in, int64_t count, int64_t group, float* out);
  // The same of bf16 at any address, into bf16, which holds the results exactly; null: by way of fp32. Whole
  // groups, of 128 or of 32.
  void (*round_fp8_bf16)(const uint8_t* in, int64_t count, int64_t group, uint8_t* out) = nullptr;
  // bf16, at any address, <-> fp32.
  void (*widen_bf16)(const uint8_t* in, int64_t count, float* out);
  void (*narrow_bf16)(const float* in, int64_t count, uint8_t* out);
};

// Defined by the units of the tiers; calling into a tier that the machine lacks is an illegal instruction. Weak:
// a program without a tier has them at no address (isa.cc).
namespace scalar {
[[gnu::weak]] extern const Kernels kKernels;
}
namespace avx2 {
[[gnu::weak]] extern const Kernels kKernels;
}
namespace avx512 {
[[gnu::weak]] extern const Kernels kKernels;
}
namespace avx512bf16 {
[[gnu::weak]] extern const MatmulKernels kBf16Matmul;  // The rest is avx512's.
}
namespace amx {
[[gnu::weak]] extern const MatmulKernels kBf16Matmul;  // The rest is avx512bf16's.
}

}  // namespace dsv4::backend::cpu
