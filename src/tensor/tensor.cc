// Shapes, views and buffers, and memory of the host.
#include "tensor/tensor.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/text.h"

namespace dsv4 {

Shape::Shape(std::initializer_list<int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  DSV4_CHECK(dims.size() <= kMaxRank) << "rank " << dims.size();
  size_t i = 0;
  for (const int64_t dim : dims) dims_[i++] = dim;
}

int64_t Shape::num_elements() const {
  int64_t count = 1;
  for (int i = 0; i < rank_; ++i) count *= (*this)[i];
  return count;
}

std::string Shape::ToString() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", (*this)[i]);
  return text + "]";
}

TensorView TensorView::Contiguous(void* data, DType dtype, Shape shape, Device device) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.shape = shape;
  view.device = device;
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    view.strides[static_cast<size_t>(i)] = stride;
    stride *= shape[i];
  }
  return view;
}

TensorView TensorView::Contiguous(const void* data, DType dtype, Shape shape, Device device) {
  return Contiguous(const_cast<void*>(data), dtype, shape, device);
}

bool TensorView::is_contiguous() const {
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[static_cast<size_t>(i)] != stride) return false;
    stride *= shape[i];
  }
  return true;
}

TensorView TensorView::Rows(int64_t begin, int64_t end) const {
  DSV4_CHECK(shape.rank() >= 1 && 0 <= begin && begin <= end && end <= shape[0])
      << "rows [" << begin << ", " << end << ") of " << shape.ToString();
  TensorView view = *this;
  view.data = static_cast<std::byte*>(data) + begin * strides[0] * ElementBytes(dtype);
  switch (shape.rank()) {
    case 1:
      view.shape = {end - begin};
      break;
    case 2:
      view.shape = {end - begin, shape[1]};
      break;
    case 3:
      view.shape = {end - begin, shape[1], shape[2]};
      break;
    default:
      view.shape = {end - begin, shape[1], shape[2], shape[3]};
      break;
  }
  return view;
}

TensorView TensorView::Reshaped(Shape new_shape) const {
  DSV4_CHECK(is_contiguous() && new_shape.num_elements() == num_elements())
      << shape.ToString() << " as " << new_shape.ToString();
  return Contiguous(data, dtype, new_shape, device);
}

namespace {

// Copy that CopyToHost has done already.
class DoneCopy final : public PendingCopy {
 public:
  Status Wait() override { return {}; }
};

class HostMemoryImpl final : public Memory {
 public:
  Device device() const override { return {}; }

  Result<Buffer> Allocate(size_t num_bytes) override {
    constexpr size_t kAlignment = 64;
    const size_t rounded = (num_bytes / kAlignment + 1) * kAlignment;
    void* data = std::aligned_alloc(kAlignment, rounded);
    if (data == nullptr) {
      return Error(
          ResourceExhausted(fmt::format("host memory: could not allocate {}", Counted(num_bytes, "byte"))));
    }
    std::memset(data, 0, rounded);
    return Buffer(std::shared_ptr<void>(data, std::free), num_bytes, device());
  }

  Status Copy(void* destination, const void* source, size_t num_bytes, Stream) override {
    if (num_bytes > 0) std::memmove(destination, source, num_bytes);
    return {};
  }
  Status CopyFromHost(void* destination, const void* source, size_t num_bytes, Stream stream) override {
    return Copy(destination, source, num_bytes, stream);
  }
  Status CopyToHost(void* destination, const void* source, size_t num_bytes, Stream stream) override {
    return Copy(destination, source, num_bytes, stream);
  }
};

}  // namespace

Memory& HostMemory() {
  static HostMemoryImpl memory;
  return memory;
}

Result<Buffer> Memory::AllocateOnHost(size_t num_bytes) { return HostMemory().Allocate(num_bytes); }

Result<std::unique_ptr<PendingCopy>> Memory::StartCopyToHost(void* destination, const void* source,
                                                             size_t num_bytes, Stream stream) {
  DSV4_TRY(CopyToHost(destination, source, num_bytes, stream));
  return std::make_unique<DoneCopy>();
}

}  // namespace dsv4
