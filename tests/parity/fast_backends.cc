// The fast backends of the host: the CPU backend on every tier of this machine. tests/cuda has the GPU's.
#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#include "tests/parity/backends.h"

namespace dsv4::test {

namespace {

ops::Backend MakeCpu(backend::cpu::Isa isa, int num_threads) {
  auto made = backend::MakeCpuBackend({.num_threads = num_threads, .isa = isa});
  DSV4_CHECK(made.has_value()) << made.error().ToString();
  return std::move(*made);
}

}  // namespace

const std::vector<FastBackend>& FastBackends() {
  static const std::vector<FastBackend> backends = [] {
    std::vector<FastBackend> list;
    for (const backend::cpu::Isa isa : backend::cpu::AvailableIsas()) {
      list.push_back({MakeCpu(isa, 1), MakeCpu(isa, 3)});
    }
    return list;
  }();
  return backends;
}

}  // namespace dsv4::test
