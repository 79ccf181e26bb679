// Reads and stores of reference ops: every dtype to double, cached rows of every format, and rounding at the
// store.
#include "backend/reference/values.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "formats/cache_rows.h"

namespace dsv4::backend::reference {

namespace {

template <typename T>
T Load(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <typename Out>
void LoadAs(const void* data, DType dtype, int64_t begin, std::span<Out> out) {
  const int64_t count = static_cast<int64_t>(out.size());
  Out* const to = out.data();
  switch (dtype) {
    case DType::kF32:
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Out>(Load<float>(data, begin + i));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i)
        to[i] = static_cast<Out>(FloatFromBf16(Load<uint16_t>(data, begin + i)));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i)
        to[i] = static_cast<Out>(FloatFromF16(Load<uint16_t>(data, begin + i)));
      return;
    default:
      DSV4_CHECK(false) << "values of dtype " << DTypeName(dtype);
  }
}

}  // namespace

void LoadValues(const void* data, DType dtype, int64_t begin, std::span<double> out) {
  LoadAs(data, dtype, begin, out);
}

void LoadValues(const void* data, DType dtype, int64_t begin, std::span<float> out) {
  LoadAs(data, dtype, begin, out);
}

void StoreValues(std::span<const double> values, void* data, DType dtype, int64_t begin) {
  DSV4_CHECK(dtype == DType::kF32 || dtype == DType::kBF16) << "store to dtype " << DTypeName(dtype);
  std::byte* const to = static_cast<std::byte*>(data) + begin * ElementBytes(dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = static_cast<float>(values[i]);
    if (dtype == DType::kF32) {
      std::memcpy(to + i * sizeof(float), &value, sizeof(value));
    } else {
      const uint16_t bits = Bf16FromFloat(value);
      std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
    }
  }
}

std::vector<double> LoadAll(const TensorView& view) {
  std::vector<double> values(static_cast<size_t>(view.num_elements()));
  LoadValues(view.data, view.dtype, 0, std::span<double>(values));
  return values;
}

int64_t LoadInteger(const TensorView& view, int64_t index) {
  return view.dtype == DType::kI64 ? Load<int64_t>(view.data, index) : Load<int32_t>(view.data, index);
}

namespace {

// Row `index` of those that follow each other at `rows`.
void LoadCachedRow(const void* rows, const CacheFormat& format, int64_t index, std::span<double> out) {
  const auto width = static_cast<int64_t>(out.size());
  const auto* const row = static_cast<const std::byte*>(rows) + index * format.RowBytes(width);
  if (!format.packed()) return LoadValues(row, format.dtype, 0, out);
  std::vector<float> values(out.size());
  UnpackRow(format, row, values);
  std::copy(values.begin(), values.end(), out.begin());
}

}  // namespace

void LoadRingRow(const ops::RingRows& ring, int64_t position, std::span<double> out) {
  LoadCachedRow(ring.data, ring.format, RingSlot(ring, position), out);
}

void LoadPagedRow(const ops::PagedRows& rows, int64_t index, std::span<double> out) {
  LoadCachedRow(rows.pages[static_cast<size_t>(index / rows.rows_per_page)], rows.format,
                index % rows.rows_per_page, out);
}

double Dot(const double* a, const double* b, int64_t count) {
  // Independent partial sums, so that the compiler may use vector registers without changing the order.
  constexpr int64_t kLanes = 8;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  double tail = 0.0;
  for (; i < count; ++i) tail += a[i] * b[i];
  for (const double sum : sums) tail += sum;
  return tail;
}

void AddScaled(double factor, std::span<const double> row, std::span<double> sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * row[i];
}

}  // namespace dsv4::backend::reference
