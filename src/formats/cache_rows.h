// Cached rows in their stored form (tensor/cache_format.h), to and from fp32, and what makes a format valid.
//
// Storing is not rounding: ops round first (formats/quantize.h), and a row that is on its format's grid is
// stored without loss. A row that is not is an error, never another row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "tensor/cache_format.h"

namespace dsv4 {

// "BF16", "448 x E4M3 / 64 E8M0 + BF16": for messages and reports.
std::string ToString(const CacheFormat& format);

// InvalidArgument for a format that rows of `width` elements cannot have. Faults are negative or too many
// coded columns and parts of a group. Others are e4m3 codes with e4m3 scales, and a part that is not aligned
// for its elements.
Status Validate(const CacheFormat& format, int64_t width);

// `row` gets format.RowBytes(values.size()); both of a valid format. A group's e8m0 scale is the smallest
// that holds its largest magnitude, and 1 for zeros. An e4m3 scale is that of the largest code that fits. So
// equal values are equal bytes, whichever scale rounded them. NaN is kept: by its own code in e4m3, by the
// scale in e2m1, where the whole group must be NaN. Signs of zeros are kept.
// InvalidArgument names the first column whose value the format cannot hold; the row is then unspecified.
Status PackRow(const CacheFormat& format, std::span<const float> values, std::byte* row);

// Any bytes: NaN codes and scales give NaN.
void UnpackRow(const CacheFormat& format, const std::byte* row, std::span<float> values);

}  // namespace dsv4
