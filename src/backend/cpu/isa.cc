#include "backend/cpu/isa.h"

#include <cpuid.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace dsv4::backend::cpu {

namespace {

constexpr std::array kAllIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

// __builtin_cpu_supports of clang 14 does not know the name. The operating system's part is that of AVX2.
bool HasF16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & static_cast<unsigned>(bit_F16C)) != 0;
}

bool Supported(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
    case Isa::kAvx512:
      return Supported(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("avx512vnni");
    case Isa::kAvx512Bf16:
      return Supported(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
  }
  return "unknown";
}

Result<Isa> IsaFromName(std::string_view name) {
  const auto named =
      std::find_if(kAllIsas.begin(), kAllIsas.end(), [&](Isa isa) { return IsaName(isa) == name; });
  if (named != kAllIsas.end()) return *named;
  return Error(InvalidArgument(fmt::format("'{}', want scalar, avx2, avx512 or avx512bf16", name)));
}

std::vector<Isa> AvailableIsas() {
  std::vector<Isa> available;
  std::copy_if(kAllIsas.begin(), kAllIsas.end(), std::back_inserter(available), Supported);
  return available;
}

Result<Isa> ChooseIsa(std::optional<Isa> wanted) {
  const std::vector<Isa> available = AvailableIsas();
  const char* const name = std::getenv("DSV4_CPU_ISA");
  if (!wanted.has_value() && name != nullptr) {
    const Result<Isa> named = IsaFromName(name);
    if (!named) return Error(FailedPrecondition("DSV4_CPU_ISA: " + named.error().message()));
    wanted = *named;
  }
  if (!wanted.has_value()) return available.back();
  if (!Supported(*wanted)) {
    std::vector<std::string_view> names;
    for (const Isa isa : available) names.push_back(IsaName(isa));
    return Error(FailedPrecondition(fmt::format("backend cpu: tier {}: this machine lacks it; it has {}",
                                                IsaName(*wanted), fmt::join(names, ", "))));
  }
  return *wanted;
}

Kernels KernelsFor(Isa isa) {
  Kernels kernels = scalar::kKernels;
  kernels.rows = scalar::kRows;
  kernels.float_panels = scalar::kPanels;
  if (isa == Isa::kAvx2) {
    kernels = avx2::kKernels;
    kernels.rows = avx2::kRows;
    kernels.float_panels = avx2::kPanels;
  } else if (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16) {
    kernels = avx512::kKernels;
    kernels.rows = avx512::kRows;
    kernels.float_panels = avx512::kPanels;
    kernels.fp4_keys = avx512::kFp4KeyKernels;
    if (isa == Isa::kAvx512Bf16) {
      kernels.bf16 = avx512bf16::kBf16Matmul;
      kernels.bf16_panels = avx512bf16::kPanels;
    }
  }
  return kernels;
}

}  // namespace dsv4::backend::cpu
