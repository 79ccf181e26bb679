// AMX: bf16 products by tiles of sixteen rows. The other kernels of the tier are avx512bf16's.
#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/tile_config.h"

namespace dsv4::backend::cpu::amx {
namespace {

#include "backend/cpu/kernels/amx_tiles_body.h"
#include "backend/cpu/kernels/e4m3_bf16_body.h"
#include "backend/cpu/kernels/memory_body.h"
#include "backend/cpu/kernels/tile_matmul_body.h"

}  // namespace

const MatmulKernels kBf16Matmul = kTileMatmul;

}  // namespace dsv4::backend::cpu::amx
