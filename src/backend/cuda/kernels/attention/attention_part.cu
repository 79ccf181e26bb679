// attention_part and merge_attention: attention over some of the keys, left open, and parts put together.
//
// Keys of a part are numbered window first, entries after, and cut into tiles of 64; a block takes a tile and
// 16 heads. Weights are taken, and rounded, relative to the tile's largest logit, as the contract allows; a
// second kernel combines a head's tiles in order. The cut depends on the query's own keys alone. fp32 and
// other head widths take a plain kernel, one block a head.

#include "backend/cuda/device/numeric/bitonic.cuh"
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/packed_rows.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/attention/attention_part.cuh"
#include "backend/cuda/kernels/attention/attention_tile.cuh"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

// --- Lists -----------------------------------------------------------------------------------------------------------

constexpr int kListThreads = 256;

// One block a token: checks the list and keeps the rows of those entries that are here, in order. Wrong lists
// are reported as attention's.
__global__ void AttentionPartRowsKernel(const __grid_constant__ SequenceTable table, const PartParams p,
                                        const int32_t* all_selected, int32_t* all_rows, int32_t* num_rows,
                                        const int padded, Fault* fault) {
  extern __shared__ int32_t list[];
  __shared__ int count;
  __shared__ int in_warp[kListThreads / 32];
  BeginKernel();
  const int64_t token = blockIdx.x;
  const SequenceRows& sequence = table.Of(token);
  const int64_t visible = (sequence.first_position + token - sequence.token_begin + 1) / p.ratio;
  const int t = static_cast<int>(threadIdx.x);
  for (int i = t; i < padded; i += kListThreads) list[i] = INT32_MAX;
  if (t == 0) count = 0;
  __syncthreads();
  for (int begin = 0; begin < p.top_k; begin += kListThreads) {
    const int i = begin + t;
    const int32_t entry = i < p.top_k ? all_selected[token * p.top_k + i] : -1;
    if (entry < -1 || entry >= visible)
      ReportFault(fault, FaultKind::kSelectedEntry, token, i, entry, visible);
    const bool here = entry >= 0 && entry < visible && entry % p.shard_count == p.shard_index;
    // In the order of the list.
    const unsigned lanes = __ballot_sync(kWholeWarp, here);
    if (t % 32 == 0) in_warp[t / 32] = __popc(lanes);
    __syncthreads();
    int place = count + __popc(lanes & ((1U << t % 32) - 1U));
    int total = 0;
    for (int warp = 0; warp < kListThreads / 32; ++warp) {
      if (warp < t / 32) place += in_warp[warp];
      total += in_warp[warp];
    }
    if (here) list[place] = static_cast<int32_t>(entry / p.shard_count);
    __syncthreads();
    if (t == 0) count += total;
    __syncthreads();
  }
  bool ascending = true;  // As indexers give them.
  for (int i = t; i + 1 < count; i += kListThreads) ascending = ascending && list[i] < list[i + 1];
  if (__syncthreads_and(ascending ? 1 : 0) == 0) BitonicSort<false>(list, padded);
  for (int i = t; i < count; i += kListThreads) {
    all_rows[token * p.top_k + i] = list[i];
    if (i > 0 && list[i] == list[i - 1]) {
      ReportFault(fault, FaultKind::kRepeatedEntry, token, 0, list[i] * p.shard_count + p.shard_index,
                  visible);
    }
  }
  if (t == 0) num_rows[token] = count;
}

// --- Any shape -------------------------------------------------------------------------------------------------------

constexpr int kPlainThreads = 128;
constexpr int kPlainTile = 64;
constexpr int kMaxDimsPerThread = 8;
static_assert(kPlainThreads * kMaxDimsPerThread == kMaxAttentionHeadDim);

// One head of one token a block, in two passes over the keys.
template <typename T>
__global__ void AttentionPartPlainKernel(const __grid_constant__ SequenceTable table, const PartParams p) {
  extern __shared__ float q[];
  __shared__ const T* rows[kPlainTile];
  __shared__ float logits[kPlainTile];
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int dim = p.head_dim;
  const int t = static_cast<int>(threadIdx.x);
  const int64_t place = token * p.num_heads + head;
  const PartKeys keys(table, p, token);
  for (int d = t; d < dim; d += kPlainThreads) q[d] = ToFloat(static_cast<const T*>(p.q)[place * dim + d]);

  // Rows and logits of a tile; returns how many keys it has.
  const auto load_tile = [&](int64_t begin) {
    const int count = static_cast<int>(min(int64_t{kPlainTile}, keys.num_keys - begin));
    __syncthreads();
    if (t < count) rows[t] = keys.template Row<T>(begin + t);
    __syncthreads();
    for (int i = t / 32; i < count; i += kPlainThreads / 32) {
      float dot = 0.0F;
      const CacheFormat& format = keys.FormatOf(begin + i);
      for (int d = t % 32; d < dim; d += 32) dot = fmaf(q[d], StoredElement<T>(format, rows[i], dim, d), dot);
      dot = WarpSum(dot);
      if (t % 32 == 0) logits[i] = dot * p.softmax_scale;
    }
    __syncthreads();
    return count;
  };

  float max = -INFINITY;
  for (int64_t begin = 0; begin < keys.num_keys; begin += kPlainTile) {
    const int count = load_tile(begin);
    for (int i = 0; i < count; ++i) max = fmaxf(max, logits[i]);
  }
  float sum = 0.0F;
  float values[kMaxDimsPerThread] = {};
  for (int64_t begin = 0; begin < keys.num_keys; begin += kPlainTile) {
    const int count = load_tile(begin);
    for (int i = 0; i < count; ++i) {
      const float weight = expf(logits[i] - max);
      sum += weight;
      const float rounded = static_cast<float>(Held<T>(static_cast<double>(weight)));
      const CacheFormat& format = keys.FormatOf(begin + i);
#pragma unroll
      for (int r = 0; r < kMaxDimsPerThread; ++r) {
        const int d = t + r * kPlainThreads;
        if (d < dim) values[r] = fmaf(rounded, StoredElement<T>(format, rows[i], dim, d), values[r]);
      }
    }
  }
  float* const out = p.part + place * (dim + 2);
#pragma unroll
  for (int r = 0; r < kMaxDimsPerThread; ++r) {
    const int d = t + r * kPlainThreads;
    if (d < dim) out[d] = values[r];
  }
  if (t == 0) {
    out[dim] = max;
    out[dim + 1] = sum;
  }
}

// --- Tensor cores ----------------------------------------------------------------------------------------------------

constexpr int kHeads = kAttentionHeads;
constexpr int kKeys = kAttentionKeys;
constexpr int kThreads = kAttentionThreads;

// Grid: tiles, groups of heads, tokens.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    AttentionPartTileKernel(const __grid_constant__ SequenceTable table, const PartParams p,
                            const PartialResults out) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<TileMemory<kDim>*>(raw);
  BeginKernel();
  const int64_t token = out.first_token + blockIdx.z;
  const PartKeys keys(table, p, token);
  const int64_t first_key = blockIdx.x * int64_t{kKeys};
  const bool only = out.max_tiles == 1;  // The only tile of its part, which it then is.
  if (first_key >= keys.num_keys && !only) return;
  const int num_keys = static_cast<int>(min(int64_t{kKeys}, keys.num_keys - first_key));
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int num_heads = min(kHeads, p.num_heads - first_head);
  const int thread = static_cast<int>(threadIdx.x);
  const auto place_of = [&](int head) {
    return (blockIdx.z * int64_t{p.num_heads} + first_head + head) * out.max_tiles + blockIdx.x;
  };
  const auto values_of = [&](int head) {
    return only ? p.part + (token * p.num_heads + first_head + head) * (kDim + 2)
                : out.values + place_of(head) * kDim;
  };
  const auto store_sum = [&](int head, float max, float sum) {
    float* const of_part = values_of(head) + kDim;
    (only ? of_part[0] : out.maxima[place_of(head)]) = max;
    (only ? of_part[1] : out.sums[place_of(head)]) = sum;
  };
  if (num_keys <= 0) {
    for (int head = thread / 32; head < num_heads; head += kThreads / 32) {
      for (int d = thread % 32; d < kDim; d += 32) values_of(head)[d] = 0.0F;
      if (thread % 32 == 0) store_sum(head, -INFINITY, 0.0F);
    }
    return;
  }

  LoadQueries(m.tile, static_cast<const uint16_t*>(p.q) + (token * p.num_heads + first_head) * kDim,
              num_heads);
  LoadKeys(m.tile, keys, first_key, num_keys);
  ComputeLogits(m.tile, m.logits, num_keys, p.softmax_scale);
  // Every tile has a key, so its maximum is a number.
  const float max = LargestLogit(m.logits);
  const float sum = WeighKeys(m.tile, m.logits, max);
  if (thread % 8 == 0 && thread / 8 < num_heads) store_sum(thread / 8, max, sum);
  __syncthreads();

  SumValues(m.tile, [&](int head, int column, float first, float second) {
    if (head >= num_heads) return;
    *reinterpret_cast<float2*>(values_of(head) + column) = make_float2(first, second);
  });
}

// One block a head of a token.
template <int kDim>
__global__ void AttentionPartJoinKernel(const __grid_constant__ SequenceTable table, const PartParams p,
                                        const PartialResults in) {
  BeginKernel();
  const int64_t token = in.first_token + blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const PartKeys keys(table, p, token);
  const int num_tiles = static_cast<int>(CeilDiv(keys.num_keys, kKeys));
  const int64_t begin = (blockIdx.x * int64_t{p.num_heads} + head) * in.max_tiles;
  float max = -INFINITY;
  for (int t = 0; t < num_tiles; ++t) max = fmaxf(max, in.maxima[begin + t]);
  float sum = 0.0F;
  float values[kDim / kThreads] = {};
  for (int t = 0; t < num_tiles; ++t) {
    const float factor = expf(in.maxima[begin + t] - max);
    sum = fmaf(factor, in.sums[begin + t], sum);
#pragma unroll
    for (int i = 0; i < kDim / kThreads; ++i)
      values[i] = fmaf(factor, in.values[(begin + t) * kDim + i * kThreads + threadIdx.x], values[i]);
  }
  float* const out = p.part + (token * p.num_heads + head) * (kDim + 2);
#pragma unroll
  for (int i = 0; i < kDim / kThreads; ++i) out[i * kThreads + threadIdx.x] = values[i];
  if (threadIdx.x == 0) {
    out[kDim] = max;
    out[kDim + 1] = sum;
  }
}

template <int kDim>
Status RunParts(LaunchContext& context, const SequenceTable& table, const PartParams& p, int64_t max_keys) {
  return RunTiles<kDim>(
      context, p.num_heads, p.num_tokens, max_keys, [&](const PartialResults& partial, unsigned count) {
        const dim3 tiles(static_cast<unsigned>(partial.max_tiles),
                         static_cast<unsigned>(CeilDiv(p.num_heads, kHeads)), count);
        context.Launch(AttentionPartTileKernel<kDim>, tiles, kThreads, sizeof(TileMemory<kDim>), table, p,
                       partial);
        if (partial.max_tiles == 1) return;
        const dim3 heads(count, static_cast<unsigned>(p.num_heads));
        context.Launch(AttentionPartJoinKernel<kDim>, heads, kThreads, 0, table, p, partial);
      });
}

// --- Parts put together ----------------------------------------------------------------------------------------------

constexpr int kMergeWarps = 4;

// One row, a head of a token, a warp. The factors are taken in double, as on the CPU, each by one lane.
template <typename T>
__global__ void __launch_bounds__(32 * kMergeWarps)
    AttentionPartMergeKernel(const float* parts, const float* sink, T* o, int64_t num_rows, int num_parts,
                             int num_heads, int dim) {
  // Factors of a row's parts, 0 where one has no keys; then the sink's.
  extern __shared__ double all_factors[];
  BeginKernel();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row = blockIdx.x * int64_t{kMergeWarps} + warp;
  if (row >= num_rows) return;
  double* const factors = all_factors + warp * (num_parts + 1);
  const auto part = [&](int i) { return parts + (i * num_rows + row) * (dim + 2); };
  float max = -INFINITY;
  for (int i = 0; i < num_parts; ++i) max = fmaxf(max, part(i)[dim]);
  for (int i = lane; i <= num_parts; i += 32) {
    const bool empty = i < num_parts && part(i)[dim + 1] == 0.0F;
    const float maximum = i < num_parts ? part(i)[dim] : sink[row % num_heads];
    factors[i] = empty ? 0.0 : exp(static_cast<double>(maximum) - static_cast<double>(max));
  }
  __syncwarp();
  double sum = 0.0;
  for (int i = 0; i < num_parts; ++i) {
    if (factors[i] != 0.0) sum += factors[i] * static_cast<double>(part(i)[dim + 1]);
  }
  const double scale = 1.0 / (sum + factors[num_parts]);
  // Some columns at a time, so that a part's are asked for together.
  constexpr int kColumns = 8;
  for (int first = lane; first < dim; first += 32 * kColumns) {
    float values[kColumns] = {};
    for (int i = 0; i < num_parts; ++i) {
      if (factors[i] == 0.0) continue;
      const auto factor = static_cast<float>(factors[i] * scale);
      float of_part[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) of_part[c] = first + c * 32 < dim ? part(i)[first + c * 32] : 0.0F;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) values[c] = fmaf(factor, of_part[c], values[c]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (first + c * 32 < dim) o[row * dim + first + c * 32] = FromFloat<T>(values[c]);
    }
  }
}

}  // namespace

void LaunchPartRows(LaunchContext& context, const SequenceTable& table, const PartParams& params,
                    const RowsToList& list) {
  const int padded = BitonicSize(params.top_k);
  PartParams before = params;
  before.rows = nullptr;  // They are what this launch writes.
  before.num_rows = nullptr;
  context.Launch(AttentionPartRowsKernel, static_cast<unsigned>(params.num_tokens), kListThreads,
                 static_cast<size_t>(padded) * sizeof(int32_t), table, before, list.selected, list.rows,
                 list.num_rows, padded, context.fault());
}

Status LaunchAttentionPart(LaunchContext& context, const AttentionPartWork& work, AttentionPartPath kernel) {
  const PartParams& params = work.params;
  if (kernel == AttentionPartPath::kMma) {
    return params.head_dim == 512 ? RunParts<512>(context, work.table, params, work.max_keys)
                                  : RunParts<128>(context, work.table, params, work.max_keys);
  }
  const dim3 grid(static_cast<unsigned>(params.num_tokens), static_cast<unsigned>(params.num_heads));
  WithElement(work.dtype, [&]<typename T>(T*) {
    context.Launch(AttentionPartPlainKernel<T>, grid, kPlainThreads,
                   static_cast<size_t>(params.head_dim) * sizeof(float), work.table, params);
  });
  return {};
}

void LaunchMergeAttention(LaunchContext& context, const ops::MergeAttentionArgs& args) {
  const int64_t num_rows = args.o.shape[0] * args.o.shape[1];
  const size_t factors = kMergeWarps * static_cast<size_t>(args.parts.shape[0] + 1) * sizeof(double);
  WithElement(args.o.dtype, [&]<typename T>(T*) {
    context.Launch(AttentionPartMergeKernel<T>, static_cast<unsigned>(CeilDiv(num_rows, kMergeWarps)),
                   32 * kMergeWarps, factors, args.parts.as<const float>(), args.sink.as<const float>(),
                   args.o.as<T>(), num_rows, static_cast<int>(args.parts.shape[0]),
                   static_cast<int>(args.o.shape[1]), static_cast<int>(args.o.shape[2]));
  });
}

}  // namespace dsv4::backend::cuda
