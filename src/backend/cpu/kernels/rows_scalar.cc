// The row kernels compiled for every machine.
#include "backend/cpu/kernels/rows.h"

namespace dsv4::backend::cpu::scalar {
namespace {

constexpr int kDotTileRows = 1;
constexpr int kDotTileTokens = 2;

#include "backend/cpu/kernels/rows_body.h"

}  // namespace

const RowKernels kRows = MakeRowKernels();

}  // namespace dsv4::backend::cpu::scalar
