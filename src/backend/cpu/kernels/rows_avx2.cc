// The row kernels compiled for AVX2 and FMA.
#include "backend/cpu/kernels/rows.h"

namespace dsv4::backend::cpu::avx2 {
namespace {

constexpr int kDotTileRows = 3;
constexpr int kDotTileTokens = 2;

#include "backend/cpu/kernels/rows_body.h"

}  // namespace

const RowKernels kRows = MakeRowKernels();

}  // namespace dsv4::backend::cpu::avx2
