// Tests of tensors: dtype names, rows, reshapes, contiguity, alignment and shared buffers.
#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace dsv4 {
namespace {

TEST(DType, NamesRoundTrip) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E8M0,
                            DType::kI8, DType::kU8, DType::kI32, DType::kI64}) {
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
    EXPECT_GT(ElementBytes(dtype), 0);
  }
  EXPECT_FALSE(DTypeFromName("C64").has_value());
}

TEST(TensorView, RowsAndReshape) {
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0F);
  const TensorView view = TensorView::Contiguous(values.data(), DType::kF32, {4, 6});
  const TensorView rows = view.Rows(1, 3);
  EXPECT_EQ(rows.shape, (Shape{2, 6}));
  EXPECT_EQ(rows.as<float>()[0], 6.0F);
  EXPECT_TRUE(rows.is_contiguous());
  EXPECT_EQ(view.Reshaped({2, 2, 6}).strides[0], 12);
}

TEST(TensorView, ColumnSliceIsNotContiguous) {
  std::vector<float> values(24);
  TensorView view = TensorView::Contiguous(values.data(), DType::kF32, {4, 3});
  view.strides[0] = 6;
  EXPECT_FALSE(view.is_contiguous());
}

TEST(HostMemory, IsAlignedZeroedAndShared) {
  Buffer copy;
  {
    const Result<Buffer> buffer = HostMemory().Allocate(100);
    ASSERT_TRUE(buffer.has_value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0U);
    EXPECT_EQ(static_cast<const char*>(buffer->data())[99], 0);
    copy = *buffer;
    EXPECT_FALSE(copy.unique());
  }
  EXPECT_TRUE(copy.unique());
  EXPECT_TRUE(HostMemory().Allocate(0).has_value());
}

}  // namespace
}  // namespace dsv4
