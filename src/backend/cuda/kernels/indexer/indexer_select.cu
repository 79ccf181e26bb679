// indexer_select: scores of all visible entries, token by token, in fp32 and on tensor cores. top_k.h chooses
// from them.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/packed_rows.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/indexer/indexer_keys.cuh"
#include "backend/cuda/kernels/indexer/indexer_select.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kKeysPerBlock = kScoreKeys;
constexpr int kHeadGroups = kScoreHeadGroups;
constexpr int kScoreThreads = kKeysPerBlock * kHeadGroups;

// 32 keys of one token a block; a thread scores one key for an eighth of the heads. Every dot product runs
// over the width in one order, the heads' terms are added in double.
template <typename T>
__global__ void IndexerSelectScoreKernel(const __grid_constant__ SequenceTable table, const ScoreParams p) {
  BeginKernel();
  extern __shared__ float shared[];
  float* const q = shared;                        // [num_heads, width]
  float* const keys = q + p.num_heads * p.width;  // [kKeysPerBlock, width + 1]
  auto* const partial = reinterpret_cast<double*>(keys + kKeysPerBlock * (p.width + 1) +
                                                  (p.num_heads * p.width + kKeysPerBlock) % 2);
  const int64_t token = p.first_token + blockIdx.x;
  const SequenceRows& sequence = table.Of(token);
  const int64_t visible = NumVisible(sequence, token, p.ratio);
  const int64_t first_key = blockIdx.y * int64_t{kKeysPerBlock};
  if (visible <= p.top_k || first_key >= visible) return;
  const int num_keys = static_cast<int>(min(int64_t{kKeysPerBlock}, visible - first_key));

  const T* const q_row = static_cast<const T*>(p.q) + token * p.num_heads * p.width;
  for (int i = threadIdx.x; i < p.num_heads * p.width; i += kScoreThreads) q[i] = ToFloat(q_row[i]);
  for (int i = threadIdx.x; i < num_keys * p.width; i += kScoreThreads) {
    const int key = i / p.width;
    keys[key * (p.width + 1) + i % p.width] = StoredElement<T>(
        table.paged.format, table.PagedRow<T>(sequence, first_key + key), p.width, i % p.width);
  }
  __syncthreads();

  const int key = static_cast<int>(threadIdx.x) % kKeysPerBlock;
  const int group = static_cast<int>(threadIdx.x) / kKeysPerBlock;
  const T* const weights = static_cast<const T*>(p.weights) + token * p.num_heads;
  double sum = 0.0;
  if (key < num_keys) {
    const float* const row = keys + key * (p.width + 1);
    for (int head = group; head < p.num_heads; head += kHeadGroups) {
      const float* const q_head = q + head * p.width;
      float dot = 0.0F;
      for (int d = 0; d < p.width; ++d) dot = fmaf(q_head[d], row[d], dot);
      const double held = Held<T>(static_cast<double>(dot));
      // As std::max(held, 0.0): NaN stays.
      const double positive = held < 0.0 ? 0.0 : held;
      sum += Held<T>(Load(weights, head) * positive);
    }
  }
  partial[group * kKeysPerBlock + key] = sum;
  __syncthreads();
  if (group == 0 && key < num_keys) {
    for (int g = 1; g < kHeadGroups; ++g) sum += partial[g * kKeysPerBlock + key];
    p.scores[blockIdx.x * p.max_visible + first_key + key] = static_cast<float>(Held<T>(sum));
  }
}

// The same on tensor cores, for the release's width and whole groups of 16 heads: 16 keys a warp. A dot
// product's sum does not depend on which keys stand beside it. A block keeps its token's query and goes
// through tiles of keys, the next one on its way to registers while this one is multiplied.
constexpr int kMmaWarps = 4;
constexpr int kMmaKeys = kScoreMmaKeys;
static_assert(kMmaKeys == 16 * kMmaWarps);

template <bool kPacked>
__global__ void __launch_bounds__(32 * kMmaWarps)
    IndexerSelectScoreMmaKernel(const __grid_constant__ SequenceTable table, const ScoreParams p) {
  extern __shared__ __align__(16) uint16_t shared_q[];  // [num_heads, kScoreRow]
  __shared__ __align__(16) uint16_t keys[kMmaKeys][kScoreRow];
  __shared__ uint32_t head_weights[kScoreMaxHeads];  // Each twice, for two keys.
  BeginKernel();
  const int64_t token = p.first_token + blockIdx.x;
  const SequenceRows& sequence = table.Of(token);
  const int64_t visible = NumVisible(sequence, token, p.ratio);
  const int64_t first_tile = blockIdx.y * int64_t{p.tiles_per_block};
  if (visible <= p.top_k || first_tile * kMmaKeys >= visible) return;
  const auto num_tiles =
      static_cast<int>(min(int64_t{p.tiles_per_block}, CeilDiv(visible, kMmaKeys) - first_tile));
  const int t = static_cast<int>(threadIdx.x);
  constexpr int kPieces = kScoreWidth / 8;
  constexpr int kPiecesPerThread = kMmaKeys * kPieces / (32 * kMmaWarps);
  uint4 next[kPiecesPerThread];
  // Groups of packed keys: a group of codes and its scale.
  constexpr int kKeyGroups = kReleaseKeyWidth / kReleaseKeyGroup;
  constexpr int kGroupsPerThread = kMmaKeys * kKeyGroups / (32 * kMmaWarps);
  uint32_t next_codes[kGroupsPerThread][4];
  uint32_t next_scales[kGroupsPerThread];
  // Division of 64 bits would take longer than all else.
  const auto rows_per_page = static_cast<uint32_t>(table.rows_per_page);
  const void* const* const pages = &table.pages[sequence.page_begin];
  const auto load = [&](int64_t first_key) {
    if constexpr (kPacked) {
#pragma unroll
      for (int i = 0; i < kGroupsPerThread; ++i) {
        const int group = t + i * 32 * kMmaWarps;
        const auto key = static_cast<uint32_t>(first_key) + group / kKeyGroups;
#pragma unroll
        for (uint32_t& codes : next_codes[i]) codes = 0;
        next_scales[i] = 0;
        if (key >= visible) continue;
        const auto* const row =
            reinterpret_cast<const uint32_t*>(static_cast<const unsigned char*>(pages[key / rows_per_page]) +
                                              key % rows_per_page * kReleaseKeyBytes);
#pragma unroll
        for (int w = 0; w < 4; ++w) next_codes[i][w] = row[group % kKeyGroups * 4 + w];
        next_scales[i] = row[kReleaseKeyScales / 4];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPiecesPerThread; ++i) {
        const auto key = static_cast<uint32_t>(first_key) + (t + i * 32 * kMmaWarps) / kPieces;
        next[i] = make_uint4(0, 0, 0, 0);
        if (key >= visible) continue;
        const auto* const page = static_cast<const uint16_t*>(pages[key / rows_per_page]);
        next[i] = *reinterpret_cast<const uint4*>(page + key % rows_per_page * kScoreWidth + t % kPieces * 8);
      }
    }
  };
  load(first_tile * kMmaKeys);
  const auto* const q = static_cast<const uint16_t*>(p.q) + token * p.num_heads * kScoreWidth;
  for (int i = t; i < p.num_heads * kPieces; i += 32 * kMmaWarps)
    *reinterpret_cast<uint4*>(shared_q + i / kPieces * kScoreRow + i % kPieces * 8) =
        *reinterpret_cast<const uint4*>(q + i * 8);
  for (int i = t; i < p.num_heads; i += 32 * kMmaWarps)
    head_weights[i] = Both(static_cast<const uint16_t*>(p.weights)[token * p.num_heads + i]);

  const int warp = t / 32;
  for (int i_tile = 0; i_tile < num_tiles; ++i_tile) {
    const int64_t first_key = (first_tile + i_tile) * kMmaKeys;
    const int num_keys = static_cast<int>(min(int64_t{kMmaKeys}, visible - first_key));
    if (i_tile > 0) __syncthreads();
    if constexpr (kPacked) {
#pragma unroll
      for (int i = 0; i < kGroupsPerThread; ++i) {
        const int group = t + i * 32 * kMmaWarps;
        const int of_key = group % kKeyGroups;
        const uint32_t factors = FactorsOfE8m0(next_scales[i] >> (8 * of_key) & 0xFFU);
        auto* const to = reinterpret_cast<uint4*>(&keys[group / kKeyGroups][of_key * kReleaseKeyGroup]);
#pragma unroll
        for (int w = 0; w < 4; ++w) to[w] = WidenE2m1(next_codes[i][w], factors);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPiecesPerThread; ++i) {
        const int piece = t + i * 32 * kMmaWarps;
        *reinterpret_cast<uint4*>(&keys[piece / kPieces][piece % kPieces * 8]) = next[i];
      }
    }
    __syncthreads();
    if (i_tile + 1 < num_tiles) load(first_key + kMmaKeys);

    ScoreSixteenKeys(keys[warp * 16], shared_q, head_weights, p.num_heads, [&](int key, float score) {
      key += warp * 16;
      if (key < num_keys) p.scores[blockIdx.x * p.max_visible + first_key + key] = score;
    });
  }
}

}  // namespace

void LaunchIndexerScores(LaunchContext& context, const SequenceTable& table, const ScoreParams& params,
                         DType dtype, unsigned num_tokens) {
  const dim3 grid(num_tokens, static_cast<unsigned>(CeilDiv(params.max_visible, kKeysPerBlock)));
  WithElement(dtype, [&]<typename T>(T*) {
    context.Launch(IndexerSelectScoreKernel<T>, grid, kScoreThreads,
                   ScoreSharedBytes(params.num_heads, params.width), table, params);
  });
}

void LaunchIndexerScoresMma(LaunchContext& context, const SequenceTable& table, const ScoreParams& params,
                            unsigned num_tokens) {
  const int64_t num_tiles = CeilDiv(params.max_visible, kMmaKeys);
  const dim3 grid(num_tokens, static_cast<unsigned>(CeilDiv(num_tiles, params.tiles_per_block)));
  const auto kernel = table.form == StoredForm::kRelease ? IndexerSelectScoreMmaKernel<true>
                                                         : IndexerSelectScoreMmaKernel<false>;
  context.Launch(kernel, grid, 32 * kMmaWarps,
                 static_cast<size_t>(params.num_heads * kScoreRow) * sizeof(uint16_t), table, params);
}

}  // namespace dsv4::backend::cuda
