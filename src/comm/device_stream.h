// Services that a communicator on device memory asks of the device: a stream that orders everything, and
// small computations between exchanges. The CUDA backend has one; tests have one on host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"

namespace dsv4::comm {

class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // Calls queue(stream), a cudaStream_t, with the device current; everything asked for before is on the
  // stream by then, and nothing else gets onto it meanwhile.
  virtual Status Queue(const char* what, const std::function<Status(void* stream)>& queue) = 0;

  // Memory of the device for one exchange, contents unspecified. The next call may give the same: the stream
  // keeps them apart.
  virtual Result<std::byte*> Scratch(size_t num_bytes) = 0;

  // These only inside Queue, with memory of the device.
  // Row i of `row_bytes` from `from` + i * from_stride to `to` + i * to_stride.
  virtual Status CopyRows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
                          int64_t row_bytes, int64_t num_rows) = 0;
  // sum[i] = ((parts[0][i] + parts[1][i]) + ...) in fp32; parts [num_parts, count]. `sum` may be one of them.
  virtual Status SumParts(const float* parts, int num_parts, int64_t count, float* sum) = 0;
  // A number, greater than all before, that Reached() becomes when the stream gets here.
  virtual Result<uint64_t> Mark() = 0;

  // From any thread, without waiting.
  virtual uint64_t Reached() const = 0;
};

}  // namespace dsv4::comm
