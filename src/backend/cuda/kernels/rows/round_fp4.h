// hadamard_fp4 of many rows that are not rotated.
#pragma once

#include "ops/hadamard_fp4.h"

namespace dsv4::backend::cuda {

class CudaContext;

// Of what RoundPath::kEights takes.
void LaunchRoundFp4(CudaContext& context, const ops::HadamardFp4Args& args);

}  // namespace dsv4::backend::cuda
