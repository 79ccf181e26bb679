// GEMM over rows of stored weights: plans by format and tier, packed activations, and ranges of rows for
// threads.
#include "backend/cpu/matmul.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "backend/cpu/scratch.h"
#include "backend/cpu/values.h"
#include "base/check.h"
#include "base/per_thread.h"
#include "formats/number_formats.h"

namespace dsv4::backend::cpu {

namespace {

// Ranges are whole blocks of so many rows, and so many are dequantised at a time.
constexpr int64_t kRangeRows = 32;

int64_t NumChunks(int64_t cols) { return (cols + kChunk - 1) / kChunk; }
int64_t NumPacks(int64_t cols) { return (cols + kPackColumns - 1) / kPackColumns; }

// Rows of activations begin on cache lines: a vector that straddles two costs two loads.
std::shared_ptr<uint8_t[]> AlignedBytes(int64_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  return {static_cast<uint8_t*>(::operator new(static_cast<size_t>(bytes), kAlignment)),
          [](uint8_t* memory) { ::operator delete(memory, kAlignment); }};
}

struct ThreadMemory {
  Scratch kernel;    // Its own.
  Scratch expanded;  // Dequantised rows.
  Scratch scales;
  Scratch sums;
  Scratch row;
};

ThreadMemory& MatmulMemory() { return PerThread<ThreadMemory>(); }

float BlockScale(const TensorView& scales, int64_t index) {
  switch (scales.dtype) {
    case DType::kF8E8M0:
      return FloatFromE8m0(scales.as<const uint8_t>()[index]);
    case DType::kBF16: {
      uint16_t bits;
      std::memcpy(&bits, At(scales.data, scales.dtype, index), sizeof(bits));
      return FloatFromBf16(bits);
    }
    default: {
      float value;
      std::memcpy(&value, At(scales.data, scales.dtype, index), sizeof(value));
      return value;
    }
  }
}

// One scale for each `columns` of the rows of a block, for whole chunks.
const float* ChunkScales(const Weight& weight, int64_t block_row, int64_t columns) {
  const int64_t count = NumChunks(weight.cols) * (kChunk / columns);
  float* const scales = MatmulMemory().scales.Floats(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t column = i * columns;
    scales[i] = column < weight.cols
                    ? BlockScale(weight.scale, block_row * weight.scale.shape[1] + column / weight.block_cols)
                    : 1.0F;
  }
  return scales;
}

MultiplyArgs CommonArgs(int64_t cols, const Activations& x, int64_t out_stride) {
  MultiplyArgs args;
  args.cols = cols;
  args.x = x.data();
  args.x_stride = x.stride();
  args.x_tiles = x.tiles();
  args.num_tokens = x.num_rows();
  args.out_stride = out_stride;
  args.scratch = MatmulMemory().kernel.Get(NumPacks(cols) * kScratchBytesPerPack);
  return args;
}

// Dequantises a few rows at a time and multiplies them as fp32.
void MultiplyExpanded(const MatmulPlan& plan, const Weight& weight, int64_t begin, int64_t end,
                      MultiplyArgs args, float* out) {
  float* const rows = MatmulMemory().expanded.Floats(kRangeRows * weight.cols);
  for (int64_t first = begin; first < end; first += kRangeRows) {
    args.num_rows = std::min(kRangeRows, end - first);
    for (int64_t r = 0; r < args.num_rows; ++r) DequantizeRow(weight, first + r, rows + r * weight.cols);
    args.rows = reinterpret_cast<const uint8_t*>(rows);
    args.row_bytes = weight.cols * static_cast<int64_t>(sizeof(float));
    args.out = out + first - begin;
    plan.kernel().multiply(args);
  }
}

}  // namespace

float* ThreadFloats(int64_t count) { return MatmulMemory().row.Floats(count); }

MatmulPlan PlanMatmul(const Kernels& kernels, const Weight& weight, DType x_dtype) {
  MatmulPlan plan;
  plan.quant = weight.activation;
  switch (weight.format) {
    case WeightFormat::kPlain:
      plan.format = weight.data.dtype == DType::kF32   ? RowFormat::kF32
                    : weight.data.dtype == DType::kF16 ? RowFormat::kF16
                                                       : RowFormat::kBf16;
      break;
    case WeightFormat::kFp8Block:
      plan.expand = weight.block_cols % kFineColumns != 0;
      plan.format = plan.expand                       ? RowFormat::kF32
                    : weight.block_cols % kChunk == 0 ? RowFormat::kFp8
                                                      : RowFormat::kFp8Fine;
      break;
    case WeightFormat::kMxFp4:
      plan.format = RowFormat::kMxFp4;
      break;
    case WeightFormat::kNvFp4:
      plan.format = RowFormat::kNvFp4;
      break;
  }
  // bf16 activations are exact in bf16, and so are those rounded to e4m3 times a power of two.
  const bool exact = x_dtype == DType::kBF16 || weight.activation != ActivationQuant::kNone;
  plan.kernels = exact ? &kernels.bf16 : &kernels.floats;
  if (plan.kernel().multiply == nullptr) plan.kernels = &kernels.floats;
  return plan;
}

ActivationPacker::ActivationPacker(const Kernels& kernels, const MatmulPlan& plan, int64_t num_rows,
                                   DType dtype, int64_t cols)
    : kernels_(kernels),
      plan_(plan),
      dtype_(dtype),
      cols_(cols),
      in_order_(std::is_sorted(plan.order(), plan.order() + kPackColumns)) {
  const int64_t element_bytes = plan.kernels->bf16_activations ? 2 : 4;
  rows_.num_rows_ = num_rows;
  rows_.tile_ = plan.kernels->tile_activations;
  // Rows a power of two apart would meet in a few sets of the first-level cache: a line between them.
  rows_.stride_ = NumPacks(cols) * kPackColumns + 64 / element_bytes;
  rows_.row_bytes_ = rows_.stride_ * element_bytes;
  data_ = AlignedBytes(num_rows * rows_.row_bytes_);
  rows_.data_ = data_;
}

void ActivationPacker::Pack(int64_t row, const uint8_t* from, int64_t begin, int64_t end) const {
  const bool bf16 = plan_.kernels->bf16_activations;
  const int64_t element_bytes = bf16 ? 2 : 4;
  // bf16 that stays bf16.
  const bool rounds = plan_.quant != ActivationQuant::kNone;
  const int64_t group = ActivationGroup(plan_.quant);
  const bool narrow_from_start = bf16 && dtype_ == DType::kBF16 &&
                                 (!rounds || (kernels_.round_fp8_bf16 != nullptr && cols_ % group == 0));
  const int64_t count = end - begin;
  const int64_t padded = NumPacks(count) * kPackColumns;
  uint8_t* const to = data_.get() + row * rows_.row_bytes_ + begin * element_bytes;
  from += begin * ElementBytes(dtype_);
  float* const values = ThreadFloats(padded + padded / 2);
  uint8_t* const in_columns = in_order_ ? to : reinterpret_cast<uint8_t*>(values + padded);
  const auto arrange = [&]<typename T>(const T* in) {
    for (int64_t pack = 0; pack < padded; pack += kPackColumns) {
      T packed[kPackColumns];
      for (size_t i = 0; i < kPackColumns; ++i) packed[i] = in[pack + plan_.order()[i]];
      std::memcpy(to + pack * element_bytes, packed, sizeof(packed));
    }
  };
  if (narrow_from_start) {
    if (rounds) {
      kernels_.round_fp8_bf16(from, count, group, in_columns);
    } else {
      std::memcpy(in_columns, from, static_cast<size_t>(2 * count));
    }
    std::fill(in_columns + 2 * count, in_columns + 2 * padded, uint8_t{0});
  } else {
    LoadFloats(kernels_, from, dtype_, count, values);
    std::fill(values + count, values + padded, 0.0F);
    if (rounds) kernels_.round_fp8(values, count, group, values);
    if (bf16) {
      kernels_.narrow_bf16(values, padded, in_columns);
    } else if (in_order_) {
      std::memcpy(to, values, static_cast<size_t>(padded) * sizeof(float));
    } else {
      arrange(values);
    }
  }
  if (!bf16 || in_order_) return;
  if (plan_.kernels->arrange != nullptr) return plan_.kernels->arrange(plan_.order(), in_columns, padded, to);
  arrange(reinterpret_cast<const uint16_t*>(in_columns));
}

Activations::Activations(ThreadPool& threads, const Kernels& kernels, const MatmulPlan& plan,
                         std::span<const uint8_t* const> rows, DType dtype, int64_t cols) {
  const auto num_rows = static_cast<int64_t>(rows.size());
  const ActivationPacker packer(kernels, plan, num_rows, dtype, cols);
  constexpr int64_t kElementsPerTask = 1 << 14;
  threads.ParallelFor(num_rows, std::max<int64_t>(1, kElementsPerTask / cols),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t row = begin; row < end; ++row)
                          packer.Pack(row, rows[static_cast<size_t>(row)], 0, cols);
                      });
  *this = packer.rows();
}

Activations Activations::Slice(int64_t begin, int64_t end) const {
  Activations slice = *this;
  slice.tiles_ = nullptr;
  slice.data_ = std::shared_ptr<const uint8_t[]>(data_, data_.get() + begin * row_bytes_);
  slice.num_rows_ = end - begin;
  return slice;
}

void Activations::MakeTiles(ThreadPool& threads, std::span<Activations> of) {
  struct Tile {
    const Activations* rows;
    int64_t first;
    uint8_t* to;
  };
  std::vector<Tile> tiles;
  int64_t num_bytes = 0;
  for (Activations& rows : of) {
    if (rows.tile_ == nullptr || rows.num_rows_ == 0) continue;
    if (rows.num_rows_ == 1) {
      rows.tiles_ = rows.data_;
      continue;
    }
    const int64_t num_tiles = (rows.num_rows_ + kTileTokens - 1) / kTileTokens;
    const std::shared_ptr<uint8_t[]> made = AlignedBytes(num_tiles * kTileTokens * rows.row_bytes_);
    rows.tiles_ = made;
    for (int64_t first = 0; first < rows.num_rows_; first += kTileTokens)
      tiles.push_back({&rows, first, made.get() + first * rows.row_bytes_});
    num_bytes += rows.num_rows_ * rows.row_bytes_;
  }
  constexpr int64_t kBytesPerTask = 1 << 15;
  const auto num_tiles = static_cast<int64_t>(tiles.size());
  threads.ParallelFor(
      num_tiles, num_tiles * kBytesPerTask / (num_bytes + 1), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const auto& [rows, first, to] = tiles[static_cast<size_t>(i)];
          rows->tile_(rows->data_.get() + first * rows->row_bytes_, rows->row_bytes_,
                      std::min(kTileTokens, rows->num_rows_ - first), rows->row_bytes_ - 64, to);
        }
      });
}

std::vector<Activations> Activations::Gather(ThreadPool& threads, std::span<const Gathering> gatherings) {
  struct Copy {
    const uint8_t* from;
    uint8_t* to;
    int64_t num_bytes;
  };
  std::vector<Activations> gathered;
  std::vector<Copy> copies;
  for (const Gathering& gathering : gatherings) {
    const Activations& from = *gathering.from;
    const auto num_rows = static_cast<int64_t>(gathering.rows.size());
    if (num_rows == 1) {
      gathered.push_back(from.Slice(gathering.rows[0], gathering.rows[0] + 1));
      continue;
    }
    Activations& rows = gathered.emplace_back(from);
    rows.num_rows_ = num_rows;
    rows.tiles_ = nullptr;
    const std::shared_ptr<uint8_t[]> data = AlignedBytes(num_rows * from.row_bytes_);
    rows.data_ = data;
    for (int64_t i = 0; i < num_rows; ++i) {
      copies.push_back({from.data_.get() + gathering.rows[static_cast<size_t>(i)] * from.row_bytes_,
                        data.get() + i * from.row_bytes_, from.row_bytes_});
    }
  }
  if (copies.empty()) return gathered;
  constexpr int64_t kBytesPerTask = 1 << 16;
  threads.ParallelFor(static_cast<int64_t>(copies.size()),
                      std::max<int64_t>(1, kBytesPerTask / copies.front().num_bytes),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) {
                          const Copy& copy = copies[static_cast<size_t>(i)];
                          std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.num_bytes));
                        }
                      });
  return gathered;
}

void MultiplyRange(const MatmulPlan& plan, const Weight& weight, int64_t begin, int64_t end,
                   const Activations& x, float* out, int64_t out_stride) {
  MultiplyArgs args = CommonArgs(weight.cols, x, out_stride);
  if (plan.expand) return MultiplyExpanded(plan, weight, begin, end, args, out);
  args.row_bytes = weight.format == WeightFormat::kPlain || weight.format == WeightFormat::kFp8Block
                       ? weight.cols * ElementBytes(weight.data.dtype)
                       : weight.cols / 2;
  for (int64_t first = begin; first < end;) {
    int64_t last = end;
    if (weight.format == WeightFormat::kFp8Block) {
      const int64_t block_row = first / weight.block_rows;
      last = std::min(end, (block_row + 1) * weight.block_rows);
      args.chunk_scales =
          ChunkScales(weight, block_row, plan.format == RowFormat::kFp8Fine ? kFineColumns : kChunk);
    } else if (weight.format != WeightFormat::kPlain) {
      args.scale_bytes = weight.scale.shape[1];
      args.scales = weight.scale.as<const uint8_t>() + first * args.scale_bytes;
    }
    args.rows = weight.data.as<const uint8_t>() + first * args.row_bytes;
    args.num_rows = last - first;
    args.out = out + first - begin;
    plan.kernel().multiply(args);
    first = last;
  }
  if (weight.format != WeightFormat::kNvFp4) return;
  const float unit = plan.kernel().unit;
  const float global = weight.global_scale_divides
                           ? static_cast<float>(1.0 / static_cast<double>(weight.global_scale))
                           : weight.global_scale;
  for (int64_t t = 0; t < x.num_rows(); ++t) {
    for (int64_t i = 0; i < end - begin; ++i)
      out[t * out_stride + i] = out[t * out_stride + i] * unit * global;
  }
}

void MultiplyRangeTo(const Kernels& kernels, const MatmulPlan& plan, const Weight& weight, int64_t begin,
                     int64_t end, const Activations& x, void* y, DType dtype, int64_t y_stride) {
  // As many rows as leave the sums in the first-level cache.
  constexpr int64_t kMostSums = 4096;
  const int64_t step = std::max(kRangeRows, kMostSums / x.num_rows() / kRangeRows * kRangeRows);
  for (int64_t first = begin; first < end; first += step) {
    const int64_t num_rows = std::min(step, end - first);
    float* const sums = MatmulMemory().sums.Floats(x.num_rows() * num_rows);
    MultiplyRange(plan, weight, first, first + num_rows, x, sums, num_rows);
    for (int64_t t = 0; t < x.num_rows(); ++t) {
      StoreFloats(kernels, sums + t * num_rows, num_rows,
                  static_cast<uint8_t*>(y) + (first - begin + t * y_stride) * ElementBytes(dtype), dtype);
    }
  }
}

int64_t RangeRows(const Weight& weight, int64_t num_tokens) {
  constexpr int64_t kProductsPerRange = 1 << 16;
  const int64_t rows =
      std::max<int64_t>(1, kProductsPerRange / std::max<int64_t>(1, weight.cols * num_tokens));
  return (rows + kRangeRows - 1) / kRangeRows * kRangeRows;
}

}  // namespace dsv4::backend::cpu
