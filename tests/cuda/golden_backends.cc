// The backends of the GPU's goldens.
#include <cuda_runtime_api.h>

#include <stdexcept>

#include "backend/cuda/cuda_backend.h"
#include "backend/reference/reference_backend.h"
#include "tests/cuda/device_mirror.h"
#include "tests/golden/model_runs.h"

namespace dsv4::testing {

std::vector<std::string> GoldenBackends() { return {"cuda"}; }

// One thread means op by op: results must not depend on either. "cuda, products in FP8" is for goldens of its
// own.
ops::Backend MakeGoldenBackend(const std::string& name, int num_threads) {
  if (name == "reference") return backend::MakeReferenceBackend(num_threads);
  const auto fp8_products =
      name == "cuda, products in FP8" ? backend::cuda::Fp8Products::kAll : backend::cuda::Fp8Products::kOff;
  auto made = backend::MakeCudaBackend({.synchronous = num_threads == 1, .fp8_products = fp8_products});
  if (!made.has_value()) throw std::runtime_error(made.error().ToString());
  return std::move(*made);
}

ops::Backend MakeOpGoldenBackend(const std::string& name) {
  return MakeDeviceMirror(MakeGoldenBackend(name));
}

std::vector<float> HostFloats(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  if (cudaDeviceSynchronize() != cudaSuccess ||
      cudaMemcpy(values.data(), tensor.data, values.size() * sizeof(float), cudaMemcpyDefault) !=
          cudaSuccess) {
    throw std::runtime_error("copy of an observed tensor");
  }
  return values;
}

}  // namespace dsv4::testing
