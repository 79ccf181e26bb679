// attention_part and merge_attention: attention over some of the keys, left open, and parts put together.
//
// Keys of a part are numbered window first, entries after, and cut into tiles of 64; a block takes a tile and 16 heads. Weights are
// taken, and rounded, relative to the tile's largest logit, as the contract allows; a second kernel joins a head's tiles in order.
// The cut depends on the query's own keys alone. fp32 and other head widths take a plain kernel, one block a head.
#include <algorithm>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/bitonic.cuh"
#include "backend/cuda/kernels/device_fault.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/matmul_mma.cuh"
#include "backend/cuda/kernels/reduce.cuh"
#include "backend/cuda/kernels/sequences.h"

namespace dsv4::backend::cuda {
namespace {

struct PartParams {
  const void* q;
  float* part;
  // With a list: rows of the chosen entries that are here, ascending, [num_tokens, top_k], and how many; else null.
  const int32_t* rows;
  const int32_t* num_rows;
  int64_t top_k;
  int64_t window_size;
  int64_t ratio;
  int64_t shard_index;
  int64_t shard_count;
  int64_t num_tokens;
  float softmax_scale;
  int num_heads;
  int head_dim;
};

__host__ __device__ int64_t RowsHere(int64_t num_entries, int64_t shard_index, int64_t shard_count) {
  return (num_entries + shard_count - 1 - shard_index) / shard_count;
}

// The keys of a part that a query sees.
struct PartKeys {
  const SequenceTable& table;
  const SequenceRows& sequence;
  const int32_t* rows;  // Null: all that are here.
  int64_t window_begin;
  int64_t num_window = 0;
  int64_t num_keys;

  __device__ PartKeys(const SequenceTable& table, const PartParams& p, int64_t token)
      : table(table), sequence(table.Of(token)) {
    const int64_t end = sequence.first_position + token - sequence.token_begin + 1;
    window_begin = end > p.window_size ? end - p.window_size : 0;
    if (p.window_size > 0) num_window = end - window_begin;
    rows = p.rows == nullptr ? nullptr : p.rows + token * p.top_k;
    int64_t num_rows = 0;
    if (rows != nullptr) {
      num_rows = p.num_rows[token];
    } else if (p.ratio > 0) {
      num_rows = RowsHere(end / p.ratio, p.shard_index, p.shard_count);
    }
    num_keys = num_window + num_rows;
  }

  template <typename T>
  __device__ const T* Row(int64_t key) const {
    if (key < num_window) return table.RingRow<T>(sequence, window_begin + key);
    const int64_t i = key - num_window;
    return table.PagedRow<T>(sequence, rows == nullptr ? i : rows[i]);
  }
};

// --- Lists -----------------------------------------------------------------------------------------------------------

constexpr int kListThreads = 256;

// One block a token: checks the list and keeps the rows of those entries that are here, in order. Wrong lists are reported as
// attention's.
__global__ void RowsHereKernel(const __grid_constant__ SequenceTable table, const PartParams p,
                               const int32_t* all_selected, int32_t* all_rows, int32_t* num_rows,
                               const int padded, Fault* fault) {
  extern __shared__ int32_t list[];
  __shared__ int count;
  BeginKernel();
  const int64_t token = blockIdx.x;
  const SequenceRows& sequence = table.Of(token);
  const int64_t visible = (sequence.first_position + token - sequence.token_begin + 1) / p.ratio;
  const int t = static_cast<int>(threadIdx.x);
  for (int i = t; i < padded; i += kListThreads) list[i] = INT32_MAX;
  if (t == 0) count = 0;
  __syncthreads();
  for (int i = t; i < p.top_k; i += kListThreads) {
    const int32_t entry = all_selected[token * p.top_k + i];
    if (entry < -1 || entry >= visible) {
      ReportFault(fault, FaultKind::kSelectedEntry, token, i, entry, visible);
    } else if (entry >= 0 && entry % p.shard_count == p.shard_index) {
      list[atomicAdd(&count, 1)] = static_cast<int32_t>(entry / p.shard_count);
    }
  }
  __syncthreads();
  BitonicSort<false>(list, padded);
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

// One head of one token a block, in two passes over the keys.
template <typename T>
__global__ void PlainPartKernel(const __grid_constant__ SequenceTable table, const PartParams p) {
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
      for (int d = t % 32; d < dim; d += 32) dot = fmaf(q[d], ToFloat(rows[i][d]), dot);
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
#pragma unroll
      for (int r = 0; r < kMaxDimsPerThread; ++r) {
        const int d = t + r * kPlainThreads;
        if (d < dim) values[r] = fmaf(rounded, ToFloat(rows[i][d]), values[r]);
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

constexpr int kHeads = 16;
constexpr int kKeys = 64;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kPad = 8;  // Elements behind a row, so that eight rows lie in different banks.

template <int kDim>
struct TileMemory {
  uint16_t keys[kKeys][kDim + kPad];
  uint16_t q[kHeads][kDim + kPad];
  float logits[kHeads][kKeys + 4];
  uint16_t weights[kHeads][kKeys + kPad];
  const uint16_t* rows[kKeys];
};

// Of every tile, before they are joined.
struct PartialResults {
  float* values;  // [tokens, num_heads, max_tiles, head_dim]
  float* maxima;  // [tokens, num_heads, max_tiles]
  float* sums;    // [tokens, num_heads, max_tiles]
  int64_t first_token;
  int max_tiles;
};

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ __forceinline__ void CopyAsync(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(shared)), "l"(global)
               : "memory");
}
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
}

// `num_rows` rows of kDim, `total` of them with zeros where there are none; row(i) says where one lies.
template <int kDim, typename RowAt>
__device__ void LoadRows(uint16_t (*to)[kDim + kPad], int num_rows, int total, RowAt row) {
  constexpr int kPieces = kDim / 8;  // Of 16 bytes in a row.
  for (int i = static_cast<int>(threadIdx.x); i < total * kPieces; i += kThreads) {
    const int piece = i % kPieces * 8;
    if (i / kPieces < num_rows) {
      CopyAsync(&to[i / kPieces][piece], row(i / kPieces) + piece);
    } else {
      *reinterpret_cast<uint4*>(&to[i / kPieces][piece]) = make_uint4(0, 0, 0, 0);
    }
  }
}

// Grid: tiles, groups of heads, tokens.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) PartTileKernel(const __grid_constant__ SequenceTable table,
                                                              const PartParams p, const PartialResults out) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<TileMemory<kDim>*>(raw);
  BeginKernel();
  const int64_t token = out.first_token + blockIdx.z;
  const PartKeys keys(table, p, token);
  const int64_t first_key = blockIdx.x * int64_t{kKeys};
  if (first_key >= keys.num_keys) return;
  const int num_keys = static_cast<int>(min(int64_t{kKeys}, keys.num_keys - first_key));
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int num_heads = min(kHeads, p.num_heads - first_head);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int group = lane / 4;
  const int place = lane % 4;
  const int matrix = lane / 8;

  if (thread < num_keys) m.rows[thread] = keys.template Row<uint16_t>(first_key + thread);
  __syncthreads();
  const auto* const q = static_cast<const uint16_t*>(p.q) + (token * p.num_heads + first_head) * kDim;
  LoadRows<kDim>(m.q, num_heads, kHeads, [&](int head) { return q + head * kDim; });
  LoadRows<kDim>(m.keys, num_keys, kKeys, [&](int key) { return m.rows[key]; });
  WaitForCopies();
  __syncthreads();

  // Logits of 16 keys a warp.
  {
    float sums[2][4] = {};
    const uint16_t* const q_row = m.q[lane % 8 + matrix % 2 * 8] + matrix / 2 * 8;
    const uint16_t* const key_row = m.keys[warp * 16 + lane % 8 + matrix / 2 * 8] + matrix % 2 * 8;
#pragma unroll 4
    for (int d = 0; d < kDim; d += 16) {
      uint32_t a[4];
      uint32_t b[4];
      LoadMatrices(a, q_row + d);
      LoadMatrices(b, key_row + d);
      Mma(sums[0], a, b[0], b[1]);
      Mma(sums[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = warp * 16 + tile * 8 + place * 2 + i % 2;
        m.logits[group + i / 2 * 8][key] = key < num_keys ? sums[tile][i] * p.softmax_scale : -INFINITY;
      }
    }
  }
  __syncthreads();

  // Eight threads a head, eight keys a thread. Every tile has a key, so its maximum is a number.
  {
    const int head = thread / 8;
    const int first = thread % 8 * 8;
    float max = -INFINITY;
    for (int i = 0; i < 8; ++i) max = fmaxf(max, m.logits[head][first + i]);
    for (int offset = 4; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
    float sum = 0.0F;
    for (int i = 0; i < 8; ++i) {
      const float weight = expf(m.logits[head][first + i] - max);
      sum += weight;
      m.weights[head][first + i] = Bf16FromFloat(weight);  // Rounded for the value product only.
    }
    for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, offset);
    if (thread % 8 == 0 && head < num_heads) {
      const int64_t at = (blockIdx.z * int64_t{p.num_heads} + first_head + head) * out.max_tiles + blockIdx.x;
      out.maxima[at] = max;
      out.sums[at] = sum;
    }
  }
  __syncthreads();

  // Values: a quarter of the columns a warp.
  constexpr int kColumns = kDim / kWarps;
  constexpr int kTiles = kColumns / 8;
  static_assert(kTiles % 2 == 0);
  float o[kTiles][4] = {};
  const int row = lane % 8 + matrix % 2 * 8;
  const uint16_t* const weight_row = m.weights[row] + matrix / 2 * 8;
#pragma unroll
  for (int key = 0; key < kKeys; key += 16) {
    uint32_t a[4];
    LoadMatrices(a, weight_row + key);
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      uint32_t b[4];
      LoadMatricesTransposed(b, m.keys[key + row] + warp * kColumns + tile * 8 + matrix / 2 * 8);
      Mma(o[tile], a, b[0], b[1]);
      Mma(o[tile + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = group + half * 8;
    if (head >= num_heads) continue;
    const int64_t at = (blockIdx.z * int64_t{p.num_heads} + first_head + head) * out.max_tiles + blockIdx.x;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      *reinterpret_cast<float2*>(out.values + at * kDim + warp * kColumns + tile * 8 + place * 2) =
          make_float2(o[tile][half * 2], o[tile][half * 2 + 1]);
    }
  }
}

// One block a head of a token.
template <int kDim>
__global__ void JoinTilesKernel(const __grid_constant__ SequenceTable table, const PartParams p,
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
Status RunTiles(CudaContext& context, const SequenceTable& table, const PartParams& p, int64_t max_keys) {
  const int64_t max_tiles = InSteps(CeilDiv(max_keys, kKeys));
  // As many tokens at a time as keep the partial results in bounds.
  constexpr int64_t kMaxPartialBytes = int64_t{256} << 20;
  const int64_t token_bytes = p.num_heads * max_tiles * (kDim + 2) * static_cast<int64_t>(sizeof(float));
  const int64_t tokens_at_once = std::clamp<int64_t>(kMaxPartialBytes / token_bytes, 1, p.num_tokens);
  const int64_t num_tiles = tokens_at_once * p.num_heads * max_tiles;
  PartialResults partial = {.values = nullptr,
                            .maxima = nullptr,
                            .sums = nullptr,
                            .first_token = 0,
                            .max_tiles = static_cast<int>(max_tiles)};
  DSV4_ASSIGN_OR_RETURN_STATUS(partial.values, context.Scratch<float>(num_tiles * kDim));
  DSV4_ASSIGN_OR_RETURN_STATUS(partial.maxima, context.Scratch<float>(num_tiles));
  DSV4_ASSIGN_OR_RETURN_STATUS(partial.sums, context.Scratch<float>(num_tiles));
  for (int64_t begin = 0; begin < p.num_tokens; begin += tokens_at_once) {
    const auto count = static_cast<unsigned>(std::min(tokens_at_once, p.num_tokens - begin));
    partial.first_token = begin;
    const dim3 tiles(static_cast<unsigned>(max_tiles), static_cast<unsigned>(CeilDiv(p.num_heads, kHeads)),
                     count);
    context.Launch(PartTileKernel<kDim>, tiles, kThreads, sizeof(TileMemory<kDim>), table, p, partial);
    const dim3 heads(count, static_cast<unsigned>(p.num_heads));
    context.Launch(JoinTilesKernel<kDim>, heads, kThreads, 0, table, p, partial);
  }
  return {};
}

// --- Parts put together ----------------------------------------------------------------------------------------------

constexpr int kMergeThreads = 128;

// One row, a head of a token, a block. The factors are taken in double, as on the CPU.
template <typename T>
__global__ void MergeKernel(const float* parts, const float* sink, T* o, int64_t num_rows, int num_parts,
                            int num_heads, int dim) {
  BeginKernel();
  const int64_t row = blockIdx.x;
  const auto part = [&](int i) { return parts + (i * num_rows + row) * (dim + 2); };
  float max = -INFINITY;
  for (int i = 0; i < num_parts; ++i) max = fmaxf(max, part(i)[dim]);
  const auto factor = [&](int i) {
    return exp(static_cast<double>(part(i)[dim]) - static_cast<double>(max));
  };
  double sum = 0.0;
  for (int i = 0; i < num_parts; ++i) {
    if (part(i)[dim + 1] != 0.0F) sum += factor(i) * static_cast<double>(part(i)[dim + 1]);
  }
  const double scale =
      1.0 / (sum + exp(static_cast<double>(sink[row % num_heads]) - static_cast<double>(max)));
  for (int begin = 0; begin < dim; begin += kMergeThreads) {
    const int d = begin + static_cast<int>(threadIdx.x);
    if (d >= dim) break;
    float value = 0.0F;
    for (int i = 0; i < num_parts; ++i) {
      if (part(i)[dim + 1] == 0.0F) continue;  // No keys.
      value = fmaf(static_cast<float>(factor(i) * scale), part(i)[d], value);
    }
    o[row * dim + d] = FromFloat<T>(value);
  }
}

}  // namespace

Status AttentionPart(CudaContext& context, const ops::AttentionPartArgs& args) {
  if (args.part.num_elements() == 0) return {};
  const int64_t num_tokens = args.q.shape[0];
  const int64_t head_dim = args.q.shape[2];
  const int64_t top_k = args.selected.is_null() ? 0 : args.selected.shape[1];
  constexpr int64_t kMaxTopK = 8192;  // 32 KB of shared memory.
  if (head_dim > kPlainThreads * kMaxDimsPerThread || top_k > kMaxTopK) {
    return Unimplemented("op attention_part: q: " + args.q.shape.ToString() + ", lists of " +
                         std::to_string(top_k) + ", this backend takes a head_dim of up to 1024 and 8192");
  }
  SequenceTableBuilder builder;
  int64_t max_keys = 1;
  for (const ops::AttentionSequence& s : args.sequences) {
    const int64_t end = s.first_position + s.num_tokens;
    const int64_t here = args.ratio == 0 ? 0 : RowsHere(end / args.ratio, args.shard.index, args.shard.count);
    builder.Add({.token_begin = s.token_begin,
                 .num_tokens = s.num_tokens,
                 .first_position = s.first_position,
                 .ring = s.window.data,
                 .ring_capacity = std::max<int64_t>(s.window.capacity, 1)},
                s.entries, here);
    const int64_t rows = args.selected.is_null() ? here : std::min(here, top_k);
    max_keys = std::max(max_keys, std::min(args.window_size, end) + rows);
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const SequenceTable table, builder.Stage(context, head_dim));
  PartParams params = {.q = args.q.data,
                       .part = args.part.as<float>(),
                       .rows = nullptr,
                       .num_rows = nullptr,
                       .top_k = top_k,
                       .window_size = args.window_size,
                       .ratio = args.ratio,
                       .shard_index = args.shard.index,
                       .shard_count = args.shard.count,
                       .num_tokens = num_tokens,
                       .softmax_scale = args.softmax_scale,
                       .num_heads = static_cast<int>(args.q.shape[1]),
                       .head_dim = static_cast<int>(head_dim)};
  if (!args.selected.is_null() && args.ratio > 0) {
    DSV4_ASSIGN_OR_RETURN_STATUS(int32_t* const rows,
                                 context.Scratch<int32_t>(std::max<int64_t>(num_tokens * top_k, 1)));
    DSV4_ASSIGN_OR_RETURN_STATUS(int32_t* const counts, context.Scratch<int32_t>(num_tokens));
    const int padded = BitonicSize(top_k);
    context.Launch(RowsHereKernel, static_cast<unsigned>(num_tokens), kListThreads,
                   static_cast<size_t>(padded) * sizeof(int32_t), table, params,
                   args.selected.as<const int32_t>(), rows, counts, padded, context.fault());
    params.rows = rows;
    params.num_rows = counts;
  }
  if (args.q.dtype == DType::kBF16 && head_dim == 512) return RunTiles<512>(context, table, params, max_keys);
  if (args.q.dtype == DType::kBF16 && head_dim == 128) return RunTiles<128>(context, table, params, max_keys);
  const dim3 grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(args.q.shape[1]));
  WithElement(args.q.dtype, [&]<typename T>(T*) {
    context.Launch(PlainPartKernel<T>, grid, kPlainThreads, static_cast<size_t>(head_dim) * sizeof(float),
                   table, params);
  });
  return {};
}

Status MergeAttention(CudaContext& context, const ops::MergeAttentionArgs& args) {
  if (args.o.num_elements() == 0) return {};
  const int64_t num_rows = args.o.shape[0] * args.o.shape[1];
  WithElement(args.o.dtype, [&]<typename T>(T*) {
    context.Launch(MergeKernel<T>, static_cast<unsigned>(num_rows), kMergeThreads, 0,
                   args.parts.as<const float>(), args.sink.as<const float>(), args.o.as<T>(), num_rows,
                   static_cast<int>(args.parts.shape[0]), static_cast<int>(args.o.shape[1]),
                   static_cast<int>(args.o.shape[2]));
  });
  return {};
}

}  // namespace dsv4::backend::cuda
