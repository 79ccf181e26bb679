// scale, swiglu and moe_combine: one output from the elements at its place.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/swiglu.cuh"
#include "backend/cuda/device/numeric/swiglu_words.cuh"
#include "backend/cuda/device/numeric/wide_bf16.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/rows.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/runtime/open_launches.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
unsigned Blocks(int64_t count) { return static_cast<unsigned>(CeilDiv(count, kThreads)); }

__device__ __forceinline__ int64_t ElementIndex() { return blockIdx.x * int64_t{blockDim.x} + threadIdx.x; }

template <typename T>
__global__ void ElementwiseScaleKernel(const T* x, T* y, int64_t count, float factor) {
  BeginKernel();
  const int64_t i = ElementIndex();
  if (i < count) y[i] = FromFloat<T>(ToFloat(x[i]) * factor);
}

template <typename T>
__global__ void ElementwiseSwigluKernel(const T* gate, const T* up, const float* row_weights, T* y,
                                        int64_t count, int64_t width, float limit) {
  BeginKernel();
  SwigluElement(gate, up, row_weights, y, ElementIndex(), count, width, limit);
}

template <typename T>
__global__ void ElementwiseMoeCombineKernel(const float* routed, const T* shared, T* y, int64_t count) {
  BeginKernel();
  const int64_t i = ElementIndex();
  if (i < count) Store(y, i, (shared == nullptr ? 0.0F : Load(shared, i)) + Load(routed, i));
}

// The same for so many elements that bytes in flight count: several groups of four a thread, all asked for at once. A sum of two fp32 is rounded alike
constexpr int kAtOnce = 4;

__device__ __forceinline__ float4 ReadFour(const float* data) {
  return *reinterpret_cast<const float4*>(data);
}
__device__ __forceinline__ float4 ReadFour(const Bf16* data) {
  const uint2 pairs = *reinterpret_cast<const uint2*>(data);
  return make_float4(FloatBf16(pairs.x, 0), FloatBf16(pairs.x, 1), FloatBf16(pairs.y, 0),
                     FloatBf16(pairs.y, 1));
}
__device__ __forceinline__ void WriteFour(float* data, float4 four) {
  *reinterpret_cast<float4*>(data) = four;
}
__device__ __forceinline__ void WriteFour(Bf16* data, float4 four) {
  *reinterpret_cast<uint2*>(data) = make_uint2(Bf16Pair(four.x, four.y), Bf16Pair(four.z, four.w));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    ElementwiseManyCombinesKernel(const float* routed, const T* shared, T* y, int64_t count) {
  BeginKernel();
  const int64_t first = (blockIdx.x * int64_t{kAtOnce * kThreads} + threadIdx.x) * 4;
  float4 a[kAtOnce];
  float4 b[kAtOnce] = {};
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int64_t at = first + i * 4 * kThreads;
    if (at >= count) break;
    a[i] = ReadFour(routed + at);
    if (shared != nullptr) b[i] = ReadFour(shared + at);
  }
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int64_t at = first + i * 4 * kThreads;
    if (at >= count) break;
    WriteFour(y + at, make_float4(b[i].x + a[i].x, b[i].y + a[i].y, b[i].z + a[i].z, b[i].w + a[i].w));
  }
}
// Eight columns a thread, with the bits of ElementwiseSwigluKernel.
__global__ void __launch_bounds__(kThreads)
    ElementwiseManySwiglusKernel(const uint16_t* gate, const uint16_t* up, const float* row_weights,
                                 uint16_t* y, int64_t count, int64_t width, float limit) {
  BeginKernel();
  const int64_t at = ElementIndex() * 8;
  if (at >= count) return;
  const uint4 gates = *reinterpret_cast<const uint4*>(gate + at);
  const uint4 ups = *reinterpret_cast<const uint4*>(up + at);
  const float weight = row_weights == nullptr ? 1.0F : row_weights[at / width];
  const uint4 words = SwigluWords(gates, ups, limit, weight);
  StorePairs(y + at, words.x, words.y, words.z, words.w);
}
Plan<ElementsPath> Choose(CudaContext& context, const ops::MoeCombineArgs& args) {
  const ElementsShape shape = {.dtype = args.y.dtype,
                               .count = args.routed.num_elements(),
                               .width = args.routed.shape[1],
                               .a = args.routed.data,
                               .b = args.shared.data,
                               .y = args.y.data};
  const Plan<ElementsPath> plan = FirstFit(MoeCombineRules(), shape, context.limits());
  context.Chose(plan);
  return plan;
}
Plan<ElementsPath> Choose(CudaContext& context, const ops::SwigluArgs& args) {
  const ElementsShape shape = {.dtype = args.gate.dtype,
                               .count = args.gate.num_elements(),
                               .width = args.gate.shape[1],
                               .a = args.gate.data,
                               .b = args.up.data,
                               .y = args.y.data};
  const Plan<ElementsPath> plan = FirstFit(SwigluRules(), shape, context.limits());
  context.Chose(plan);
  return plan;
}

}  // namespace

Status Scale(CudaContext& context, const ops::ScaleArgs& args) {
  const int64_t count = args.x.num_elements();
  if (count == 0) return {};
  if (count <= kMaxRowWidth) {
    // As one row, beside others.
    const bool is_bf16 = args.x.dtype == DType::kBF16;
    return AddRowStep(context,
                      {.in = args.x.data,
                       .in_stride = count,
                       .out = args.y.data,
                       .out_stride = count,
                       .num_rows = 1,
                       .width = count,
                       .in_is_bf16 = is_bf16,
                       .out_is_bf16 = is_bf16},
                      {.kind = RowStepKind::kScale, .factor = args.factor});
  }
  WithElement(args.x.dtype, [&]<typename T>(T*) {
    context.Launch(ElementwiseScaleKernel<T>, Blocks(count), kThreads, 0, args.x.as<const T>(),
                   args.y.as<T>(), count, args.factor);
  });
  return {};
}

Status Swiglu(CudaContext& context, const ops::SwigluArgs& args) {
  const int64_t count = args.gate.num_elements();
  if (count == 0) return {};
  OpenSwiglu open = {.gate = args.gate.data,
                     .up = args.up.data,
                     .row_weights = args.row_weights.as<const float>(),
                     .y = args.y.data,
                     .count = count,
                     .width = args.gate.shape[1],
                     .limit = args.limit,
                     .dtype = args.gate.dtype};
  if (Choose(context, args).kernel == ElementsPath::kSeveral) {
    context.Launch(ElementwiseManySwiglusKernel, Blocks(count / 8), kThreads, 0,
                   args.gate.as<const uint16_t>(), args.up.as<const uint16_t>(),
                   args.row_weights.as<const float>(), args.y.as<uint16_t>(), count, args.gate.shape[1],
                   args.limit);
    return {};
  }
  WithElement(args.gate.dtype, [&]<typename T>(T*) {
    open.launch = context.queue().Launch(ElementwiseSwigluKernel<T>, Blocks(count), kThreads, 0,
                                         args.gate.as<const T>(), args.up.as<const T>(),
                                         args.row_weights.as<const float>(), args.y.as<T>(), count,
                                         args.gate.shape[1], args.limit);
  });
  context.open_swiglu() = std::make_shared<OpenSwiglu>(open);
  return {};
}

Status MoeCombine(CudaContext& context, const ops::MoeCombineArgs& args) {
  const int64_t count = args.routed.num_elements();
  if (count == 0) return {};
  OpenCombine open = {.routed = args.routed.as<const float>(),
                      .shared = args.shared.data,
                      .y = args.y.data,
                      .count = count,
                      .dtype = args.y.dtype};
  const OpenCombine* const sum = context.open_combine().get();
  if (sum != nullptr && sum->links.size > 0 && sum->y == args.routed.data && sum->count == count &&
      sum->dtype == DType::kF32 && args.shared.is_null() && args.y.dtype == DType::kBF16 &&
      !OverlapsOperands(*sum, args.y.data, args.y.num_bytes())) {
    // The all-reduce rounds its sum itself.
    OpenCombine rounded = *sum;
    rounded.y = args.y.data;
    rounded.dtype = args.y.dtype;
    rounded.launch = LaunchPackedSum(context.queue(), sum->launch,
                                     {.links = sum->links,
                                      .routed = sum->routed,
                                      .added = static_cast<const float*>(sum->shared),
                                      .sum = sum->sum,
                                      .rounded = rounded.y,
                                      .count = count});
    if (rounded.launch != 0) {
      context.open_combine() = std::make_shared<OpenCombine>(rounded);
      return {};
    }
  }
  WithElement(args.y.dtype, [&]<typename T>(T*) {
    const bool several = Choose(context, args).kernel == ElementsPath::kSeveral;
    open.launch = context.queue().Launch(
        several ? ElementwiseManyCombinesKernel<T> : ElementwiseMoeCombineKernel<T>,
        Blocks(several ? CeilDiv(count, 4 * kAtOnce) : count), kThreads, 0, args.routed.as<const float>(),
        args.shared.as<const T>(), args.y.as<T>(), count);
  });
  context.open_combine() = std::make_shared<OpenCombine>(open);
  return {};
}

}  // namespace dsv4::backend::cuda
