// scale, swiglu and moe_combine: one output from the elements at its index.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/swiglu.cuh"
#include "backend/cuda/device/numeric/swiglu_words.cuh"
#include "backend/cuda/device/numeric/wide_bf16.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/elementwise/elementwise.h"
#include "backend/cuda/runtime/launch_context.h"

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

// The same for so many elements that bytes in flight count: several groups of four a thread, all asked for at
// once. A sum of two fp32 is rounded alike
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

}  // namespace

void LaunchScale(LaunchContext& context, const ops::ScaleArgs& args) {
  const int64_t count = args.x.num_elements();
  WithElement(args.x.dtype, [&]<typename T>(T*) {
    context.Launch(ElementwiseScaleKernel<T>, Blocks(count), kThreads, 0, args.x.as<const T>(),
                   args.y.as<T>(), count, args.factor);
  });
}

void LaunchSwiglu(LaunchContext& context, const SwigluWork& work) {
  WithElement(work.dtype, [&]<typename T>(T*) {
    context.Launch(ElementwiseSwigluKernel<T>, Blocks(work.count), kThreads, 0,
                   static_cast<const T*>(work.gate), static_cast<const T*>(work.up), work.row_weights,
                   static_cast<T*>(work.y), work.count, work.width, work.limit);
  });
}

void LaunchManySwiglus(LaunchContext& context, const SwigluWork& work) {
  context.Launch(ElementwiseManySwiglusKernel, Blocks(work.count / 8), kThreads, 0,
                 static_cast<const uint16_t*>(work.gate), static_cast<const uint16_t*>(work.up),
                 work.row_weights, static_cast<uint16_t*>(work.y), work.count, work.width, work.limit);
}

void LaunchMoeCombine(LaunchContext& context, const CombineWork& work) {
  const bool several = work.path == ElementsPath::kSeveral;
  WithElement(work.dtype, [&]<typename T>(T*) {
    context.Launch(several ? ElementwiseManyCombinesKernel<T> : ElementwiseMoeCombineKernel<T>,
                   Blocks(several ? CeilDiv(work.count, 4 * kAtOnce) : work.count), kThreads, 0, work.routed,
                   static_cast<const T*>(work.shared), static_cast<T*>(work.y), work.count);
  });
}

}  // namespace dsv4::backend::cuda
