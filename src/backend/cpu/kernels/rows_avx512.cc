// The row kernels compiled for AVX-512.
#include <immintrin.h>

#include "backend/cpu/kernels/rows.h"

namespace dsv4::backend::cpu::avx512 {
namespace {

constexpr int kDotTileRows = 6;
constexpr int kDotTileTokens = 4;

#include "backend/cpu/kernels/rows_body.h"

}  // namespace

const RowKernels kRows = MakeRowKernels();

}  // namespace dsv4::backend::cpu::avx512
