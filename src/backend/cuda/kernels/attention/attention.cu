// attention of any shape, one head of one token a block; and, in front of every kernel, lists of chosen
// entries put in order. Which kernel attends is lowering/select/attention.cc.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/packed_rows.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/attention/attention.h"
#include "backend/cuda/kernels/attention/attention_keys.cuh"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

// --- Lists -----------------------------------------------------------------------------------------------------------

constexpr int kSortThreads = 256;

// One block a token: checks the list, drops its holes and sorts it (bitonic, in shared memory). Results then
// do not depend on the order of the list.
__global__ void AttentionSortEntriesKernel(const __grid_constant__ SequenceTable table,
                                           const int32_t* all_selected, int32_t* all_entries,
                                           int32_t* num_entries, int64_t top_k, int64_t ratio, int padded,
                                           Fault* fault) {
  BeginKernel();
  extern __shared__ int32_t list[];
  const int64_t token = blockIdx.x;
  const SequenceRows& sequence = table.Of(token);
  const int64_t visible = (sequence.first_position + token - sequence.token_begin + 1) / ratio;
  const int32_t* const selected = all_selected + token * top_k;
  constexpr int32_t kNone = INT32_MAX;
  int mine = 0;
  for (int i = threadIdx.x; i < padded; i += kSortThreads) {
    int32_t entry = i < top_k ? selected[i] : -1;
    if (entry < -1 || entry >= visible) {
      ReportFault(fault, FaultKind::kSelectedEntry, token, i, entry, visible);
      entry = -1;
    }
    list[i] = entry < 0 ? kNone : entry;
    mine += entry < 0 ? 0 : 1;
  }
  const int count = BlockSum(mine);
  // The indexer's lists are in order already, their holes behind them.
  __shared__ bool sorted;
  if (threadIdx.x == 0) sorted = true;
  __syncthreads();
  for (int i = threadIdx.x; i + 1 < padded; i += kSortThreads) {
    if (list[i] > list[i + 1]) sorted = false;
  }
  __syncthreads();
  for (int size = sorted ? 2 * padded : 2; size <= padded; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < padded / 2; i += kSortThreads) {
        const int low = i / stride * 2 * stride + i % stride;
        const int high = low + stride;
        const bool ascending = (low & size) == 0;
        if ((list[low] > list[high]) == ascending) {
          const int32_t swapped = list[low];
          list[low] = list[high];
          list[high] = swapped;
        }
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kSortThreads) {
    all_entries[token * top_k + i] = list[i];
    if (i > 0 && list[i] == list[i - 1])
      ReportFault(fault, FaultKind::kRepeatedEntry, token, 0, list[i], visible);
  }
  if (threadIdx.x == 0) num_entries[token] = count;
}

// --- Any shape -------------------------------------------------------------------------------------------------------

constexpr int kThreads = 128;
constexpr int kTile = 64;  // Keys at a time.
constexpr int kMaxDimsPerThread = 8;
static_assert(kThreads * kMaxDimsPerThread == kMaxAttentionHeadDim);

// One head of one token a block, in two passes over the keys: the largest logit, then weights relative to it.
template <typename T>
__global__ void AttentionKernel(const __grid_constant__ SequenceTable table, const AttentionParams p) {
  BeginKernel();
  extern __shared__ float q[];
  __shared__ const T* rows[kTile];
  __shared__ float logits[kTile];
  const int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int dim = p.head_dim;
  const int64_t q_begin = (token * p.num_heads + head) * dim;
  const VisibleKeys keys(table, p, token);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int d = threadIdx.x; d < dim; d += kThreads) q[d] = ToFloat(static_cast<const T*>(p.q)[q_begin + d]);

  // Rows and logits of a tile; returns how many keys it has.
  const auto load_tile = [&](int64_t begin) {
    const int count = static_cast<int>(min(int64_t{kTile}, keys.num_keys - begin));
    __syncthreads();
    if (threadIdx.x < count) rows[threadIdx.x] = keys.template Row<T>(begin + threadIdx.x);
    __syncthreads();
    for (int t = warp; t < count; t += kThreads / 32) {
      float dot = 0.0F;
      const CacheFormat& format = keys.FormatOf(begin + t);
      for (int d = lane; d < dim; d += 32) dot = fmaf(q[d], StoredElement<T>(format, rows[t], dim, d), dot);
      dot = WarpSum(dot);
      if (lane == 0) logits[t] = dot * p.softmax_scale;
    }
    __syncthreads();
    return count;
  };

  float max = -INFINITY;
  for (int64_t begin = 0; begin < keys.num_keys; begin += kTile) {
    const int count = load_tile(begin);
    for (int t = 0; t < count; ++t) max = fmaxf(max, logits[t]);
  }
  float normalizer = expf(p.sink[head] - max);
  float o[kMaxDimsPerThread] = {};
  for (int64_t begin = 0; begin < keys.num_keys; begin += kTile) {
    const int count = load_tile(begin);
    for (int t = 0; t < count; ++t) {
      const float weight = expf(logits[t] - max);
      normalizer += weight;
      const float rounded = static_cast<float>(Held<T>(static_cast<double>(weight)));
      const CacheFormat& format = keys.FormatOf(begin + t);
#pragma unroll
      for (int r = 0; r < kMaxDimsPerThread; ++r) {
        const int d = static_cast<int>(threadIdx.x) + r * kThreads;
        if (d < dim) o[r] = fmaf(rounded, StoredElement<T>(format, rows[t], dim, d), o[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kMaxDimsPerThread; ++r) {
    const int d = static_cast<int>(threadIdx.x) + r * kThreads;
    if (d < dim) static_cast<T*>(p.o)[q_begin + d] = FromFloat<T>(o[r] / normalizer);
  }
}

}  // namespace

void LaunchSortEntries(LaunchContext& context, const SequenceTable& table, const EntriesToSort& lists) {
  int padded = 2;
  while (padded < lists.top_k) padded *= 2;
  context.Launch(AttentionSortEntriesKernel, static_cast<unsigned>(lists.num_tokens), kSortThreads,
                 static_cast<size_t>(padded) * sizeof(int32_t), table, lists.selected, lists.entries,
                 lists.num_entries, lists.top_k, lists.ratio, padded, context.fault());
}

void LaunchAttentionOfAny(LaunchContext& context, const SequenceTable& table, const AttentionParams& params,
                          DType dtype) {
  const dim3 grid(static_cast<unsigned>(params.num_tokens), static_cast<unsigned>(params.num_heads));
  WithElement(dtype, [&]<typename T>(T*) {
    context.Launch(AttentionKernel<T>, grid, kThreads, static_cast<size_t>(params.head_dim) * sizeof(float),
                   table, params);
  });
}

}  // namespace dsv4::backend::cuda
