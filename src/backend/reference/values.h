// How the reference ops read and write tensors. Values widen to double on the way in. Every store is a
// rounding point: to fp32 first (the release's accumulators), then to the dtype of the memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/number_formats.h"
#include "ops/row_store.h"
#include "tensor/tensor.h"

namespace dsv4::backend::reference {

// An intermediate that the release holds as a tensor of the activations' dtype. With bf16 it is rounded. With
// f32 (the `plain` numerics, where nothing is rounded) it stays wide.
inline double HeldAs(DType dtype, double value) {
  return dtype == DType::kBF16 ? static_cast<double>(RoundToBf16(static_cast<float>(value))) : value;
}

// `out.size()` elements of `data`, from element `begin` on. F32, BF16 or F16; any alignment.
void LoadValues(const void* data, DType dtype, int64_t begin, std::span<double> out);
void LoadValues(const void* data, DType dtype, int64_t begin, std::span<float> out);
// Rounds to F32 or BF16.
void StoreValues(std::span<const double> values, void* data, DType dtype, int64_t begin);

// One row of the first dimension, as many elements as `out` has.
inline void LoadRow(const TensorView& view, int64_t row, std::span<double> out) {
  LoadValues(view.data, view.dtype, row * view.strides[0], out);
}
inline void StoreRow(std::span<const double> values, const TensorView& view, int64_t row) {
  StoreValues(values, view.data, view.dtype, row * view.strides[0]);
}

// A whole contiguous tensor, for the small ones (norm weights, sinks).
std::vector<double> LoadAll(const TensorView& view);

// Entry of a contiguous integer tensor, I32 or I64.
int64_t LoadInteger(const TensorView& view, int64_t index);

// Addresses and contents of cached rows, packed or not; `out` is as wide as they are.
inline int64_t RingSlot(const ops::RingRows& ring, int64_t position) { return position % ring.capacity; }
void LoadRingRow(const ops::RingRows& ring, int64_t position, std::span<double> out);
void LoadPagedRow(const ops::PagedRows& rows, int64_t index, std::span<double> out);

// sum_i a[i] b[i] in double. The order of summation depends on `count` alone.
double Dot(const double* a, const double* b, int64_t count);
// sum[i] += factor * row[i].
void AddScaled(double factor, std::span<const double> row, std::span<double> sum);

}  // namespace dsv4::backend::reference
