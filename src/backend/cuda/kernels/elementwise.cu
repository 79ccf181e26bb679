// scale, swiglu and moe_combine: one output from the elements at its place.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/open_launches.h"
#include "backend/cuda/kernels/rows.h"
#include "backend/cuda/kernels/swiglu.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
unsigned Blocks(int64_t count) { return static_cast<unsigned>(CeilDiv(count, kThreads)); }

__device__ __forceinline__ int64_t ElementIndex() { return blockIdx.x * int64_t{blockDim.x} + threadIdx.x; }

template <typename T>
__global__ void ScaleKernel(const T* x, T* y, int64_t count, float factor) {
  BeginKernel();
  const int64_t i = ElementIndex();
  if (i < count) y[i] = FromFloat<T>(ToFloat(x[i]) * factor);
}

template <typename T>
__global__ void SwigluKernel(const T* gate, const T* up, const float* row_weights, T* y, int64_t count,
                             int64_t width, float limit) {
  BeginKernel();
  SwigluElement(gate, up, row_weights, y, ElementIndex(), count, width, limit);
}

template <typename T>
__global__ void MoeCombineKernel(const float* routed, const T* shared, T* y, int64_t count) {
  BeginKernel();
  const int64_t i = ElementIndex();
  if (i < count) Store(y, i, (shared == nullptr ? 0.0F : Load(shared, i)) + Load(routed, i));
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
    context.Launch(ScaleKernel<T>, Blocks(count), kThreads, 0, args.x.as<const T>(), args.y.as<T>(), count,
                   args.factor);
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
  WithElement(args.gate.dtype, [&]<typename T>(T*) {
    open.launch = context.queue().Launch(SwigluKernel<T>, Blocks(count), kThreads, 0, args.gate.as<const T>(),
                                         args.up.as<const T>(), args.row_weights.as<const float>(),
                                         args.y.as<T>(), count, args.gate.shape[1], args.limit);
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
    open.launch =
        context.queue().Launch(MoeCombineKernel<T>, Blocks(count), kThreads, 0, args.routed.as<const float>(),
                               args.shared.as<const T>(), args.y.as<T>(), count);
  });
  context.open_combine() = std::make_shared<OpenCombine>(open);
  return {};
}

}  // namespace dsv4::backend::cuda
