// Checker that keeps the first violation of an op's operands: rank, dims, dtypes, strides, devices and
// overlap.
#include "ops/validate.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "formats/cache_rows.h"

namespace dsv4::ops {

namespace {

std::string WantedShape(const Shape& want) {
  std::string text = "[";
  for (int i = 0; i < want.rank(); ++i) {
    text += i == 0 ? "" : ", ";
    text += want[i] == kAnyDim ? "*" : std::to_string(want[i]);
  }
  return text + "]";
}

bool Fits(const Shape& shape, const Shape& want) {
  if (shape.rank() != want.rank()) return false;
  for (int i = 0; i < want.rank(); ++i) {
    if (shape[i] < 0 || (want[i] != kAnyDim && shape[i] != want[i])) return false;
  }
  return true;
}

std::string WantedDTypes(std::initializer_list<DType> dtypes) {
  std::string text;
  for (const DType dtype : dtypes) {
    text += text.empty() ? "" : " or ";
    text += DTypeName(dtype);
  }
  return text;
}

bool HasLayout(const TensorView& view, Layout layout) {
  if (layout == Layout::kContiguous) return view.is_contiguous();
  const bool last_contiguous = view.shape[1] <= 1 || view.strides[1] == 1;
  const bool rows_apart = view.shape[0] <= 1 || view.strides[0] >= view.shape[1];
  return last_contiguous && rows_apart;
}

std::string Strides(const TensorView& view) {
  std::string text = "strides [";
  for (int i = 0; i < view.shape.rank(); ++i) {
    text += i == 0 ? "" : ", ";
    text += std::to_string(view.strides[static_cast<size_t>(i)]);
  }
  return text + "] for shape " + view.shape.ToString();
}

// The bytes from the first to one past the last element.
struct Extent {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

Extent ExtentOf(const TensorView& view) {
  int64_t last = 0;
  for (int i = 0; i < view.shape.rank(); ++i)
    last += (view.shape[i] - 1) * view.strides[static_cast<size_t>(i)];
  const uintptr_t begin = reinterpret_cast<uintptr_t>(view.data);
  return {begin, begin + static_cast<uintptr_t>((last + 1) * ElementBytes(view.dtype))};
}

// Two column slices of one row-major allocation: equal row strides, and the columns of one fall into the gap
// of the other.
bool InterleavedWithoutTouching(const TensorView& a, const TensorView& b) {
  if (a.shape.rank() != 2 || b.shape.rank() != 2) return false;
  const int64_t stride = a.strides[0] * ElementBytes(a.dtype);
  if (stride <= 0 || stride != b.strides[0] * ElementBytes(b.dtype)) return false;
  const int64_t width_a = a.shape[1] * ElementBytes(a.dtype);
  const int64_t width_b = b.shape[1] * ElementBytes(b.dtype);
  const int64_t distance = reinterpret_cast<intptr_t>(b.data) - reinterpret_cast<intptr_t>(a.data);
  const int64_t offset = ((distance % stride) + stride) % stride;
  return offset >= width_a && offset + width_b <= stride;
}

bool Overlap(const TensorView& a, const TensorView& b) {
  if (a.num_elements() == 0 || b.num_elements() == 0 || a.device != b.device) return false;
  const Extent x = ExtentOf(a);
  const Extent y = ExtentOf(b);
  return x.begin < y.end && y.begin < x.end && !InterleavedWithoutTouching(a, b);
}

bool SameElements(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.shape != b.shape || a.device != b.device) return false;
  for (int i = 0; i < a.shape.rank(); ++i) {
    const size_t dim = static_cast<size_t>(i);
    if (a.shape[i] > 1 && a.strides[dim] != b.strides[dim]) return false;
  }
  return true;
}

}  // namespace

void OperandChecker::Operand(std::string_view name, const TensorView& view,
                             std::initializer_list<DType> dtypes, const Shape& want, Layout layout) {
  if (!ok()) return;
  if (!Fits(view.shape, want)) return Fail(name, "shape " + view.shape.ToString(), WantedShape(want));
  if (std::find(dtypes.begin(), dtypes.end(), view.dtype) == dtypes.end()) {
    return Fail(name, fmt::format("dtype {}", DTypeName(view.dtype)), WantedDTypes(dtypes));
  }
  if (view.num_elements() == 0) return;
  if (view.is_null()) return Fail(name, "null", fmt::format("memory for shape {}", view.shape.ToString()));
  if (!HasLayout(view, layout)) {
    return Fail(
        name, Strides(view),
        layout == Layout::kContiguous ? "contiguous" : "a contiguous last dim and rows that do not overlap");
  }
  CheckDevice(name, view.device);
}

void OperandChecker::WeightOperand(std::string_view name, const Weight* weight, int64_t rows, int64_t cols) {
  if (!ok()) return;
  if (weight == nullptr) return Fail(name, "null", "a weight");
  if ((rows != kAnyDim && weight->rows != rows) || (cols != kAnyDim && weight->cols != cols)) {
    return Fail(name, fmt::format("[{}, {}]", weight->rows, weight->cols), WantedShape({rows, cols}));
  }
  if (const Status status = ValidateWeight(*weight, name); !status.ok()) {
    status_ = status.WithContext(fmt::format("op {}", op_));
    return;
  }
  CheckDevice(name, weight->data.device);
}

void OperandChecker::Disjoint(std::string_view name, const TensorView& view, std::string_view other_name,
                              const TensorView& other) {
  if (ok() && Overlap(view, other)) {
    Fail(name, fmt::format("overlaps {}", other_name), "separate memory");
  }
}

void OperandChecker::SameOrDisjoint(std::string_view name, const TensorView& view,
                                    std::string_view other_name, const TensorView& other) {
  if (ok() && !SameElements(view, other) && Overlap(view, other)) {
    Fail(name, fmt::format("overlaps {} in part", other_name), "the same or separate memory");
  }
}

void OperandChecker::Format(std::string_view name, const CacheFormat& format, int64_t width, DType dtype) {
  if (format.dtype != dtype)
    return Fail(name, fmt::format("dtype {}", DTypeName(format.dtype)), DTypeName(dtype));
  if (!format.packed()) return;
  if (Status status = dsv4::Validate(format, width); !status.ok())
    status_ = status.WithContext(fmt::format("op {}: {}", op_, name));
}

void OperandChecker::Ring(std::string_view name, const RingRows& ring, int64_t width, DType dtype,
                          int64_t min_capacity) {
  if (!ok()) return;
  if (ring.width != width) return Fail(name, fmt::format("width {}", ring.width), std::to_string(width));
  Format(name, ring.format, width, dtype);
  if (!ok()) return;
  if (ring.capacity < min_capacity) {
    return Fail(name, fmt::format("capacity {}", ring.capacity), fmt::format("at least {}", min_capacity));
  }
  if (ring.data == nullptr) Fail(name, "null", "memory");
}

// Messages are made when there is something to say: a long sequence has thousands of pages, in every layer of
// every step.
void OperandChecker::Pages(std::string_view name, const PagedRows& rows, int64_t width, DType dtype,
                           int64_t min_rows) {
  if (!ok()) return;
  if (rows.num_rows < min_rows) {
    return Fail(name, Counted(rows.num_rows, "row"), fmt::format("at least {}", min_rows));
  }
  if (min_rows == 0) return;
  if (rows.width != width) return Fail(name, fmt::format("width {}", rows.width), std::to_string(width));
  Format(name, rows.format, width, dtype);
  if (!ok()) return;
  if (rows.rows_per_page < 1)
    return Fail(name, fmt::format("{} a page", Counted(rows.rows_per_page, "row")), "at least 1");
  const int64_t num_pages = (min_rows + rows.rows_per_page - 1) / rows.rows_per_page;
  const auto got = static_cast<int64_t>(rows.pages.size());
  if (got < num_pages) return Fail(name, Counted(got, "page"), fmt::format("at least {}", num_pages));
  const auto needed = rows.pages.first(static_cast<size_t>(num_pages));
  const auto hole = std::find(needed.begin(), needed.end(), nullptr);
  if (hole != needed.end()) Fail(name, fmt::format("page {} is null", hole - needed.begin()), "memory");
}

void OperandChecker::Require(bool condition, std::string_view name, std::string_view got,
                             std::string_view want) {
  if (ok() && !condition) Fail(name, got, want);
}

void OperandChecker::Require(bool condition, std::string_view name, int64_t got, std::string_view want) {
  if (ok() && !condition) Fail(name, std::to_string(got), want);
}

void OperandChecker::Require(bool condition, std::string_view name, float got, std::string_view want) {
  if (ok() && !condition) Fail(name, fmt::format("{}", got), want);
}

void OperandChecker::Fail(std::string_view name, std::string_view got, std::string_view want) {
  status_ = InvalidArgument(fmt::format("op {}: {}: {}, want {}", op_, name, got, want));
}

void OperandChecker::CheckDevice(std::string_view name, Device device) {
  if (!device_) device_ = device;
  Require(device == *device_, name, "on another device than the operands before it", "one device for all");
}

void OperandChecker::TokenRange(size_t index, int64_t token_begin, int64_t num_tokens, int64_t first_position,
                                int64_t want_begin) {
  if (!ok()) return;
  const auto fail = [&](std::string_view field, int64_t got, std::string_view want) {
    Fail(fmt::format("sequences[{}]", index), fmt::format("{} {}", field, got), want);
  };
  if (num_tokens < 0) return fail("num_tokens", num_tokens, "none below 0");
  if (first_position < 0) return fail("first_position", first_position, "none below 0");
  if (token_begin != want_begin) fail("token_begin", token_begin, std::to_string(want_begin));
}

}  // namespace dsv4::ops
