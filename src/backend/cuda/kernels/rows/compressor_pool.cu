// compressor_pool of entries that are no step on rows (compressor_rows.cuh): an entry by many blocks, a few
// channels each.

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/compressor_pool.h"
#include "backend/cuda/kernels/rows/compressor_rows.cuh"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

using Sequences = DeviceArray<CompressorHistory>;
using Params = CompressorPoolParams;

// Channels of a block: 32 bytes of a row.
constexpr int kChannels = 8;
constexpr int kThreads = 256;
// Tokens of a thread, all asked for at once, and of the block.
constexpr int kTokens = 4;
constexpr int kTokensAtOnce = kTokens * kThreads / kChannels;

// Some channels of an entry. Threads weigh tokens side by side; then one thread a sum adds them up in order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    CompressorPoolKernel(const Sequences sequences, const Params p, T* pooled) {
  LetNextKernelStart();
  __shared__ float largest[kThreads / 32][kChannels];
  __shared__ double terms[2][kTokensAtOnce][kChannels];  // weight * value, weight
  const int t = static_cast<int>(threadIdx.x);
  const int64_t index = blockIdx.x;
  const int first_channel = static_cast<int>(blockIdx.y) * kChannels;
  // Indices outside the row become its last.
  const int c = min(first_channel + t % kChannels, p.pooled_width - 1);
  const EntryTokens tokens(sequences, index, p.ratio, p.overlap);
  const int own_channel = c + (p.overlap ? p.pooled_width : 0);
  WaitForKernelsBefore();

  float values[kTokens];
  float scores[kTokens];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int token = first + t / kChannels + i * (kThreads / kChannels);
      scores[i] = -INFINITY;
      values[i] = 0.0F;
      if (token >= tokens.count()) continue;
      const int channel = tokens.IsPrevious(token) ? c : own_channel;
      values[i] = tokens.Values(p.values, p.width, token)[channel];
      // An fp32 sum, as it is in the history: an entry must not depend on where the chunks were cut.
      scores[i] = tokens.Scores(p.scores, p.width, token)[channel];
      if (tokens.IsNew(token) && p.ape != nullptr)
        scores[i] += p.ape[tokens.RowOfApe(token) * p.width + channel];
    }
  };
  float max = -INFINITY;
  const int last = (tokens.count() - 1) / kTokensAtOnce * kTokensAtOnce;
#pragma unroll 1
  for (int first = last; first >= 0; first -= kTokensAtOnce) {  // So that those loaded last come first below.
    load(first);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) max = fmaxf(max, scores[i]);
  }
  for (int offset = kChannels; offset < 32; offset *= 2)
    max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
  if (t % 32 < kChannels) largest[t / 32][t % kChannels] = max;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) max = fmaxf(max, largest[w][t % kChannels]);

  double sum = 0.0;  // Sum of thread t < 2 * kChannels: terms t / kChannels of channel t % kChannels.
#pragma unroll 1
  for (int first = 0; first < tokens.count(); first += kTokensAtOnce) {
    if (first > 0) load(first);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int place = t / kChannels + i * (kThreads / kChannels);
      const double weight = exp(static_cast<double>(scores[i]) - static_cast<double>(max));
      terms[0][place][t % kChannels] = weight * static_cast<double>(values[i]);
      terms[1][place][t % kChannels] = weight;
    }
    __syncthreads();
    if (t < 2 * kChannels) {
      const int count = min(tokens.count() - first, kTokensAtOnce);
#pragma unroll 8
      for (int i = 0; i < count; ++i) sum += terms[t / kChannels][i][t % kChannels];
    }
    __syncthreads();
  }
  if (t >= 32) return;
  const double total = __shfl_down_sync(kWholeWarp, sum, kChannels);
  if (t < kChannels && first_channel + t < p.pooled_width)
    Store(pooled, index * p.pooled_width + first_channel + t, sum / total);
}

}  // namespace

void LaunchCompressorPool(LaunchContext& context, const Sequences& sequences,
                          const CompressorPoolParams& params, int64_t num_entries, const TensorView& pooled) {
  const dim3 grid(static_cast<unsigned>(num_entries),
                  static_cast<unsigned>(CeilDiv(params.pooled_width, kChannels)));
  WithElement(pooled.dtype, [&]<typename T>(T*) {
    context.Launch(CompressorPoolKernel<T>, grid, kThreads, 0, sequences, params, pooled.as<T>());
  });
}

}  // namespace dsv4::backend::cuda
