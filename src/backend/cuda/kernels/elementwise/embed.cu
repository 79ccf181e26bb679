// Op embed on CUDA: a token's embedding row copied to each of its residual streams.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/elementwise/embed.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAtOnce =
    16;  // Columns that a thread asks for before it waits for any: the row of 4096 in one go.

// One block a token and stream.
template <typename In, typename Out>
__global__ void EmbedKernel(const int32_t* ids, const In* table, Out* streams, int64_t vocab_size,
                            int64_t dim, Fault* fault) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int64_t id = ids[token];
  if (id < 0 || id >= vocab_size) {
    if (threadIdx.x == 0) ReportFault(fault, FaultKind::kTokenId, token, 0, id, vocab_size);
    return;
  }
  Out* const row = streams + (token * gridDim.y + blockIdx.y) * dim;
  const In* const from = table + id * dim;
#pragma unroll 1
  for (int64_t first = threadIdx.x; first < dim; first += kAtOnce * kThreads) {
    In values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * kThreads < dim) values[i] = from[first + i * kThreads];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * kThreads < dim) row[first + i * kThreads] = FromFloat<Out>(ToFloat(values[i]));
    }
  }
}

}  // namespace

void LaunchEmbed(LaunchContext& context, const ops::EmbedArgs& args) {
  const int64_t num_tokens = args.token_ids.shape[0];
  const int64_t hc_mult = args.streams.shape[1];
  const dim3 grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(hc_mult));
  const auto launch = [&]<typename In>(const In* in) {
    WithElement(args.streams.dtype, [&]<typename Out>(Out*) {
      context.Launch(EmbedKernel<In, Out>, grid, kThreads, 0, args.token_ids.as<const int32_t>(), in,
                     args.streams.as<Out>(), args.table.shape[0], args.table.shape[1], context.fault());
    });
  };
  switch (args.table.dtype) {
    case DType::kBF16:
      launch(args.table.as<const Bf16>());
      break;
    case DType::kF16:
      launch(args.table.as<const F16>());
      break;
    default:
      launch(args.table.as<const float>());
  }
}

}  // namespace dsv4::backend::cuda
