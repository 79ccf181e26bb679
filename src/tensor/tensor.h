// Shape, TensorView (borrows) and Buffer (owns): everything an op is handed.
//
// A view is a pointer, a dtype, a shape and strides in elements, slowest dimension first. Views are cheap to
// copy and never own; the maker of the memory keeps it alive. Memory belongs to a device; `Memory` is the
// only way to obtain or copy it, so code above the backends never names CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "base/status.h"
#include "tensor/dtype.h"

namespace dsv4 {

inline constexpr int kMaxRank = 4;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  // 1 for rank 0. Dims were checked not to overflow where they came from a file.
  int64_t num_elements() const;
  std::string ToString() const;  // "[2, 3]"

  friend bool operator==(const Shape& a, const Shape& b) = default;

 private:
  std::array<int64_t, kMaxRank> dims_ = {};
  int rank_ = 0;
};

enum class DeviceType : uint8_t { kHost, kCuda };

struct Device {
  DeviceType type = DeviceType::kHost;
  int index = 0;
  friend bool operator==(const Device& a, const Device& b) = default;
};

// A queue of device work. Opaque above the backends; null on the host.
using Stream = void*;

struct TensorView {
  void* data = nullptr;  // Null means "absent" where a contract allows it.
  DType dtype = DType::kF32;
  Shape shape;
  std::array<int64_t, kMaxRank> strides = {};  // In elements.
  Device device;

  // A contiguous view over `data`.
  static TensorView Contiguous(void* data, DType dtype, Shape shape, Device device = {});
  // The same over memory that must not be written: ops take it only for inputs.
  static TensorView Contiguous(const void* data, DType dtype, Shape shape, Device device = {});

  bool is_contiguous() const;
  bool is_null() const { return data == nullptr; }
  int64_t num_elements() const { return shape.num_elements(); }
  // Bytes of a contiguous tensor of this shape.
  int64_t num_bytes() const { return num_elements() * ElementBytes(dtype); }
  // Rows [begin, end) of the first dimension.
  TensorView Rows(int64_t begin, int64_t end) const;
  // The same elements of a contiguous view under another shape.
  TensorView Reshaped(Shape new_shape) const;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Owns bytes on a device; freed with the last owner. Copying a Buffer shares it.
class Buffer {
 public:
  Buffer() = default;
  // `owner` frees the memory when the last copy goes.
  Buffer(std::shared_ptr<void> owner, size_t num_bytes, Device device)
      : owner_(std::move(owner)), num_bytes_(num_bytes), device_(device) {}

  void* data() const { return owner_.get(); }
  size_t num_bytes() const { return num_bytes_; }
  Device device() const { return device_; }
  bool unique() const { return owner_.use_count() == 1; }
  explicit operator bool() const { return owner_ != nullptr; }

 private:
  std::shared_ptr<void> owner_;
  size_t num_bytes_ = 0;
  Device device_;
};

// A copy to the host in flight (Memory::StartCopyToHost).
class PendingCopy {
 public:
  PendingCopy() = default;
  // Waits: nothing is written once it is gone.
  virtual ~PendingCopy() = default;
  PendingCopy(const PendingCopy&) = delete;
  PendingCopy& operator=(const PendingCopy&) = delete;

  // Returns when the bytes are there, with what went wrong in all work queued before the copy. Later work may
  // still run.
  virtual Status Wait() = 0;
};

// Allocates and copies on one device. Implementations are thread-safe.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual Device device() const = 0;
  // At least 64-byte aligned; the bytes are zero. num_bytes == 0 gives a valid empty buffer.
  virtual Result<Buffer> Allocate(size_t num_bytes) = 0;
  // Within this device, ordered on `stream`.
  virtual Status Copy(void* destination, const void* source, size_t num_bytes, Stream stream) = 0;
  // Returns when `source` may be changed or freed; ordered on `stream` like Copy.
  virtual Status CopyFromHost(void* destination, const void* source, size_t num_bytes, Stream stream) = 0;
  // Returns when the bytes are in `destination`.
  virtual Status CopyToHost(void* destination, const void* source, size_t num_bytes, Stream stream) = 0;
  // Memory of the host that CopyToHost reaches fastest, at least 64-byte aligned; contents unspecified. May
  // outlive this.
  virtual Result<Buffer> AllocateOnHost(size_t num_bytes);
  // Whether the device works while the host goes on, so that it pays to queue work before one has seen what
  // earlier work gave.
  virtual bool asynchronous() const { return false; }
  // CopyToHost for a host that does not wait yet: `destination` is memory of AllocateOnHost and lives until
  // Wait has returned.
  virtual Result<std::unique_ptr<PendingCopy>> StartCopyToHost(void* destination, const void* source,
                                                               size_t num_bytes, Stream stream);
};

// The host's Memory: aligned allocations and memcpy. Lives for the whole process.
Memory& HostMemory();

}  // namespace dsv4
