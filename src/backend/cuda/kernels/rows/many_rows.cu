// rms_norm of many tokens with rotation, rounding and packed stores behind it, a row in the registers of a
// warp.
#include "backend/cuda/device/numeric/four_sums.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/many_rows.h"
#include "backend/cuda/kernels/rows/row_registers.cuh"
#include "backend/cuda/kernels/rows/row_steps.cuh"
#include "backend/cuda/runtime/launch_context.h"
#include "base/check.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kGroups = 4;  // Groups of sums of a lane.
static_assert(kNarrowRowThreads == 128 && kWideRowThreads == kGroups * 128);

// Rows of a warp: four rows of up to kMaxNarrowRow elements, or one. A lane has four neighbouring columns of
// every 128. `Group`: row, or those 128 of every 512.
template <int kWidth>
struct WarpRows {
  static constexpr bool kNarrow = kWidth <= kMaxNarrowRow;
  static constexpr int kRows = kNarrow ? kGroups : 1;
  static constexpr int kPieces = kWidth / (kNarrow ? kNarrowRowThreads : kWideRowThreads);
  static_assert(kWidth % (kNarrow ? kNarrowRowThreads : kWideRowThreads) == 0);

  __device__ static constexpr int Row(int group) { return kNarrow ? group : 0; }
  __device__ static int Column(int group, int piece, int lane) {
    return (kNarrow ? piece * kNarrowRowThreads : piece * kWideRowThreads + group * 128) + 4 * lane;
  }

  uint2 words[kGroups][kPieces];
};

// Words of values that are rounded.
__device__ __forceinline__ uint2 Rounded(const float (&values)[4]) {
  return make_uint2(__byte_perm(__float_as_uint(values[0]), __float_as_uint(values[1]), 0x7632),
                    __byte_perm(__float_as_uint(values[2]), __float_as_uint(values[3]), 0x7632));
}

// For the row of lane / 2 % 4, or the one.
template <int kWidth, bool kFinite>
__device__ __forceinline__ double SumOfSquares(const WarpRows<kWidth>& rows, int lane) {
  double sums[kGroups][4] = {};
#pragma unroll
  for (int j = 0; j < rows.kPieces; ++j) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const double value = kFinite ? WideFourColumn(rows.words[g][j], e)
                                     : static_cast<double>(FourColumn(rows.words[g][j], e));
        sums[g][e] = fma(value, value, sums[g][e]);  // Squares of bf16 are exact.
      }
    }
  }
  const double of_warps = SumOfFourGroups(sums, lane);
  if constexpr (rows.kNarrow) return SumOfFourWarps(of_warps, lane);
  double total = 0.0;
#pragma unroll
  for (int w = 0; w < kGroups * 4; ++w) {
    const double of_warp = __shfl_sync(kWholeWarp, of_warps, w % 4 * 8 + w / 4 * 2);
    total = w == 0 ? of_warp : total + of_warp;
  }
  return total;
}

// Else what one loop has widened would stay in registers for the next.
template <int kWidth>
__device__ __forceinline__ void Forget(WarpRows<kWidth>& rows) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < rows.kPieces; ++j)
      asm volatile("" : "+r"(rows.words[g][j].x), "+r"(rows.words[g][j].y));
  }
}

// RmsNormRow, in place.
template <int kWidth, bool kFinite>
__device__ __forceinline__ void Scale(WarpRows<kWidth>& rows, const float* weight, double factors, int lane) {
  double factor[rows.kRows];
#pragma unroll
  for (int r = 0; r < rows.kRows; ++r) factor[r] = __shfl_sync(kWholeWarp, factors, 2 * r);
#pragma unroll
  for (int j = 0; j < rows.kPieces; ++j) {
    double weights[4];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g == 0 || !rows.kNarrow) {
        const float4 four = __ldg(reinterpret_cast<const float4*>(weight + rows.Column(g, j, lane)));
        weights[0] = static_cast<double>(four.x);
        weights[1] = static_cast<double>(four.y);
        weights[2] = static_cast<double>(four.z);
        weights[3] = static_cast<double>(four.w);
      }
      float values[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const double value = kFinite ? WideFourColumn(rows.words[g][j], e)
                                     : static_cast<double>(FourColumn(rows.words[g][j], e));
        values[e] = static_cast<float>(value * (factor[rows.Row(g)] * weights[e]));
        if (!kFinite) values[e] = RoundToBf16(values[e]);
      }
      rows.words[g][j] = kFinite ? make_uint2(Bf16Pair(values[0], values[1]), Bf16Pair(values[2], values[3]))
                                 : Rounded(values);
    }
  }
}

template <int kWidth>
__device__ __forceinline__ void RmsNorm(WarpRows<kWidth>& rows, const float* weight, float eps, int lane) {
  const auto factor_of = [&](double sum) {
    return 1.0 / sqrt(MeanOf(sum, kWidth) + static_cast<double>(eps));
  };
  const double sum = SumOfSquares<kWidth, true>(rows, lane);
  Forget(rows);
  // Squares of what is infinite or NaN are that much or more.
  if (__any_sync(kWholeWarp, sum >= 0x1p256)) {
    const double of_any = SumOfSquares<kWidth, false>(rows, lane);
    Forget(rows);
    Scale<kWidth, false>(rows, weight, factor_of(of_any), lane);
  } else {
    Scale<kWidth, true>(rows, weight, factor_of(sum), lane);
  }
}

template <int kWidth>
__device__ __forceinline__ void Read(WarpRows<kWidth>& rows, const ManyRows& p, int64_t first, int lane) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t row = min(first + rows.Row(g), p.num_rows - 1);
#pragma unroll
    for (int j = 0; j < rows.kPieces; ++j)
      rows.words[g][j] = *reinterpret_cast<const uint2*>(p.in + row * p.in_stride + rows.Column(g, j, lane));
  }
}
template <int kWidth>
__device__ __forceinline__ void Write(const WarpRows<kWidth>& rows, const ManyRows& p, int64_t first,
                                      int lane) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t row = first + rows.Row(g);
    if (row >= p.num_rows) break;
#pragma unroll
    for (int j = 0; j < rows.kPieces; ++j)
      *reinterpret_cast<uint2*>(p.out + row * p.out_stride + rows.Column(g, j, lane)) = rows.words[g][j];
  }
}

__device__ __forceinline__ int64_t FirstRow(int rows_of_warp) {
  return (blockIdx.x * int64_t{kWarps} + threadIdx.x / 32) * rows_of_warp;
}

template <int kWidth>
__global__ void __launch_bounds__(32 * kWarps, kWidth <= 4096 ? 3 : 2)
    ManyRowsNormKernel(const __grid_constant__ ManyRows p) {
  BeginKernel();
  WarpRows<kWidth> rows;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = FirstRow(rows.kRows);
  if (first >= p.num_rows) return;
  Read(rows, p, first, lane);
  RmsNorm(rows, p.weight, p.eps, lane);
  Write(rows, p, first, lane);
}

// The same, then rope, simulate_fp8 and store_rows, as RegisterRow does them.
constexpr int kStoredWidth = 512;

// The codes of any four values over their group's scale, a byte each: columns from `column` on of a row. A
// function of its own, so that what is rare does not lie among what is not.
__device__ __noinline__ uint32_t CodesOfAny(uint2 words, uint32_t e8m0, int64_t row, int column,
                                            Fault* fault) {
  const float inverse = InverseOfE8m0(e8m0);
  uint32_t codes = 0;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    bool fits = true;
    const float value = FourColumn(words, e);
    codes |= E4m3Code(value, inverse, fits) << (8 * e);
    if (!fits) ReportFault(fault, FaultKind::kCacheRow, row, column + e, __float_as_uint(value), 0);
  }
  return codes;
}
// Whether one of two pairs has an infinity or a NaN.
__device__ __forceinline__ bool HasNonFinite(uint2 words) {
  constexpr uint32_t kExponents = 0x7F807F80U;
  constexpr uint32_t kLowest = 0x00800080U;
  return ((((words.x & kExponents) + kLowest) | ((words.y & kExponents) + kLowest)) & 0x80008000U) != 0;
}

// Stores row r of a warp, packed, to row `in_run` at `to`. Sixteen lanes have a group. Op simulate_fp8 has
// rounded the columns that get codes, and `scales` are those of a lane's pieces. So finite numbers are on the
// grid.
__device__ __forceinline__ void StorePacked(const WarpRows<kStoredWidth>& rows, int r, int lane,
                                            int num_packed, uint32_t scales, unsigned char* to,
                                            int64_t in_run, int64_t row, Fault* fault) {
  // As CacheFormat has it.
  const int rest = num_packed - 2 * num_packed;  // Offset at which column 0 would be, if all had two bytes.
  const int num_scales = num_packed / kManyRowsGroup;
  const int scale_begin = num_packed + 2 * (kStoredWidth - num_packed);
  const int end = scale_begin + num_scales;
  const int row_bytes = (end + 15) / 16 * 16;
  to += in_run * row_bytes;
#pragma unroll
  for (int j = 0; j < rows.kPieces; ++j) {
    const uint2 words = rows.words[r][j];
    const int column = rows.Column(r, j, lane);
    if (column >= num_packed) {
      *reinterpret_cast<uint2*>(to + rest + 2 * column) = words;
      continue;
    }
    const uint32_t e8m0 = scales >> (8 * j) & 0xFFU;
    const float inverse = InverseOfE8m0(e8m0);
    uint32_t codes =
        __byte_perm(E4m3Pair(FourColumn(words, 0) * inverse, FourColumn(words, 1) * inverse),
                    E4m3Pair(FourColumn(words, 2) * inverse, FourColumn(words, 3) * inverse), 0x5410);
    if (HasNonFinite(words)) codes = CodesOfAny(words, e8m0, row, column, fault);
    *reinterpret_cast<uint32_t*>(to + column) = codes;
    if (column % kManyRowsGroup == 0)
      to[scale_begin + column / kManyRowsGroup] = static_cast<unsigned char>(e8m0);
  }
  if (end + lane < row_bytes) to[end + lane] = 0;
}

__global__ void __launch_bounds__(32 * kWarps, 4)
    ManyRowsNormAndStoreKernel(const __grid_constant__ ManyRows p) {
  LetNextKernelStart();
  using Rows = WarpRows<kStoredWidth>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = FirstRow(Rows::kRows);
  if (first >= p.num_rows) return;
  // Positions, frequencies and lists of runs come from the host, and no kernel in flight writes them. Lane i
  // has frequency i.
  constexpr int kLastPiece = Rows::kPieces - 1;
  constexpr int kFirstLane = 32 - kManyRowsRotated / 4;
  int32_t positions[Rows::kRows];
  double2 rotations[Rows::kRows];
#pragma unroll
  for (int r = 0; r < Rows::kRows; ++r) {
    positions[r] = -1;
    if (p.positions == nullptr || first + r >= p.num_rows) continue;
    positions[r] = p.positions[(first + r) / p.group];
  }
#pragma unroll
  for (int r = 0; r < Rows::kRows; ++r) {
    if (positions[r] >= 0) rotations[r] = Rotation(positions[r], p.frequencies[lane], p.inverse);
  }
  WaitForKernelsBefore();
  Rows rows;
  Read(rows, p, first, lane);
  RmsNorm(rows, p.weight, p.eps, lane);
#pragma unroll
  for (int r = 0; r < Rows::kRows; ++r) {
    if (positions[r] >= 0) {
      uint2& words = rows.words[r][kLastPiece];
      float values[4];
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const int from = max(0, 2 * (lane - kFirstLane) + pair);
        const double cosine = __shfl_sync(kWholeWarp, rotations[r].x, from);
        const double sine = __shfl_sync(kWholeWarp, rotations[r].y, from);
        const float2 rotated = Rotated(FourColumn(words, 2 * pair), FourColumn(words, 2 * pair + 1),
                                       make_double2(cosine, sine), true);
        values[2 * pair] = rotated.x;
        values[2 * pair + 1] = rotated.y;
      }
      if (lane >= kFirstLane) words = Rounded(values);
    } else if (p.positions != nullptr && lane == 0 && first + r < p.num_rows && (first + r) % p.group == 0) {
      ReportFault(p.fault, FaultKind::kPosition, (first + r) / p.group, 0, positions[r], 0);
    }
  }
  // Scales of packed rows: those of a lane's pieces, a byte each.
  uint32_t scales[Rows::kRows] = {};
  static_assert(Rows::kPieces <= 4);
  if (p.num_simulated > 0) {
    // Sixteen lanes have a group.
    static_assert(kManyRowsGroup == 16 * 4);
#pragma unroll
    for (int r = 0; r < Rows::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Rows::kPieces; ++j) {
        uint2& words = rows.words[r][j];
        float values[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) values[e] = FourColumn(words, e);
        float largest = fmaxf(fmaxf(MagnitudeOf(values[0]), MagnitudeOf(values[1])),
                              fmaxf(MagnitudeOf(values[2]), MagnitudeOf(values[3])));
#pragma unroll
        for (int offset = 8; offset > 0; offset /= 2)
          largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, offset));
        const float scale = Fp8GroupScale(largest);
        const float inverse = InverseOf(scale);
        const float2 low = FromE4m3Pair(E4m3Pair(values[0] * inverse, values[1] * inverse));
        const float2 high = FromE4m3Pair(E4m3Pair(values[2] * inverse, values[3] * inverse));
        // The largest value stays it when it is rounded.
        const float most = FromE4m3Pair(E4m3Pair(largest * inverse, 0.0F)).x * scale;
        scales[r] |= SmallestE8m0(most, CacheCode::kE4m3) << (8 * j);
        if (rows.Column(r, j, lane) < p.num_simulated)
          words =
              make_uint2(Bf16Pair(low.x * scale, low.y * scale), Bf16Pair(high.x * scale, high.y * scale));
      }
    }
  }
  for (int64_t begin = 0; begin < p.runs.size; begin += 32) {
    StoredRun run = {};
    if (begin + lane < p.runs.size) run = p.runs[begin + lane];
#pragma unroll
    for (int r = 0; r < Rows::kRows; ++r) {
      const int64_t row = first + r;
      unsigned has_row = __ballot_sync(kWholeWarp, row < p.num_rows && row >= run.begin && row < run.end);
      for (; has_row != 0; has_row &= has_row - 1) {
        const int of = __ffs(static_cast<int>(has_row)) - 1;
        const auto destination =
            __shfl_sync(kWholeWarp, reinterpret_cast<unsigned long long>(run.destination), of);
        const int64_t in_run = row - __shfl_sync(kWholeWarp, run.begin, of);
        if (p.num_packed > 0) {
          StorePacked(rows, r, lane, p.num_packed, scales[r], reinterpret_cast<unsigned char*>(destination),
                      in_run, row, p.fault);
          continue;
        }
        auto* const to = reinterpret_cast<uint16_t*>(destination) + in_run * kStoredWidth;
#pragma unroll
        for (int j = 0; j < Rows::kPieces; ++j)
          *reinterpret_cast<uint2*>(to + rows.Column(r, j, lane)) = rows.words[r][j];
      }
    }
  }
  Write(rows, p, first, lane);
}

template <int kWidth>
void Launch(LaunchContext& context, const ManyRows& rows) {
  const auto kernel = [&] {
    if constexpr (kWidth == kStoredWidth) {
      if (rows.positions != nullptr || rows.num_simulated > 0 || rows.runs.size > 0)
        return ManyRowsNormAndStoreKernel;
    }
    return ManyRowsNormKernel<kWidth>;
  }();
  const auto blocks = static_cast<unsigned>(CeilDiv(rows.num_rows, kWarps * WarpRows<kWidth>::kRows));
  context.Launch(kernel, blocks, 32 * kWarps, 0, rows);
}

using Launcher = void (*)(LaunchContext&, const ManyRows&);
// By width; null: it has none.
Launcher LauncherOf(int64_t width) {
  switch (width) {
    case kStoredWidth:
      return Launch<kStoredWidth>;
    case 1024:
      return Launch<1024>;
    case 1536:
      return Launch<1536>;
    case 4096:
      return Launch<4096>;
    case 7168:
      return Launch<7168>;
    default:
      return nullptr;
  }
}

}  // namespace

void LaunchManyRows(LaunchContext& context, const ManyRows& rows) {
  const Launcher launch = LauncherOf(rows.width);
  DSV4_CHECK(launch != nullptr) << "rows of " << rows.width << " columns: lowering/row_group.cc knows none";
  launch(context, rows);
}

}  // namespace dsv4::backend::cuda
