// Caches for op tests: rings and pages that own their rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/row_store.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {

// A ring whose slots are poison until a row is put there.
class TestRing {
 public:
  TestRing(DType dtype, int64_t capacity, int64_t width) : rows_(dtype, {capacity, width}) {}

  // The row of `position` goes to slot position mod capacity.
  void Put(int64_t position, std::span<const double> row) {
    const TensorView& view = rows_.view();
    const int64_t slot = position % view.shape[0];
    const TestTensor source(view.dtype, {view.shape[1]}, row);
    const std::vector<std::byte> bytes = source.Bytes();
    std::copy(bytes.begin(), bytes.end(),
              view.as<std::byte>() + slot * view.shape[1] * ElementBytes(view.dtype));
  }

  ops::RingRows rows() const {
    const TensorView& view = rows_.view();
    return {view.data, view.shape[0], view.shape[1], view.dtype};
  }
  const TestTensor& tensor() const { return rows_; }

 private:
  TestTensor rows_;
};

// Pages of `rows_per_page` rows, each its own guarded allocation; `values` are the rows in order.
class TestPages {
 public:
  TestPages(DType dtype, int64_t width, int64_t rows_per_page, std::span<const double> values)
      : dtype_(dtype), width_(width), rows_per_page_(rows_per_page) {
    num_rows_ = static_cast<int64_t>(values.size()) / width;
    for (int64_t begin = 0; begin < num_rows_; begin += rows_per_page) {
      const int64_t count = std::min(rows_per_page, num_rows_ - begin);
      // Rows past the last valid one stay poison: nobody may read them.
      tensors_.push_back(std::make_unique<TestTensor>(dtype, Shape{rows_per_page, width}));
      std::vector<double> page = tensors_.back()->Values();
      const auto from = values.begin() + begin * width;
      std::copy(from, from + count * width, page.begin());
      tensors_.back()->Set(page);
      pages_.push_back(tensors_.back()->view().data);
    }
  }

  ops::PagedRows rows() const { return {pages_, rows_per_page_, num_rows_, width_, dtype_}; }

 private:
  DType dtype_;
  int64_t width_;
  int64_t rows_per_page_;
  int64_t num_rows_ = 0;
  std::vector<std::unique_ptr<TestTensor>> tensors_;
  std::vector<void*> pages_;
};

}  // namespace dsv4::test
