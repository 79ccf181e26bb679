// Common parts of the contract tests. Every op's Validate passes a valid call and an empty one. It reports
// each violation with what, which, got and wanted (field-lessons.md N7 and N8).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "ops/op_table.h"

namespace dsv4::ops {

inline constexpr DType kBF16 = DType::kBF16;
inline constexpr DType kF32 = DType::kF32;
inline constexpr DType kI32 = DType::kI32;

// Hands out tensors that do not overlap; Validate never reads them.
class ContractTest : public ::testing::Test {
 protected:
  TensorView New(DType dtype, Shape shape) {
    TensorView view = TensorView::Contiguous(static_cast<void*>(memory_.data() + used_), dtype, shape);
    used_ += static_cast<size_t>((view.num_bytes() + 63) / 64 * 64);
    EXPECT_LE(used_, memory_.size());
    return view;
  }

  template <typename Args>
  void ExpectOk(const Args& args) {
    const Status status = Validate(args);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  // `mutate` makes one thing wrong in a copy of `valid`.
  template <typename Args>
  void ExpectViolation(const Args& valid, const std::function<void(Args&)>& mutate, const std::string& text) {
    Args args = valid;
    mutate(args);
    const Status status = Validate(args);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), ::testing::HasSubstr(text));
    EXPECT_THAT(status.message(), ::testing::StartsWith("op "));
  }

  static void Slice(TensorView& view) { view.strides[0] += 8; }

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 20);
  size_t used_ = 0;
};

}  // namespace dsv4::ops
