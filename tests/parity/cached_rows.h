// Caches for op tests: rings and pages that own their rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "formats/cache_rows.h"
#include "formats/quantize.h"
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

// `values`, rows of `width`, as an op rounds them before they are stored in `format`: every row is then on
// its grid.
inline std::vector<double> RoundedFor(const CacheFormat& format, int64_t width,
                                      std::span<const double> values) {
  std::vector<float> rounded(values.begin(), values.end());
  for (size_t begin = 0; format.packed() && begin < rounded.size(); begin += static_cast<size_t>(width)) {
    const std::span<float> coded = std::span(rounded).subspan(begin, static_cast<size_t>(format.num_coded));
    if (format.code == CacheCode::kE4m3) {
      RoundToFp8Groups(coded, format.group, coded);
    } else {
      // Scales of powers of two are e4m3 as long as they are near 1.
      RoundToFp4Groups(coded, format.group, coded);
    }
  }
  return Rounded(format.dtype, std::vector<double>(rounded.begin(), rounded.end()));
}

// Rows of any format that an op stores or reads, behind and in front of bytes that are NaN as any code or
// scale.
class StoredRows {
 public:
  StoredRows(const CacheFormat& format, int64_t width, int64_t num_rows)
      : format_(format),
        width_(width),
        bytes_(static_cast<size_t>((num_rows + 2) * row_bytes()), std::byte{0xFF}) {}

  int64_t row_bytes() const { return format_.RowBytes(width_); }
  std::byte* Row(int64_t row) { return bytes_.data() + (row + 1) * row_bytes(); }
  void Put(int64_t row, std::span<const double> values) {
    const std::vector<float> narrow(values.begin(), values.end());
    const Status status = PackRow(format_, narrow, Row(row));
    DSV4_CHECK(status.ok()) << status.ToString();
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  CacheFormat format_;
  int64_t width_;
  std::vector<std::byte> bytes_;
};

// Pages of stored rows.
class StoredPages {
 public:
  StoredPages(const CacheFormat& format, int64_t width, int64_t rows_per_page,
              std::span<const double> values) {
    rows_.format = format;
    rows_.width = width;
    rows_.rows_per_page = rows_per_page;
    rows_.num_rows = static_cast<int64_t>(values.size()) / width;
    for (int64_t row = 0; row < rows_.num_rows; ++row) {
      if (row % rows_per_page == 0) {
        stored_.push_back(std::make_unique<StoredRows>(format, width, rows_per_page));
        pages_.push_back(stored_.back()->Row(0));
      }
      stored_.back()->Put(row % rows_per_page,
                          values.subspan(static_cast<size_t>(row * width), static_cast<size_t>(width)));
    }
  }
  ops::PagedRows rows() const {
    ops::PagedRows rows = rows_;
    rows.pages = pages_;
    return rows;
  }

 private:
  ops::PagedRows rows_;
  std::vector<std::unique_ptr<StoredRows>> stored_;
  std::vector<void*> pages_;
};

}  // namespace dsv4::test
