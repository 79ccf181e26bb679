// The fast backend of the GPU's parity tests: CUDA, queued and op by op, on operands mirrored to the device.
#include "backend/cuda/cuda_backend.h"
#include "base/check.h"
#include "tests/cuda/device_mirror.h"
#include "tests/parity/backends.h"

namespace dsv4::test {

namespace {

ops::Backend MakeCuda(bool synchronous) {
  auto made = backend::MakeCudaBackend({.synchronous = synchronous});
  DSV4_CHECK(made.has_value()) << made.error().ToString();
  return testing::MakeDeviceMirror(std::move(*made));
}

}  // namespace

const std::vector<FastBackend>& FastBackends() {
  static const std::vector<FastBackend> backends = {{MakeCuda(false), MakeCuda(true), true}};
  return backends;
}

}  // namespace dsv4::test
