// The checker itself: every kind of violation, each message with what was got and wanted.
#include "ops/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dsv4::ops {
namespace {

using ::testing::HasSubstr;

std::array<std::byte, 4096> memory;

TensorView At(size_t byte, DType dtype, Shape shape) {
  return TensorView::Contiguous(static_cast<void*>(memory.data() + byte), dtype, shape);
}

Status Checked(const std::function<void(OperandChecker&)>& body) {
  OperandChecker check("test");
  body(check);
  return check.status();
}

TEST(OperandChecker, AcceptsWhatFits) {
  const Status status = Checked([](OperandChecker& check) {
    check.Operand("x", At(0, DType::kBF16, {2, 8}), {DType::kF32, DType::kBF16}, {2, kAnyDim});
    check.Operand("empty", TensorView::Contiguous(static_cast<void*>(nullptr), DType::kF32, {0, 8}),
                  {DType::kF32}, {0, 8});
    check.Require(true, "n", int64_t{1}, "1");
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(OperandChecker, ShapeDTypeNullLayoutDevice) {
  const auto message = [](const TensorView& view, Layout layout = Layout::kContiguous) {
    const Status status = Checked([&](OperandChecker& check) {
      check.Operand("x", view, {DType::kBF16, DType::kF32}, {2, kAnyDim}, layout);
    });
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(message(At(0, DType::kF32, {3, 8})), "op test: x: shape [3, 8], want [2, *]");
  EXPECT_EQ(message(At(0, DType::kF32, {2})), "op test: x: shape [2], want [2, *]");
  EXPECT_EQ(message(At(0, DType::kF32, {2, 8, 1})), "op test: x: shape [2, 8, 1], want [2, *]");
  EXPECT_EQ(message(At(0, DType::kF32, {2, -8})), "op test: x: shape [2, -8], want [2, *]");
  EXPECT_EQ(message(At(0, DType::kI32, {2, 8})), "op test: x: dtype I32, want BF16 or F32");
  EXPECT_EQ(message(TensorView::Contiguous(static_cast<void*>(nullptr), DType::kF32, {2, 8})),
            "op test: x: null, want memory for shape [2, 8]");

  TensorView slice = At(0, DType::kF32, {2, 8});
  slice.strides[0] = 20;
  EXPECT_THAT(message(slice), HasSubstr("strides [20, 1] for shape [2, 8], want contiguous"));
  EXPECT_EQ(message(slice, Layout::kRows), "");
  slice.strides[0] = 7;
  EXPECT_THAT(message(slice, Layout::kRows), HasSubstr("rows that do not overlap"));
  slice.strides = {1, 2, 0, 0};
  EXPECT_THAT(message(slice, Layout::kRows), HasSubstr("a contiguous last dim"));

  const Status devices = Checked([](OperandChecker& check) {
    TensorView other = At(64, DType::kF32, {2, 8});
    other.device = {DeviceType::kCuda, 1};
    check.Operand("x", At(0, DType::kF32, {2, 8}), {DType::kF32}, {2, 8});
    check.Operand("y", other, {DType::kF32}, {2, 8});
  });
  EXPECT_EQ(devices.message(),
            "op test: y: on another device than the operands before it, want one device for all");
}

TEST(OperandChecker, Overlap) {
  const auto disjoint = [](const TensorView& a, const TensorView& b) {
    return Checked([&](OperandChecker& check) { check.Disjoint("y", a, "x", b); }).ok();
  };
  const auto same_or_disjoint = [](const TensorView& a, const TensorView& b) {
    return Checked([&](OperandChecker& check) { check.SameOrDisjoint("y", a, "x", b); }).ok();
  };
  const TensorView x = At(0, DType::kF32, {4, 8});  // Bytes 0 to 127.
  EXPECT_FALSE(disjoint(x, x));
  EXPECT_TRUE(same_or_disjoint(x, x));
  EXPECT_TRUE(disjoint(At(128, DType::kF32, {4, 8}), x));
  EXPECT_FALSE(disjoint(At(124, DType::kF32, {4, 8}), x));
  EXPECT_FALSE(same_or_disjoint(At(124, DType::kF32, {4, 8}), x));
  EXPECT_FALSE(same_or_disjoint(At(0, DType::kBF16, {4, 8}), x));
  EXPECT_TRUE(disjoint(At(64, DType::kF32, {0, 8}), x));

  // Columns [0, 8) and [8, 16) of one matrix do not touch. Columns [0, 8) and [7, 15) do, and so do the last
  // columns and the next row's first.
  const auto columns = [](int64_t begin, int64_t width) {
    TensorView view = At(static_cast<size_t>(begin) * 4, DType::kF32, {4, width});
    view.strides[0] = 16;
    return view;
  };
  EXPECT_TRUE(disjoint(columns(0, 8), columns(8, 8)));
  EXPECT_TRUE(disjoint(columns(8, 8), columns(0, 8)));
  EXPECT_FALSE(disjoint(columns(0, 8), columns(7, 8)));
  EXPECT_FALSE(disjoint(columns(0, 8), columns(12, 8)));
  EXPECT_FALSE(disjoint(columns(0, 8), At(0, DType::kF32, {4, 8})));
}

TEST(OperandChecker, KeepsTheFirstViolation) {
  const Status status = Checked([](OperandChecker& check) {
    check.Require(false, "first", int64_t{3}, "at least 4");
    check.Require(false, "second", 0.5F, "more");
    check.Operand("x", TensorView(), {}, {2});
  });
  EXPECT_EQ(status.message(), "op test: first: 3, want at least 4");
}

struct Range {
  int64_t token_begin;
  int64_t num_tokens;
  int64_t first_position;
};

TEST(OperandChecker, SequencesTileTheTokens) {
  const auto message = [](const std::vector<Range>& ranges, int64_t num_tokens) {
    return Checked(
               [&](OperandChecker& check) { check.Sequences(std::span<const Range>(ranges), num_tokens); })
        .message();
  };
  EXPECT_EQ(message({}, 0), "");
  EXPECT_EQ(message({{0, 3, 7}, {3, 0, 0}, {3, 2, 0}}, 5), "");
  EXPECT_EQ(message({{0, 3, 7}}, 5), "op test: sequences: 3 tokens in all, want 5");
  EXPECT_EQ(message({{0, 3, 0}, {4, 1, 0}}, 4), "op test: sequences[1]: token_begin 4, want 3");
  EXPECT_EQ(message({{0, 3, 0}, {2, 1, 0}}, 4), "op test: sequences[1]: token_begin 2, want 3");
  EXPECT_EQ(message({{0, 1, -1}}, 1), "op test: sequences[0]: first_position -1, want none below 0");
  EXPECT_EQ(message({{0, -1, 0}, {-1, 2, 0}}, 1), "op test: sequences[0]: num_tokens -1, want none below 0");
}

TEST(OperandChecker, RingsAndPages) {
  const auto ring = [](RingRows rows) {
    return Checked([&](OperandChecker& check) { check.Ring("ring", rows, 8, DType::kBF16, 4); }).message();
  };
  const RingRows good = {memory.data(), 4, 8, DType::kBF16};
  EXPECT_EQ(ring(good), "");
  EXPECT_EQ(ring({nullptr, 4, 8, DType::kBF16}), "op test: ring: null, want memory");
  EXPECT_EQ(ring({memory.data(), 3, 8, DType::kBF16}), "op test: ring: capacity 3, want at least 4");
  EXPECT_EQ(ring({memory.data(), 4, 9, DType::kBF16}), "op test: ring: width 9, want 8");
  EXPECT_EQ(ring({memory.data(), 4, 8, DType::kF32}), "op test: ring: dtype F32, want BF16");

  void* const two[] = {memory.data(), memory.data() + 64};
  void* const hole[] = {memory.data(), nullptr};
  const auto pages = [](PagedRows rows) {
    return Checked([&](OperandChecker& check) { check.Pages("keys", rows, 8, DType::kBF16, 5); }).message();
  };
  EXPECT_EQ(pages({two, 4, 6, 8, DType::kBF16}), "");
  EXPECT_EQ(pages({two, 4, 4, 8, DType::kBF16}), "op test: keys: 4 rows, want at least 5");
  EXPECT_EQ(pages({std::span(two).first(1), 4, 6, 8, DType::kBF16}),
            "op test: keys: 1 page, want at least 2");
  EXPECT_EQ(pages({hole, 4, 6, 8, DType::kBF16}), "op test: keys: page 1 is null, want memory");
  EXPECT_EQ(pages({two, 0, 6, 8, DType::kBF16}), "op test: keys: 0 rows a page, want at least 1");
  EXPECT_EQ(pages({two, 4, 6, 7, DType::kBF16}), "op test: keys: width 7, want 8");
  EXPECT_EQ(pages({two, 4, 6, 8, DType::kF32}), "op test: keys: dtype F32, want BF16");
}

}  // namespace
}  // namespace dsv4::ops
