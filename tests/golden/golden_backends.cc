// The backends of the host that the goldens judge. tests/cuda has the GPU's.
#include <cstring>
#include <stdexcept>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "tests/golden/model_runs.h"

namespace dsv4::testing {

std::vector<std::string> GoldenBackends() {
  std::vector<std::string> names = {"reference"};
  for (const backend::cpu::Isa isa : backend::cpu::AvailableIsas()) {
    names.push_back("cpu_" + std::string(backend::cpu::IsaName(isa)));
  }
  return names;
}

ops::Backend MakeGoldenBackend(const std::string& name, int num_threads) {
  if (name == "reference") return backend::MakeReferenceBackend(num_threads);
  for (const backend::cpu::Isa isa : backend::cpu::AvailableIsas()) {
    if (name != "cpu_" + std::string(backend::cpu::IsaName(isa))) continue;
    auto made = backend::MakeCpuBackend({.num_threads = num_threads, .isa = isa});
    if (!made.has_value()) throw std::runtime_error(made.error().ToString());
    return std::move(*made);
  }
  throw std::runtime_error("no backend " + name);
}

ops::Backend MakeOpGoldenBackend(const std::string& name) { return MakeGoldenBackend(name); }

std::vector<float> HostFloats(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  if (!values.empty()) std::memcpy(values.data(), tensor.data, values.size() * sizeof(float));
  return values;
}

}  // namespace dsv4::testing
