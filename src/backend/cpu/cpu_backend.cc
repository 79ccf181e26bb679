// Factory of the CPU backend: its op table, its thread pool and the policy by which ranks divide work.
#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "backend/cpu/cpu_ops.h"

namespace dsv4::backend {
namespace {

Result<std::optional<std::chrono::microseconds>> SpinFromEnvironment() {
  constexpr int kMaxMicroseconds = 1'000'000;
  const char* text = std::getenv("DSV4_SPIN_US");
  if (text == nullptr || *text == '\0') return std::nullopt;
  const char* end = text + std::strlen(text);
  int value = 0;
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < 0 || value > kMaxMicroseconds) {
    return Error(InvalidArgument(
        fmt::format("DSV4_SPIN_US: \"{}\", wanted 0 to {} microseconds", text, kMaxMicroseconds)));
  }
  return std::chrono::microseconds(value);
}

}  // namespace

Status CheckCpuVariables() {
  if (const auto isa = cpu::IsaFromEnvironment(); !isa) return isa.error();
  const auto spin = SpinFromEnvironment();
  return spin ? Status() : spin.error();
}

Result<ops::Backend> MakeCpuBackend(const CpuOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const cpu::Isa isa, cpu::ChooseIsa(options.isa));
  DSV4_ASSIGN_OR_RETURN(const auto spin, SpinFromEnvironment());
  ops::Backend backend;
  backend.name = fmt::format("cpu ({})", cpu::IsaName(isa));
  backend.context =
      std::make_shared<cpu::CpuContext>(ThreadPoolOptions{.num_threads = options.num_threads,
                                                          .spin = spin ? spin : options.spin,
                                                          .cpus_of_nodes = options.cpus_of_nodes},
                                        cpu::KernelsFor(isa), options.will_read);
  backend.packs_rows = true;
#define DSV4_OP_ENTRY(name, Op) backend.table.name = cpu::Op;
  DSV4_FOR_EVERY_OP(DSV4_OP_ENTRY)
#undef DSV4_OP_ENTRY
  return backend;
}

}  // namespace dsv4::backend
