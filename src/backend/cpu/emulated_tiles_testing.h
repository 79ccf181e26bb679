// The kernels of the tier amx with the tile instructions in software, for tests on machines without them.
#pragma once

#include "backend/cpu/kernels/kernels.h"

namespace dsv4::backend::cpu::emulated {

// Want the tier avx512bf16.
extern const MatmulKernels kBf16Matmul;

}  // namespace dsv4::backend::cpu::emulated
