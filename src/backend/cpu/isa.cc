// Detection of instruction-set tiers by CPUID and the kernel, names of tiers, and the table of kernels for
// each.
#include "backend/cpu/isa.h"

#include <cpuid.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace dsv4::backend::cpu {

namespace {

constexpr std::array kAllIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

// __builtin_cpu_supports of clang 14 does not know the name. The operating system's part is that of AVX2.
bool HasF16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & static_cast<unsigned>(bit_F16C)) != 0;
}

// AMX_BF16 and AMX_TILE.
bool CpuHasAmx() {
  constexpr unsigned kAmxBf16 = 1U << 22;
  constexpr unsigned kAmxTile = 1U << 24;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
}

// Whether the kernel saves tiles with a thread's other registers (bits 17 and 18 of XCR0), and lets this
// process use them.
bool KernelGivesTiles() {
  constexpr unsigned kOsxsave = 1U << 27;
  constexpr unsigned kTileState = 3U << 17;
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsxsave) == 0) return false;
  unsigned low = 0;
  unsigned high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState && ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Dot products of bytes, which came to servers later than the rest of AVX-512.
bool HasByteProducts() { return __builtin_cpu_supports("avx512vnni"); }

bool RunsHere(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
    case Isa::kAvx512:
      return RunsHere(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Isa::kAvx512Bf16:
      return RunsHere(Isa::kAvx512) && HasByteProducts() && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("avx512bf16");
    case Isa::kAmx: {
      static const bool has_tiles = CpuHasAmx() && KernelGivesTiles();
      return RunsHere(Isa::kAvx512Bf16) && has_tiles;
    }
  }
  return false;
}

// A clone's first program has the kernels of its machine's default alone (CMakeLists.txt).
bool IsInProgram(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return &scalar::kKernels != nullptr;
    case Isa::kAvx2:
      return &avx2::kKernels != nullptr;
    case Isa::kAvx512:
      return &avx512::kKernels != nullptr;
    case Isa::kAvx512Bf16:
      return IsInProgram(Isa::kAvx512) && &avx512bf16::kBf16Matmul != nullptr;
    case Isa::kAmx:
      return IsInProgram(Isa::kAvx512Bf16) && &amx::kBf16Matmul != nullptr;
  }
  return false;
}

bool Supported(Isa isa) { return IsInProgram(isa) && RunsHere(isa); }

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
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

Result<Isa> IsaFromName(std::string_view name) {
  const auto named =
      std::find_if(kAllIsas.begin(), kAllIsas.end(), [&](Isa isa) { return IsaName(isa) == name; });
  if (named != kAllIsas.end()) return *named;
  return Error(InvalidArgument(fmt::format("'{}', want scalar, avx2, avx512, avx512bf16 or amx", name)));
}

std::vector<Isa> AvailableIsas() {
  std::vector<Isa> available;
  std::copy_if(kAllIsas.begin(), kAllIsas.end(), std::back_inserter(available), Supported);
  return available;
}

Isa DefaultIsa() {
  Isa best = Isa::kScalar;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (Supported(isa)) best = isa;
  }
  return best;
}

Result<std::optional<Isa>> IsaFromEnvironment() {
  const char* const name = std::getenv("DSV4_CPU_ISA");
  if (name == nullptr || *name == '\0') return std::nullopt;
  const Result<Isa> named = IsaFromName(name);
  if (!named) return Error(named.error().WithContext("DSV4_CPU_ISA"));
  return *named;
}

Result<Isa> ChooseIsa(std::optional<Isa> wanted) {
  if (!wanted.has_value()) {
    DSV4_ASSIGN_OR_RETURN(wanted, IsaFromEnvironment());
  }
  if (!wanted.has_value()) wanted = DefaultIsa();
  if (Supported(*wanted)) return *wanted;
  std::vector<std::string_view> names;
  for (const Isa isa : AvailableIsas()) names.push_back(IsaName(isa));
  const std::string_view why = RunsHere(*wanted) ? "this program was built without it"
                               : *wanted == Isa::kAmx && CpuHasAmx()
                                   ? "the kernel does not let this process use the CPU's tiles"
                                   : "this machine lacks it";
  return Error(FailedPrecondition(
      fmt::format("backend cpu: tier {}: {}; it has {}", IsaName(*wanted), why, fmt::join(names, ", "))));
}

Kernels KernelsFor(Isa isa) {
  Kernels kernels;
  if (isa == Isa::kScalar) {
    kernels = scalar::kKernels;
    kernels.rows = scalar::kRows;
    kernels.float_panels = scalar::kPanels;
  } else if (isa == Isa::kAvx2) {
    kernels = avx2::kKernels;
    kernels.rows = avx2::kRows;
    kernels.float_panels = avx2::kPanels;
    kernels.fp4_keys = avx2::kFp4KeyKernels;
  } else {
    kernels = avx512::kKernels;
    kernels.rows = avx512::kRows;
    kernels.float_panels = avx512::kPanels;
    kernels.fp4_keys = HasByteProducts() ? avx512::kFp4KeyKernels : avx2::kFp4KeyKernels;
    if (isa >= Isa::kAvx512Bf16) {
      kernels.bf16 = avx512bf16::kBf16Matmul;
      if (isa == Isa::kAmx) {
        const auto arrange = kernels.bf16.arrange;
        kernels.bf16 = amx::kBf16Matmul;
        kernels.bf16.arrange = arrange;
      }
      kernels.bf16_panels = avx512bf16::kPanels;
    }
  }
  return kernels;
}

}  // namespace dsv4::backend::cpu
