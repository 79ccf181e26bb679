// W x for a few tokens at the speed of reading W. A block works through row tiles of one or more matrices; every thread copies
// the weights that it will multiply into shared memory of its own, many pieces ahead, so that no registers wait for memory
// and nobody waits for another thread's copy. The first pieces are asked for before the kernels in front have ended.
// Activations lie in shared memory too.
//
// The products, their order and the order of all sums are those of matmul_mma.cuh, so a token's result is the same bits in
// either.
#pragma once

#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/copy_async.cuh"
#include "backend/cuda/kernels/matmul_mma.cuh"
#include "backend/cuda/kernels/stream_params.h"

namespace dsv4::backend::cuda {

// --- Activations -----------------------------------------------------------------------------------------------------

// Largest magnitude of eight columns of a group of 128, which half a warp holds.
__device__ __forceinline__ float GroupMax(uint4 x) {
  const unsigned half = 0xFFFFU << (threadIdx.x & 16U);
  const auto larger = [](float max, uint32_t pair) {
    return fmaxf(max, fmaxf(fabsf(__uint_as_float(pair << 16)), fabsf(__uint_as_float(pair & 0xFFFF0000U))));
  };
  float max = larger(larger(larger(larger(0.0F, x.x), x.y), x.z), x.w);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(half, max, offset));
  return max;
}

// Two bf16 in a word, times the reciprocal of a power of two, rounded to FP8: as two halves.
__device__ __forceinline__ __half2 RoundPairToFp8(uint32_t pair, float reciprocal) {
  const float2 scaled =
      make_float2(__uint_as_float(pair << 16) * reciprocal, __uint_as_float(pair & 0xFFFF0000U) * reciprocal);
  const __nv_fp8x2_storage_t codes = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
  return __half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
}
// Halves times the power of two that they were divided by, which is exact in bf16: the high half of the float.
__device__ __forceinline__ uint32_t TimesPower(__half2 rounded, float power) {
  const float2 wide = __half22float2(rounded);
  return __byte_perm(__float_as_uint(wide.x * power), __float_as_uint(wide.y * power), 0x7632);
}

// The reciprocal of a power of two from 2^-126 on, or of infinity.
__device__ __forceinline__ float ReciprocalOfPower(float power) {
  const int exponent = 254 - static_cast<int>(__float_as_uint(power) >> 23);
  if (exponent > 0) return __uint_as_float(static_cast<uint32_t>(exponent) << 23);
  return __uint_as_float(exponent == 0 ? 0x00400000U : 0U);
}

// Eight columns from `col` on of a row in one of the forms; where a form has a scale, *scale is it.
__device__ __forceinline__ uint4 InForm(uint4 value, StreamForm form, float* scale) {
  if (form == StreamForm::kHalves || form == StreamForm::kRoundedFours) {
    *scale = Fp8GroupScale(GroupMax(value));
    const float reciprocal = ReciprocalOfPower(*scale);
    uint32_t* const words = &value.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 rounded = RoundPairToFp8(words[i], reciprocal);
      words[i] = form == StreamForm::kHalves ? *reinterpret_cast<const uint32_t*>(&rounded)
                                             : TimesPower(rounded, *scale);
    }
  }
  if (form == StreamForm::kTwos) return InWeightOrder<MatmulKind::kMmaFp8>(value);
  if (form == StreamForm::kFours || form == StreamForm::kRoundedFours)
    return InWeightOrder<MatmulKind::kMmaNvFp4>(value);
  return value;
}

// Calls emit(row, chunk, x) for every eight columns of rows of bf16, row(i) each, and of zeros up to StreamRow. cols is a multiple of
// eight and rows are aligned to 16 bytes.
//
// A launch comes to this code once, and seldom finds it in a cache of instructions: it is short rather than unrolled.
template <int kThreads, typename Row, typename Emit>
__device__ __forceinline__ void ForStreamRows(int num_rows, int cols, Row&& row, Emit&& emit) {
  const int chunks = static_cast<int>(StreamRow(cols) - 8) / 8;  // A multiple of 16: half a warp is a group.
  struct Place {
    int row;
    int chunk;
  };
  const auto advanced = [&](Place at, int by) {  // A division takes longer than a few turns.
    at.chunk += by;
    for (; at.chunk >= chunks; at.chunk -= chunks) ++at.row;
    return at;
  };
  const auto load = [&](Place at) {
    if (at.row >= num_rows || at.chunk * 8 >= cols) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(row(at.row) + at.chunk * 8);
  };
  Place now = advanced({0, 0}, static_cast<int>(threadIdx.x));
  uint4 x = load(now);
#pragma unroll 1
  while (now.row < num_rows) {
    const Place next = advanced(now, kThreads);
    const uint4 next_x = load(next);
    emit(now.row, now.chunk, x);
    now = next;
    x = next_x;
  }
}

// Eight columns of a row into shared memory in a form; of StreamForm::kHalves also the scale, to [rows, groups of 128].
__device__ __forceinline__ void StoreInForm(uint16_t* shared, float* scales, int row, int chunk, int cols,
                                            StreamForm form, uint4 x) {
  const auto stride = static_cast<int>(StreamRow(cols));
  float scale = 1.0F;
  uint4 value = InForm(x, form, &scale);
  if (form == StreamForm::kHalves && chunk % 16 == 0) scales[row * ((stride - 8) / 128) + chunk / 16] = scale;
  // What lies past the last column stays zero, also when the scale is infinite.
  if (chunk * 8 >= cols) value = make_uint4(0, 0, 0, 0);
  *reinterpret_cast<uint4*>(shared + row * stride + chunk * 8) = value;
}

// Rows to shared memory in every form that is wanted, form by form; of StreamForm::kHalves also the scales.
template <int kThreads = kMatmulThreads, typename Row>
__device__ __forceinline__ void LoadStreamRows(uint16_t* shared, float* scales, int num_rows, int cols,
                                               const StreamForms& forms, Row&& row) {
  const auto form_elements = num_rows * static_cast<int>(StreamRow(cols));
  ForStreamRows<kThreads>(num_rows, cols, row, [&](int r, int chunk, uint4 x) {
#pragma unroll 1
    for (int f = 0; f < forms.count; ++f)
      StoreInForm(shared + f * form_elements, scales, r, chunk, cols, forms.forms[f], x);
  });
}

// --- Weights ---------------------------------------------------------------------------------------------------------

// A unit is what a warp multiplies at a time: 64 bytes of each of 16 rows, 16 bytes of two rows a lane. Two are copied
// together.
inline constexpr int kUnitBytes = 64;

// What the threads of a block have under way.
template <int kStages>
struct StreamRing {
  uint4 data[kStages][4][kMatmulThreads];  // Both units of a thread's first row, then of its second.
  uint8_t scales[kStages][kSegments][kTileRows]
                [16];  // Of FP4, by warp: those of the first unit, then of the second.
};

// What is read once makes room in L2 before anything else does: activations and instructions stay there.
__device__ __forceinline__ uint64_t EvictFirst() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void CopyToShared16(uint32_t shared, const void* global, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(shared),
               "l"(global), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void CopyToShared4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void PrefetchToL2(const void* global, uint32_t num_bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(num_bytes) : "memory");
}

// A barrier of the block's threads that some only arrive at.
__device__ __forceinline__ void ArriveAt(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kMatmulThreads) : "memory");
}
__device__ __forceinline__ void WaitAt(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kMatmulThreads) : "memory");
}

// A matrix among those of one shape.
struct StreamMatrix {
  const uint8_t* data;
  const uint8_t* scale;
  float global_scale;
};

__device__ __forceinline__ StreamMatrix MatrixOf(const DeviceWeight& weight) {
  return {weight.data, static_cast<const uint8_t*>(weight.scale), weight.global_scale};
}

// Row tile `first_row` of a matrix times the tokens that begin at `x` in shared memory.
struct StreamItem {
  StreamShape shape;
  const uint8_t* data;  // Of the matrix.
  const uint8_t* scale;
  float global_scale;
  int first_row;
  const uint16_t* x;
  const float* x_scales;  // Of StreamForm::kHalves: of the tokens' groups.
};

__device__ __forceinline__ StreamItem ItemOf(const StreamShape& shape, const StreamMatrix& matrix,
                                             int first_row, const uint16_t* x, const float* x_scales) {
  return {shape, matrix.data, matrix.scale, matrix.global_scale, first_row, x, x_scales};
}

__host__ __device__ constexpr bool IsFp4(StreamKind kind) {
  return kind == StreamKind::kMxFp4 || kind == StreamKind::kNvFp4;
}

// The format of a kind, as Unpack names it.
constexpr MatmulKind FormatOf(StreamKind kind) {
  switch (kind) {
    case StreamKind::kFp8:
    case StreamKind::kFp8Plain:
      return MatmulKind::kMmaFp8;
    case StreamKind::kMxFp4:
      return MatmulKind::kMmaMxFp4;
    case StreamKind::kNvFp4:
      return MatmulKind::kMmaNvFp4;
    case StreamKind::kBf16:
      break;
  }
  return MatmulKind::kMmaBf16;
}

// Units of this warp's segment.
__device__ __forceinline__ int UnitsOfWarp(const StreamShape& shape) {
  const int begin = static_cast<int>(threadIdx.x) / 32 * shape.segment_units;
  return min(shape.segment_units, shape.units - begin);
}

// A lane's way through the units of a tile that its warp multiplies.
struct StreamCursor {
  const uint8_t* data[2];   // By row.
  const uint8_t* scale[2];  // Of FP4.
  int words;                // Of four bytes, a row's scales of a unit.
  int units;                // Left; none or less: the tile is done.

  __device__ __forceinline__ void Start(const StreamItem& item) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first_unit = static_cast<int>(threadIdx.x) / 32 * item.shape.segment_units;
    units = UnitsOfWarp(item.shape);
    words = item.shape.kind == StreamKind::kNvFp4 ? 2 : 1;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = item.first_row + lane / 4 + r * 8;
      data[r] = item.data + row * item.shape.row_bytes + first_unit * kUnitBytes + lane % 4 * 16;
      scale[r] = item.scale + row * item.shape.scale_row_bytes + first_unit * words * 4 + lane % 4 * 4;
    }
  }
};

__device__ __forceinline__ void MmaHalves(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Two e4m3 as halves, exactly.
__device__ __forceinline__ uint32_t HalvesOfE4m3(uint32_t word, int which) {
  uint32_t halves;
  const auto codes = static_cast<uint16_t>(which == 0 ? word : word >> 16);
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  return halves;
}

// Eight columns of a lane's token, in shared memory. Lanes of tokens that do not exist read nothing and get anything: a token's
// sums are its own lanes', and the unit that reads shared memory is busier than any other where weights are narrow.
__device__ __forceinline__ uint4 LoadTokenColumns(const uint16_t* x, bool exists) {
  uint4 columns;
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "=r"(columns.x), "=r"(columns.y), "=r"(columns.z), "=r"(columns.w)
               : "r"(SharedAddress(x)), "r"(static_cast<uint32_t>(exists)));
  return columns;
}

// FP8 weights and activations, both as halves without their scales; factors are the products of both scales, by token. The
// columns of a step are those of Unpack<kMmaFp8>, and powers of two in scales of activations move no bit.
__device__ __forceinline__ void MultiplyFp8Unit(float (&sums)[4], const uint4& low, const uint4& high,
                                                const uint16_t* x, bool exists, float factor0,
                                                float factor1) {
  const uint32_t words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  const uint4 x0 = LoadTokenColumns(x, exists);
  const uint4 x1 = LoadTokenColumns(x + 8, exists);
  const uint32_t b[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
  float unit[4] = {};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t a[4] = {HalvesOfE4m3(words[0][w], 0), HalvesOfE4m3(words[1][w], 0),
                           HalvesOfE4m3(words[0][w], 1), HalvesOfE4m3(words[1][w], 1)};
    MmaHalves(unit, a, b[2 * w], b[2 * w + 1]);
  }
  sums[0] = fmaf(unit[0], factor0, sums[0]);
  sums[1] = fmaf(unit[1], factor1, sums[1]);
  sums[2] = fmaf(unit[2], factor0, sums[2]);
  sums[3] = fmaf(unit[3], factor1, sums[3]);
}

// FP8 weights and any activations, widened to bf16.
__device__ __forceinline__ void MultiplyFp8PlainUnit(float (&sums)[4], const uint4& low, const uint4& high,
                                                     const uint16_t* x, bool exists, float scale) {
  using Format = Unpack<MatmulKind::kMmaFp8>;
  const uint32_t words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  const uint4 x0 = LoadTokenColumns(x, exists);
  const uint4 x1 = LoadTokenColumns(x + 8, exists);
  const uint32_t b[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
  const uint32_t poison[2] = {Format::Poison(words[0]), Format::Poison(words[1])};
  float unit[4] = {};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t a[4] = {Format::Widen(words[0], {}, 2 * w) | (w == 0 ? poison[0] : 0U),
                           Format::Widen(words[1], {}, 2 * w) | (w == 0 ? poison[1] : 0U),
                           Format::Widen(words[0], {}, 2 * w + 1), Format::Widen(words[1], {}, 2 * w + 1)};
    Mma(unit, a, b[2 * w], b[2 * w + 1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = fmaf(unit[i], scale, sums[i]);
}

__device__ __forceinline__ void MultiplyBf16Unit(float (&sums)[4], const uint4& low, const uint4& high,
                                                 const uint16_t* x, bool exists) {
  const uint4 b = LoadTokenColumns(x, exists);
  const uint32_t first[4] = {low.x, high.x, low.y, high.y};
  const uint32_t second[4] = {low.z, high.z, low.w, high.w};
  Mma(sums, first, b.x, b.y);
  Mma(sums, second, b.z, b.w);
}

// StoredE2m1Pair. A product puts sign and magnitude in their places at
// once; it runs beside the logical instructions, of which there are too many.
__device__ __forceinline__ uint32_t E2m1Pair(uint32_t word, int k) {
  const uint32_t shifted = k < 2 ? word : word >> 8;
  const uint32_t codes = shifted & (k % 2 == 0 ? 0x000F000FU : 0x00F000F0U);
  return codes * (k % 2 == 0 ? 0x1040U : 0x0104U) & 0x81C081C0U;
}

// A lane's scales of a unit, as Unpack::Expand gives them.
template <MatmulKind kKind>
__device__ __forceinline__ typename Unpack<kKind>::Scales ExpandCodes(const uint8_t* codes) {
  if constexpr (kKind == MatmulKind::kMmaNvFp4) {
    constexpr float kFactor = 0x1p100F;
    const float2 wide = __half22float2(
        __half2(__nv_cvt_fp8x2_to_halfraw2(*reinterpret_cast<const uint16_t*>(codes), __NV_E4M3)));
    // The high half of a float, twice: one instruction.
    const auto both = [](float x) { return __byte_perm(__float_as_uint(x * kFactor), 0, 0x3232); };
    return {{both(wide.x), both(wide.y)}};
  } else {
    return Unpack<kKind>::Expand(*codes);
  }
}

// columns(i) are the lane's columns 8 i and on of its token.
template <MatmulKind kKind, typename Columns>
__device__ __forceinline__ void MultiplyFp4Unit(float (&sums)[4], const uint4& low, const uint4& high,
                                                const uint8_t* low_scale, const uint8_t* high_scale,
                                                Columns&& columns) {
  using Format = Unpack<kKind>;
  const uint32_t words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  const typename Format::Scales scales[2] = {ExpandCodes<kKind>(low_scale), ExpandCodes<kKind>(high_scale)};
  const auto widen = [&](int r, int i) {
    if constexpr (kKind == MatmulKind::kMmaNvFp4) {
      return Format::Widen(words[r], scales[r], i);
    } else {
      constexpr uint16_t kTwoTo126 = (126 + 127) << 7;
      return MulBf16x2(MulBf16x2(E2m1Pair(words[r][i / 4], i % 4), Both(kTwoTo126)), scales[r].block);
    }
  };
#pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) {
    const uint4 b = columns(chunk);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int i = chunk * 4 + step * 2;
      const uint32_t a[4] = {widen(0, i), widen(1, i), widen(0, i + 1), widen(1, i + 1)};
      Mma(sums, a, step == 0 ? b.x : b.z, step == 0 ? b.y : b.w);
    }
  }
}

// What FP8 weights are scaled with: the tile's blocks of columns, and where activations are rounded the groups of this lane's two
// tokens.
struct StreamScales {
  const float* blocks = nullptr;
  const float* token0 = nullptr;
  const float* token1 = nullptr;
};

// A unit of any kind, which is number `unit` of the row. FP4: the lane's scales of its lower row, and how far from them those of the
// upper one are.
template <StreamKind kKind>
__device__ __forceinline__ void MultiplyUnit(float (&sums)[4], const uint4& low, const uint4& high,
                                             const uint16_t* x, bool exists, const StreamScales& by, int unit,
                                             int block_units_log2, const uint8_t* scales, int upper_scales) {
  if constexpr (kKind == StreamKind::kFp8) {
    const float scale = by.blocks[unit >> block_units_log2];
    MultiplyFp8Unit(sums, low, high, x, exists, scale * by.token0[unit / 2], scale * by.token1[unit / 2]);
  } else if constexpr (kKind == StreamKind::kFp8Plain) {
    MultiplyFp8PlainUnit(sums, low, high, x, exists, by.blocks[unit >> block_units_log2]);
  } else if constexpr (kKind == StreamKind::kBf16) {
    MultiplyBf16Unit(sums, low, high, x, exists);
  } else {
    MultiplyFp4Unit<FormatOf(kKind)>(sums, low, high, scales, scales + upper_scales,
                                     [&](int i) { return LoadTokenColumns(x + i * 8, exists); });
  }
}

// The scales of FP8 weights of every item's rows, those of item i at scales + i * stride.
template <typename Item>
__device__ void LoadFp8Scales(float* scales, int stride, int num_items, Item&& item) {
  for (int n = static_cast<int>(threadIdx.x); n < num_items * stride; n += kMatmulThreads) {
    const StreamItem of = item(n / stride);
    const int block = n % stride;
    if (block < of.shape.scale_cols) {
      scales[n] = LoadScale(
          of.scale, of.shape.scale_dtype,
          static_cast<int64_t>(of.first_row >> of.shape.block_rows_log2) * of.shape.scale_cols + block);
    }
  }
}

// Calls f<kKind>() with that of kKinds which `kind` is.
template <StreamKind kFirst, StreamKind... kOthers, typename F>
__device__ __forceinline__ void WithStreamKind(StreamKind kind, F&& f) {
  if constexpr (sizeof...(kOthers) == 0) {
    f.template operator()<kFirst>();
  } else {
    if (kind == kFirst) return f.template operator()<kFirst>();
    WithStreamKind<kOthers...>(kind, f);
  }
}

// --- The pipeline ----------------------------------------------------------------------------------------------------

// The activations of a block, in shared memory.
struct StreamTokens {
  int count;
  int stride;  // Elements between tokens.
  int groups;  // Of 128 columns.
};

// Works through items 0 to num_items - 1, item(i) each, of kind kKind. prepare() is called once, by all threads, when the
// first weights are under way: it waits for the kernels before and fills shared memory, that of LoadFp8Scales included. emit(i, item, token, row, sum) is called for
// every result. Results of items_in_order items that follow each other, counted from the first, are the same thread's for a
// token and row of a tile, in order. A kernel behind this one is let start when the last weights have been asked for.
template <int kStages, StreamKind kKind, typename Item, typename Prepare, typename Emit>
__device__ void StreamItems(StreamRing<kStages>& ring, const float* fp8_scales, int fp8_scale_stride,
                            int num_items, int items_in_order, const StreamTokens& tokens, Item&& item,
                            Prepare&& prepare, Emit&& emit) {
  constexpr int kBuffers = 4;
  constexpr int kFull = 1;                 // Barriers: that a buffer's sums are there,
  constexpr int kFree = kFull + kBuffers;  // and that they have been read.
  constexpr MatmulKind kFormat = FormatOf(kKind);
  constexpr bool kFp4 = IsFp4(kKind);
  constexpr int kUnitCols = 4 * Unpack<kFormat>::kValues;
  __shared__ PartialSums<1> partial[kBuffers];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int group = lane / 4;
  const int place = lane % 4;

  // What is asked for next.
  constexpr uint32_t kStageBytes = sizeof(ring.data[0]);
  constexpr uint32_t kScaleStageBytes = sizeof(ring.scales[0]);
  const uint32_t data_begin = SharedAddress(&ring.data[0][0][thread]);
  const uint32_t scale_begin = SharedAddress(&ring.scales[0][warp][group][place * 4]);
  uint32_t next_slot = 0;
  int next_item = -1;
  StreamCursor cursor;
  const auto next_tile = [&] {
    do {
      if (++next_item >= num_items) return;
      const StreamItem next = item(next_item);
      cursor.Start(next);
    } while (cursor.units <= 0);
  };
  const uint64_t policy = EvictFirst();
  const auto load = [&] {
    if (next_item < num_items) {
      const uint32_t to = data_begin + next_slot * kStageBytes;
      const bool two = cursor.units > 1;
      CopyToShared16(to, cursor.data[0], policy);
      CopyToShared16(to + 2 * kMatmulThreads * 16, cursor.data[1], policy);
      if (two) {
        CopyToShared16(to + kMatmulThreads * 16, cursor.data[0] + kUnitBytes, policy);
        CopyToShared16(to + 3 * kMatmulThreads * 16, cursor.data[1] + kUnitBytes, policy);
      }
      cursor.data[0] += 2 * kUnitBytes;
      cursor.data[1] += 2 * kUnitBytes;
      if constexpr (kFp4) {
        // MXFP4 has a word of scales for a unit, NVFP4 two.
        if (place < cursor.words * (two ? 2 : 1)) {
          const uint32_t scale_to = scale_begin + next_slot * kScaleStageBytes;
          CopyToShared4(scale_to, cursor.scale[0]);
          CopyToShared4(scale_to + 8 * 16, cursor.scale[1]);
        }
        cursor.scale[0] += 8 * cursor.words;
        cursor.scale[1] += 8 * cursor.words;
      }
      next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
      cursor.units -= 2;
      if (cursor.units <= 0) next_tile();
    }
    CommitCopies();  // Also where nothing was asked for: copies are counted.
  };
  next_tile();
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) load();
  prepare();

  const bool exists = group < tokens.count;
  uint32_t slot = 0;
  bool let_next = false;
#pragma unroll 1
  for (int current = 0; current < num_items; ++current) {
    const StreamItem now = item(current);
    const int units = UnitsOfWarp(now.shape);
    const int first_unit = warp * now.shape.segment_units;
    float sums[4] = {};
    const float* const x_scales0 = now.x_scales + min(place * 2, tokens.count - 1) * tokens.groups;
    const float* const x_scales1 = now.x_scales + min(place * 2 + 1, tokens.count - 1) * tokens.groups;
    const uint16_t* x = now.x + group * tokens.stride + first_unit * kUnitCols + place * (kUnitCols / 4);
#pragma unroll 1
    for (int i = 0; i < units; i += 2) {
      WaitForCopies<kStages - 1>();
      if constexpr (kFp4) __syncwarp();
      const auto& data = ring.data[slot];
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        if (u == 1 && i + 1 >= units) break;
        const uint4 low = data[u][thread];
        const uint4 high = data[2 + u][thread];
        constexpr int kBytes = kKind == StreamKind::kNvFp4 ? 2 : 1;  // A lane's scales of a unit.
        MultiplyUnit<kKind>(sums, low, high, x + u * kUnitCols, exists,
                            {fp8_scales + current * fp8_scale_stride, x_scales0, x_scales1},
                            first_unit + i + u, now.shape.block_units_log2,
                            &ring.scales[slot][warp][group][(u * 4 + place) * kBytes], 8 * 16);
      }
      x += 2 * kUnitCols;
      slot = slot + 1 == kStages ? 0 : slot + 1;
      if constexpr (kFp4) __syncwarp();
      load();
    }
    if (!let_next && next_item >= num_items) {
      let_next = true;
      LetNextKernelStart();
    }

    // Sums go through one of a few buffers to the warp that adds this item's; the others go on.
    const int buffer = current % kBuffers;
    const int adder = current / items_in_order % kSegments;
    if (current >= kBuffers && warp != (current - kBuffers) / items_in_order % kSegments)
      WaitAt(kFree + buffer);
    PartialSums<1>& results = partial[buffer];
    if (place * 2 < tokens.count) {
      results[warp][place * 2][group] = sums[0];
      results[warp][place * 2 + 1][group] = sums[1];
      results[warp][place * 2][group + 8] = sums[2];
      results[warp][place * 2 + 1][group + 8] = sums[3];
    }
    __syncwarp();
    if (warp != adder) {
      ArriveAt(kFull + buffer);
      continue;
    }
    WaitAt(kFull + buffer);
    for (int i = lane; i < tokens.count * kTileRows; i += 32) {
      const int t = i / kTileRows;
      float sum = results[0][t][i % kTileRows];
#pragma unroll
      for (int s = 1; s < kSegments; ++s) {
        if (s < now.shape.num_segments) sum += results[s][t][i % kTileRows];
      }
      sum = Unpack<kFormat>::Finish(now.shape.global_scale_divides, now.global_scale, sum);
      emit(current, now, t, now.first_row + i % kTileRows, sum);
    }
    __syncwarp();
    if (current + kBuffers < num_items) ArriveAt(kFree + buffer);
  }
}

}  // namespace dsv4::backend::cuda
