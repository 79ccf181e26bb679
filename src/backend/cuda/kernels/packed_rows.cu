#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/matmul_mma.cuh"
#include "backend/cuda/kernels/packed_rows.h"
#include "backend/cuda/kernels/reduce.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kGroup = static_cast<int>(kActivationBlock);  // Columns a warp.
static_assert(kGroup == 4 * 32 && kGroup == 2 * kPackedCols);

// The column of a group that becomes element `k` of the steps: step by step, the first pairs of the four lanes, then their
// second pairs, as Unpack<kKind>::Widen gives them.
template <MatmulKind kKind>
__device__ __forceinline__ int SourceColumn(int k) {
  constexpr int kValues = Unpack<kKind>::kValues;
  constexpr int kUnit = 4 * kValues;
  constexpr int kDistance = Unpack<kKind>::kPairDistance;
  const int pair = k % kUnit / 16 * 2 + k % 16 / 8;  // Of the lane's 16 bytes.
  const int lane = k % 8 / 2;
  const int of_eight = pair % 4;
  const int first = of_eight / kDistance * 2 * kDistance + of_eight % kDistance;
  return k / kUnit * kUnit + lane * kValues + pair / 4 * 8 + first + k % 2 * kDistance;
}

template <typename T>
__device__ __forceinline__ void LoadFour(const T* x, float (&values)[4]);
template <>
__device__ __forceinline__ void LoadFour<float>(const float* x, float (&values)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(x);
  values[0] = four.x;
  values[1] = four.y;
  values[2] = four.z;
  values[3] = four.w;
}
template <>
__device__ __forceinline__ void LoadFour<Bf16>(const Bf16* x, float (&values)[4]) {
  const uint2 four = *reinterpret_cast<const uint2*>(x);
  values[0] = __uint_as_float(four.x << 16);
  values[1] = __uint_as_float(four.x & 0xFFFF0000U);
  values[2] = __uint_as_float(four.y << 16);
  values[3] = __uint_as_float(four.y & 0xFFFF0000U);
}

// One warp a row and 128 columns. Grid: rows by warps, groups of columns.
template <MatmulKind kKind, typename T>
__global__ void __launch_bounds__(32 * kWarps)
    PackKernel(const RowSource source, uint16_t* packed, int64_t packed_rows, bool quantize) {
  __shared__ __align__(16) uint16_t shared[kWarps][kGroup];
  BeginKernel();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = blockIdx.x * int64_t{kWarps} + warp;
  if (row >= source.num_rows) return;
  int64_t origin = row;
  if (source.origins != nullptr) {
    if (source.origins[row] < 0) return;
    if (source.divisor != 0) origin = source.origins[row] / source.divisor;
  }
  float values[4];
  LoadFour(static_cast<const T*>(source.x) + origin * source.stride + blockIdx.y * int64_t{kGroup} + lane * 4,
           values);
  if (quantize) {
    float max = 0.0F;
#pragma unroll
    for (const float value : values) max = fmaxf(max, fabsf(value));
    const float scale = Fp8GroupScale(WarpMax(max));
#pragma unroll
    for (float& value : values) value = RoundToFp8Grid(value, scale);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) shared[warp][lane * 4 + i] = Bf16FromFloat(values[i]);
  __syncwarp();
  uint16_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = shared[warp][SourceColumn<kKind>(lane * 4 + i)];
  const int64_t block = blockIdx.y * int64_t{2} + lane / 16;
  const int piece = lane % 16 / 2 ^ static_cast<int>(row % kPackedRows);
  uint16_t* const to = packed + (block * packed_rows + row) * kPackedCols + piece * 8 + lane % 2 * 4;
  *reinterpret_cast<uint2*>(to) =
      make_uint2(out[0] | static_cast<uint32_t>(out[1]) << 16, out[2] | static_cast<uint32_t>(out[3]) << 16);
}

template <MatmulKind kKind>
void Launch(CudaContext& context, const RowSource& source, uint16_t* packed, int64_t packed_rows,
            int64_t cols, bool quantize) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(source.num_rows, kWarps)),
                  static_cast<unsigned>(cols / kGroup));
  WithElement(source.dtype, [&]<typename T>(T*) {
    context.Launch(PackKernel<kKind, T>, grid, 32 * kWarps, 0, source, packed, packed_rows, quantize);
  });
}

}  // namespace

bool CanPack(const void* x, DType dtype, int64_t stride, int64_t cols) {
  const auto four = static_cast<uintptr_t>(4 * ElementBytes(dtype));
  return cols % kGroup == 0 && stride % 4 == 0 && reinterpret_cast<uintptr_t>(x) % four == 0;
}

Result<PackedRows> Pack(CudaContext& context, const RowSource& source, int64_t cols, bool quantize,
                        MatmulKind kind) {
  const int64_t rows = CeilDiv(source.num_rows, kPackedRows) * kPackedRows;
  DSV4_ASSIGN_OR_RETURN(uint16_t* const packed, context.Scratch<uint16_t>(rows * cols));
  WithMmaKind(kind,
              [&]<MatmulKind kKind>() { Launch<kKind>(context, source, packed, rows, cols, quantize); });
  return PackedRows{packed, rows};
}

}  // namespace dsv4::backend::cuda
