// attention: the lists of chosen entries put in order, then a kernel. For the head width of the release's models in bf16: 9 tokens and more
// take hopper_cluster_columns.cu, more hopper_in_registers.cu or, of many keys, hopper_two_pass.cu; all others, and other tokens of a head width of
// 128, attention_mma.cu, which gives few tokens to decode_cluster.cu. For everything else there is the one below.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/packed_rows.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/attention/attention_keys.cuh"
#include "backend/cuda/kernels/attention/attention_mma.h"
#include "backend/cuda/kernels/attention/hopper_cluster_columns.h"
#include "backend/cuda/kernels/attention/hopper_in_registers.h"
#include "backend/cuda/kernels/attention/hopper_two_pass.h"
#include "backend/cuda/kernels/attention/sequences.h"
#include "backend/cuda/kernels/attention/widen_rows.h"
#include "backend/cuda/lowering/lowering.h"
#include "backend/cuda/lowering/select/attention.h"

namespace dsv4::backend::cuda {
namespace {

// --- Lists -----------------------------------------------------------------------------------------------------------

constexpr int kSortThreads = 256;

// One block a token: checks the list, drops its holes and sorts it (bitonic, in shared memory). Results then do not depend
// on the order of the list.
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

Status SortEntries(CudaContext& context, const SequenceTable& table, const ops::AttentionArgs& args,
                   AttentionParams& params) {
  const int64_t num_tokens = args.q.shape[0];
  const int64_t top_k = args.selected.shape[1];
  constexpr int64_t kMaxTopK = 8192;  // 32 KB of shared memory.
  if (top_k > kMaxTopK) {
    return Unimplemented("op attention: selected: " + args.selected.shape.ToString() +
                         ", this backend takes lists of up to 8192");
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(int32_t* const entries, context.Scratch<int32_t>(num_tokens * top_k));
  DSV4_ASSIGN_OR_RETURN_STATUS(int32_t* const counts, context.Scratch<int32_t>(num_tokens));
  int padded = 2;
  while (padded < top_k) padded *= 2;
  context.Launch(AttentionSortEntriesKernel, static_cast<unsigned>(num_tokens), kSortThreads,
                 static_cast<size_t>(padded) * sizeof(int32_t), table, args.selected.as<const int32_t>(),
                 entries, counts, top_k, args.ratio, padded, context.fault());
  params.entries = entries;
  params.num_entries = counts;
  params.top_k = top_k;
  return {};
}

// Whether `selected` is what indexer_select has just written: then its lists are in order and need no checks.
bool IsIndexersList(CudaContext& context, const ops::AttentionArgs& args) {
  if (args.selected.is_null()) return false;
  return context.lowering().Fuse({.kind = OpKind::kAttentionList,
                                  .accesses = {},
                                  .work = EntryListWork{.selected = args.selected.data,
                                                        .num_tokens = args.selected.shape[0],
                                                        .top_k = args.selected.shape[1],
                                                        .ratio = args.ratio,
                                                        .sequences = TokensOf(args.sequences)}});
}

// What the queries of a sequence may read.
RowsRead RowsReadBy(const ops::AttentionSequence& s, int64_t window_size, int64_t ratio) {
  const int64_t window_begin = std::max<int64_t>(s.first_position + 1 - window_size, 0);
  return {.window_begin = window_begin,
          .num_window = s.first_position + s.num_tokens - window_begin,
          .num_entries = VisibleEntries(s, ratio)};
}

// Makes `table` that of wide rows where it pays.
Status WidenFirst(CudaContext& context, const ops::AttentionArgs& args, SequenceTable& table) {
  const int64_t top_k = args.selected.is_null() ? INT64_MAX : args.selected.shape[1];
  const bool widens =
      context.NumberFrom(
          args.sequences, [window = args.window_size, ratio = args.ratio, top_k, form = table.form,
                           num_tokens = args.q.shape[0]](std::span<const ops::AttentionSequence> sequences) {
            RowReads reads = {.rows = form, .num_tokens = num_tokens, .num_rows = 0, .num_reads = 0};
            for (const ops::AttentionSequence& s : sequences) {
              if (s.num_tokens == 0) continue;
              const RowsRead rows = RowsReadBy(s, window, ratio);
              reads.num_rows += rows.num_window + rows.num_entries;
              reads.num_reads += s.num_tokens * (std::min(window, s.first_position + s.num_tokens) +
                                                 std::min(rows.num_entries, top_k));
            }
            return int64_t{WidensFirst(reads) ? 1 : 0};
          }) != 0;
  if (!widens) return {};
  std::vector<SequenceRows> sequences;
  std::vector<RowsRead> rows;
  for (const ops::AttentionSequence& s : args.sequences) {
    if (s.num_tokens == 0) continue;
    sequences.push_back(
        {.token_begin = s.token_begin, .num_tokens = s.num_tokens, .first_position = s.first_position});
    rows.push_back(RowsReadBy(s, args.window_size, args.ratio));
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(table, WidenRows(context, table, sequences, rows));
  return {};
}

// --- Any shape -------------------------------------------------------------------------------------------------------

constexpr int kThreads = 128;
constexpr int kTile = 64;  // Keys at a time.
constexpr int kMaxDimsPerThread = 8;

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

Status Attention(CudaContext& context, const ops::AttentionArgs& args) {
  if (args.q.num_elements() == 0) return {};
  const int64_t num_tokens = args.q.shape[0];
  const int64_t head_dim = args.q.shape[2];
  if (head_dim > kThreads * kMaxDimsPerThread) {
    return Unimplemented("op attention: q: " + args.q.shape.ToString() +
                         ", this backend takes a head_dim of up to 1024");
  }
  const int64_t top_k = args.selected.is_null() ? INT64_MAX : args.selected.shape[1];
  const int64_t max_keys =
      context.NumberFrom(args.sequences, [window = args.window_size, ratio = args.ratio,
                                          top_k](std::span<const ops::AttentionSequence> sequences) {
        int64_t most = 0;
        for (const ops::AttentionSequence& s : sequences) {
          most = std::max(most, std::min(window, s.first_position + s.num_tokens) +
                                    std::min(VisibleEntries(s, ratio), top_k));
        }
        return KeysInSteps(most);
      });
  DSV4_ASSIGN_OR_RETURN_STATUS(
      SequenceTable table,
      StageSequences(context, args.sequences,
                     {.ratio = args.ratio, .shard = {}, .width = head_dim, .dtype = args.q.dtype}));
  DSV4_RETURN_IF_ERROR(WidenFirst(context, args, table));
  AttentionParams params = {.q = args.q.data,
                            .sink = args.sink.as<const float>(),
                            .o = args.o.data,
                            .entries = nullptr,
                            .num_entries = nullptr,
                            .top_k = 0,
                            .window_size = args.window_size,
                            .ratio = args.ratio,
                            .softmax_scale = args.softmax_scale,
                            .num_tokens = static_cast<int>(num_tokens),
                            .num_heads = static_cast<int>(args.q.shape[1]),
                            .head_dim = static_cast<int>(head_dim)};
  if (IsIndexersList(context, args)) {
    params.entries = args.selected.as<const int32_t>();
    params.top_k = args.selected.shape[1];
  } else if (!args.selected.is_null()) {
    DSV4_RETURN_IF_ERROR(SortEntries(context, table, args, params));
  }
  const AttentionShape shape = {
      .dtype = args.q.dtype,
      .num_tokens = num_tokens,
      .num_heads = params.num_heads,
      .head_dim = head_dim,
      .max_keys = max_keys,
      .rows = table.form,
      .q = args.q.data,
      .o = args.o.data,
      .column_clusters = [&](int blocks) { return ColumnClusters(context, blocks); }};
  const Plan<AttentionPath> plan = ChooseAttention(shape, context.limits());
  context.Chose(plan);
  switch (plan.kernel) {
    case AttentionPath::kHopperClusterColumns:
      return HopperClusterColumns(context, table, params, BlocksOfColumns(shape));
    case AttentionPath::kHopperInRegisters:
      return HopperInRegisters(context, table, params);
    case AttentionPath::kHopperTwoPass:
      return HopperTwoPass(context, table, params);
    case AttentionPath::kDecodeCluster:
      context.lowering().Record(
          {.kind = OpKind::kAttention,
           .accesses = {.reads = {},
                        .writes = {{{args.o.data, static_cast<size_t>(args.o.num_bytes())},
                                    Division::kHeads}}},
           .work = AttentionWork{table, params, max_keys}});
      return {};
    case AttentionPath::kMma:
      return AttentionMma(context, table, params, max_keys);
    case AttentionPath::kAny:
      break;
  }
  const dim3 grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(args.q.shape[1]));
  WithElement(args.q.dtype, [&]<typename T>(T*) {
    context.Launch(AttentionKernel<T>, grid, kThreads, static_cast<size_t>(head_dim) * sizeof(float), table,
                   params);
  });
  return {};
}

}  // namespace dsv4::backend::cuda
