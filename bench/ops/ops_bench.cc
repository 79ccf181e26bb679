// Micro-benchmarks of the CPU backend's large ops. They check each result first, then print its time. The
// bytes that it has to read are a rate and a percentage of the read bandwidth measured in turns with it. Its
// multiply-adds are a percentage of their peak.
//
//   ops_bench [THREADS [TEXT]]      TEXT: only the lines whose name contains it, such as "linear nvfp4" or "x 512".
//
// DSV4_CPU_ISA picks the tier, as everywhere; "all" runs every tier of the machine, so that one run compares
// them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/machine_bounds.h"
#include "base/parallel.h"
#include "bench/ops/bench.h"

namespace dsv4::bench {
namespace {

using backend::cpu::Isa;

std::vector<Isa> Tiers() {
  const char* const name = std::getenv("DSV4_CPU_ISA");
  if (name != nullptr && std::string(name) == "all") return backend::cpu::AvailableIsas();
  const auto isa = backend::cpu::ChooseIsa(std::nullopt);
  if (!isa.has_value()) Fail(isa.error().ToString());
  return {*isa};
}

int Main(int argc, char** argv) {
  const int hardware = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : hardware;
  if (num_threads < 1 || argc > 3) Fail("usage: ops_bench [THREADS [TEXT]]");
  const std::string text = argc > 2 ? argv[2] : "";
  const Wanted wanted = [&](const std::string& what) { return what.find(text) != std::string::npos; };
  for (const Isa isa : Tiers()) {
    auto backend = backend::MakeCpuBackend({.num_threads = num_threads, .isa = isa});
    if (!backend.has_value()) Fail(backend.error().ToString());
    ThreadPool& threads = backend->context->threads();
    auto memory = backend::cpu::ReadMemory::Allocate();
    if (!memory.has_value()) Fail(memory.error().ToString());
    const Machine machine = {*backend, *memory, backend::cpu::MultiplyAddPeak(threads, isa)};
    fmt::print(
        "{}, {} threads: {:.1f} GMAC/s; percentages are of the reads measured in turns with each line, and "
        "of these\n",
        backend->name, num_threads, machine.multiply_adds / 1e9);
    BenchLinear(machine, wanted);
    BenchGroupedLinear(machine, wanted);
    BenchRoutedExperts(machine, wanted);
    BenchAttention(machine, wanted);
  }
  return 0;
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) { return dsv4::bench::Main(argc, argv); }
