// For tests: the host's memory, to change one function of.
#pragma once

#include "tensor/tensor.h"

namespace dsv4 {

class ForwardingHostMemory : public Memory {
 public:
  Device device() const override { return HostMemory().device(); }
  Result<Buffer> Allocate(size_t num_bytes) override { return HostMemory().Allocate(num_bytes); }
  Status Copy(void* to, const void* from, size_t num_bytes, Stream stream) override {
    return HostMemory().Copy(to, from, num_bytes, stream);
  }
  Status CopyFromHost(void* to, const void* from, size_t num_bytes, Stream stream) override {
    return HostMemory().CopyFromHost(to, from, num_bytes, stream);
  }
  Status CopyToHost(void* to, const void* from, size_t num_bytes, Stream stream) override {
    return HostMemory().CopyToHost(to, from, num_bytes, stream);
  }
};

}  // namespace dsv4
