// The op functions of the CUDA backend: each queues its kernels and returns. Arguments have passed the
// contract's Validate (cuda_backend.cc). Ops that have several kernels, or may share a launch, are in
// lowering/record/, the others beside their kernel.
#pragma once

#include "backend/cuda/runtime/cuda_context.h"
#include "ops/op_table.h"

namespace dsv4::backend::cuda {

#define DSV4_DECLARE_OP(name, Op) Status Op(CudaContext& context, const ops::Op##Args& args);
DSV4_FOR_EVERY_OP(DSV4_DECLARE_OP)
#undef DSV4_DECLARE_OP

}  // namespace dsv4::backend::cuda
