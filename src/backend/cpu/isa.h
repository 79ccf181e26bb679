// Instruction-set tiers and the choice between them at run time.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "backend/cpu/kernels/kernels.h"
#include "base/status.h"

namespace dsv4::backend::cpu {

// Each includes the ones before it.
enum class Isa : uint8_t {
  kScalar,  // Every machine.
  kAvx2,    // AVX2, FMA, F16C.
  kAvx512,  // AVX-512 F, BW, DQ, VL. One kernel also uses VNNI where the machine has it, with the same bits.
  kAvx512Bf16,  // VBMI, VNNI, AVX512_BF16: dot products of bf16 pairs.
  kAmx,         // AMX_TILE, AMX_BF16, and a kernel that lets this process use them: products of bf16 tiles.
};

std::string_view IsaName(Isa isa);  // "scalar", "avx2", "avx512", "avx512bf16", "amx"
// InvalidArgument lists the names.
Result<Isa> IsaFromName(std::string_view name);

// Instruction sets that this machine and its operating system can run and the program has, worst first. Asks the kernel for AMX
// where the CPU has it: permission is the process's, for good.
std::vector<Isa> AvailableIsas();

// Default tier: the best but kAmx, which is for prompts and batches.
Isa DefaultIsa();

// Tier that the environment variable DSV4_CPU_ISA names, if it is set. InvalidArgument for an unknown name.
Result<std::optional<Isa>> IsaFromEnvironment();

// `wanted`, else that of the environment, else the default. FailedPrecondition for a tier that the machine or
// the program lacks; errors of IsaFromEnvironment.
Result<Isa> ChooseIsa(std::optional<Isa> wanted);

// The kernels of an available tier.
Kernels KernelsFor(Isa isa);

}  // namespace dsv4::backend::cpu
