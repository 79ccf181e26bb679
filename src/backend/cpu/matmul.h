// y = quant(x) W^T before its rounding: what linear, grouped_linear and routed_experts share. Activations are
// packed once for each order a weight needs; rows of weights are then multiplied in ranges, on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/kernels/kernels.h"
#include "base/parallel.h"
#include "formats/weight.h"

namespace dsv4::backend::cpu {

// How the rows of a weight meet activations of a dtype on a tier.
struct MatmulPlan {
  const MatmulKernels* kernels = nullptr;
  RowFormat format = RowFormat::kF32;
  bool expand =
      false;  // Rows are dequantised to fp32 in front of the kernel: FP8 blocks that are no multiple of 32 columns.
  ActivationQuant quant = ActivationQuant::kNone;

  const FormatKernel& kernel() const { return kernels->formats[static_cast<int>(format)]; }
  const uint8_t* order() const { return kernel().order; }
  // The same packed activations serve both.
  bool SharesActivations(const MatmulPlan& other) const {
    return kernels == other.kernels && order() == other.order() && quant == other.quant;
  }
};
MatmulPlan PlanMatmul(const Kernels& kernels, const Weight& weight, DType x_dtype);

// Rows of activations, rounded as the plan says, in the kernel's order.
class Activations {
 public:
  Activations() = default;
  // rows[i]: `cols` contiguous elements of `dtype`.
  Activations(ThreadPool& threads, const Kernels& kernels, const MatmulPlan& plan,
              std::span<const uint8_t* const> rows, DType dtype, int64_t cols);
  int64_t num_rows() const { return num_rows_; }
  int64_t stride() const { return stride_; }
  const uint8_t* data() const { return data_.get(); }

  // Rows [begin, end), sharing this object's memory.
  Activations Slice(int64_t begin, int64_t end) const;
  // Copies of rows of others, all of them at once.
  struct Gathering {
    const Activations* from = nullptr;
    std::vector<int64_t> rows;
  };
  static std::vector<Activations> Gather(ThreadPool& threads, std::span<const Gathering> gatherings);

  // The rows of each as tiles, which MultiplyRange wants of those that were made for kernels that take tiles;
  // slices and copies have none. Nothing to do for other kernels.
  static void MakeTiles(ThreadPool& threads, std::span<Activations> of);
  const uint8_t* tiles() const { return tiles_.get(); }

 private:
  friend class ActivationPacker;
  std::shared_ptr<const uint8_t[]> data_;
  std::shared_ptr<const uint8_t[]> tiles_;
  int64_t num_rows_ = 0;
  int64_t stride_ = 0;  // Elements.
  int64_t row_bytes_ = 0;
  decltype(MatmulKernels::tile_activations) tile_ = nullptr;
};

// Packs rows that are made column by column.
class ActivationPacker {
 public:
  ActivationPacker(const Kernels& kernels, const MatmulPlan& plan, int64_t num_rows, DType dtype,
                   int64_t cols);
  // Columns [begin, end) of row `row`, which begins at `from`: whole packs, the last of a row excepted. On
  // any thread.
  void Pack(int64_t row, const uint8_t* from, int64_t begin, int64_t end) const;
  const MatmulPlan& plan() const { return plan_; }
  // The rows, once all columns of all of them are packed.
  const Activations& rows() const { return rows_; }

 private:
  const Kernels& kernels_;
  MatmulPlan plan_;
  DType dtype_;
  int64_t cols_;
  bool in_order_;  // The kernel's order is that of the columns.
  std::shared_ptr<uint8_t[]> data_;
  Activations rows_;
};

// out[i * out_stride + row - begin] = weight row `row` times row i of x, for rows [begin, end); fp32, all
// scales applied. Runs on the calling thread with scratch memory of its own.
void MultiplyRange(const MatmulPlan& plan, const Weight& weight, int64_t begin, int64_t end,
                   const Activations& x, float* out, int64_t out_stride);
// The same, rounded to `dtype` (BF16 or F32) and stored: element (i, row) at y + i * y_stride + row - begin.
void MultiplyRangeTo(const Kernels& kernels, const MatmulPlan& plan, const Weight& weight, int64_t begin,
                     int64_t end, const Activations& x, void* y, DType dtype, int64_t y_stride);

// Weight rows to hand a thread at a time. They are enough work to pay for handing it over, and whole kernel
// blocks when there are many tokens.
int64_t RangeRows(const Weight& weight, int64_t num_tokens);

// fp32 memory of the calling thread, kept between calls; at most one user at a time.
float* ThreadFloats(int64_t count);

}  // namespace dsv4::backend::cpu
