// indexer_select: scores of all visible entries, token by token, then their exact top-k (top_k.h).
#include <bit>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/matmul_mma.cuh"
#include "backend/cuda/kernels/reduce.cuh"
#include "backend/cuda/kernels/sequences.h"
#include "backend/cuda/kernels/top_k.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kKeysPerBlock = 32;
constexpr int kHeadGroups = 8;
constexpr int kScoreThreads = kKeysPerBlock * kHeadGroups;

struct ScoreParams {
  const void* q;
  const void* weights;
  float* scores;  // [tokens of this launch, max_visible]
  int64_t first_token;
  int64_t max_visible;
  int64_t top_k;
  int64_t ratio;
  int num_heads;
  int width;
  int tiles_per_block;  // Of keys; the tensor-core kernel's.
};

// 32 keys of one token a block; a thread scores one key for an eighth of the heads. Every dot product runs over the width
// in one order, the heads' terms are added in double.
template <typename T>
__global__ void ScoreKernel(const __grid_constant__ SequenceTable table, const ScoreParams p) {
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
    keys[key * (p.width + 1) + i % p.width] =
        ToFloat(table.PagedRow<T>(sequence, first_key + key)[i % p.width]);
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

// The same on tensor cores, for the release's width and whole groups of 16 heads: 16 keys a warp. A dot product's sum does not
// depend on which keys stand beside it. A block keeps its token's query and goes through tiles of keys, the next one on its way
// to registers while this one is multiplied.
constexpr int kMmaWarps = 4;
constexpr int kMmaKeys = 16 * kMmaWarps;
constexpr int kMmaWidth = 128;
constexpr int kMmaMaxHeads = 64;

// As many blocks as run at once, some times over; and tiles enough for a query to be worth fetching.
constexpr int64_t kScoreBlocks = 132 * 6;
constexpr int64_t kMaxTilesPerBlock = 16;

bool HasScoreMma(DType dtype, int64_t num_heads, int64_t width) {
  return dtype == DType::kBF16 && width == kMmaWidth && num_heads % 16 == 0 && num_heads <= kMmaMaxHeads;
}

__global__ void __launch_bounds__(32 * kMmaWarps)
    ScoreMmaKernel(const __grid_constant__ SequenceTable table, const ScoreParams p) {
  constexpr int kRow = kMmaWidth + 8;
  extern __shared__ __align__(16) uint16_t shared_q[];  // [num_heads, kRow]
  __shared__ __align__(16) uint16_t keys[kMmaKeys][kRow];
  __shared__ float head_weights[kMmaMaxHeads];
  BeginKernel();
  const int64_t token = p.first_token + blockIdx.x;
  const SequenceRows& sequence = table.Of(token);
  const int64_t visible = NumVisible(sequence, token, p.ratio);
  const int64_t first_tile = blockIdx.y * int64_t{p.tiles_per_block};
  if (visible <= p.top_k || first_tile * kMmaKeys >= visible) return;
  const auto num_tiles =
      static_cast<int>(min(int64_t{p.tiles_per_block}, CeilDiv(visible, kMmaKeys) - first_tile));
  const int t = static_cast<int>(threadIdx.x);
  constexpr int kPieces = kMmaWidth / 8;
  constexpr int kPiecesPerThread = kMmaKeys * kPieces / (32 * kMmaWarps);
  uint4 next[kPiecesPerThread];
  const auto load = [&](int64_t first_key) {
#pragma unroll
    for (int i = 0; i < kPiecesPerThread; ++i) {
      const int piece = t + i * 32 * kMmaWarps;
      const int64_t key = first_key + piece / kPieces;
      next[i] = make_uint4(0, 0, 0, 0);
      if (key < visible)
        next[i] =
            *reinterpret_cast<const uint4*>(table.PagedRow<uint16_t>(sequence, key) + piece % kPieces * 8);
    }
  };
  load(first_tile * kMmaKeys);
  const auto* const q = static_cast<const uint16_t*>(p.q) + token * p.num_heads * kMmaWidth;
  for (int i = t; i < p.num_heads * kPieces; i += 32 * kMmaWarps)
    *reinterpret_cast<uint4*>(shared_q + i / kPieces * kRow + i % kPieces * 8) =
        *reinterpret_cast<const uint4*>(q + i * 8);
  for (int i = t; i < p.num_heads; i += 32 * kMmaWarps)
    head_weights[i] = ToFloat(static_cast<const Bf16*>(p.weights)[token * p.num_heads + i]);

  const int warp = t / 32;
  const int lane = t % 32;
  const int group = lane / 4;
  const int place = lane % 4;
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int64_t first_key = (first_tile + tile) * kMmaKeys;
    const int num_keys = static_cast<int>(min(int64_t{kMmaKeys}, visible - first_key));
    if (tile > 0) __syncthreads();
#pragma unroll
    for (int i = 0; i < kPiecesPerThread; ++i) {
      const int piece = t + i * 32 * kMmaWarps;
      *reinterpret_cast<uint4*>(&keys[piece / kPieces][piece % kPieces * 8]) = next[i];
    }
    __syncthreads();
    if (tile + 1 < num_tiles) load(first_key + kMmaKeys);

    // B: two tiles of eight keys, all steps of the width.
    uint32_t b[kMmaWidth / 16][2][2];
#pragma unroll
    for (int step = 0; step < kMmaWidth / 16; ++step) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint16_t* const row = keys[warp * 16 + tile * 8 + group] + step * 16 + place * 2;
        b[step][tile][0] = *reinterpret_cast<const uint32_t*>(row);
        b[step][tile][1] = *reinterpret_cast<const uint32_t*>(row + 8);
      }
    }
    double sums[2][2] = {};  // By tile; keys 2 * place and the next.
    for (int head = 0; head < p.num_heads; head += 16) {
      float dots[2][4] = {};
#pragma unroll
      for (int step = 0; step < kMmaWidth / 16; ++step) {
        const uint16_t* const row = shared_q + (head + group) * kRow + step * 16 + place * 2;
        const uint32_t a[4] = {*reinterpret_cast<const uint32_t*>(row),
                               *reinterpret_cast<const uint32_t*>(row + 8 * kRow),
                               *reinterpret_cast<const uint32_t*>(row + 8),
                               *reinterpret_cast<const uint32_t*>(row + 8 * kRow + 8)};
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) Mma(dots[tile], a, b[step][tile][0], b[step][tile][1]);
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float held = RoundToBf16(dots[tile][i]);
          // As std::max(held, 0.0): NaN stays.
          const float positive = held < 0.0F ? 0.0F : held;
          sums[tile][i % 2] +=
              static_cast<double>(RoundToBf16(head_weights[head + group + i / 2 * 8] * positive));
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        double sum = sums[tile][i];
        for (int offset = 16; offset >= 4; offset /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, offset);
        const int key = warp * 16 + tile * 8 + place * 2 + i;
        if (group == 0 && key < num_keys)
          p.scores[blockIdx.x * p.max_visible + first_key + key] = RoundToBf16(static_cast<float>(sum));
      }
    }
  }
}

}  // namespace

Status IndexerSelect(CudaContext& context, const ops::IndexerSelectArgs& args) {
  const int64_t num_tokens = args.q.shape[0];
  const int64_t num_heads = args.q.shape[1];
  const int64_t width = args.q.shape[2];
  const int64_t top_k = args.selected.shape[1];
  if (num_tokens == 0 || top_k == 0) return {};
  SequenceTableBuilder builder;
  int64_t max_visible = 0;
  for (const ops::IndexerSequence& s : args.sequences) {
    const int64_t visible = (s.first_position + s.num_tokens) / args.ratio;
    builder.Add(
        {.token_begin = s.token_begin, .num_tokens = s.num_tokens, .first_position = s.first_position},
        s.keys, visible);
    if (s.num_tokens > 0) max_visible = std::max(max_visible, visible);
  }
  // Where there is something to score, for as many as there may soon be: the launches of a sequence's steps stay the same.
  if (max_visible > top_k)
    max_visible =
        static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(max_visible, 1024))));
  DSV4_ASSIGN_OR_RETURN_STATUS(const SequenceTable table, builder.Stage(context, width));

  const auto shared_bytes =
      static_cast<size_t>(num_heads * width + kKeysPerBlock * (width + 1) + 1) * sizeof(float) +
      kScoreThreads * sizeof(double);
  constexpr size_t kMaxSharedBytes = 227 * 1024;
  constexpr int64_t kMaxVisible = int64_t{65535} * kKeysPerBlock;  // The grid's second dimension.
  if (shared_bytes > kMaxSharedBytes || max_visible > kMaxVisible) {
    return Unimplemented("op indexer_select: q: " + args.q.shape.ToString() + " and " +
                         std::to_string(max_visible) +
                         " entries, this backend takes up to 50000 elements a token and 2097120 entries");
  }
  // Scores of as many tokens at a time as fit: memory must not grow with chunk times context.
  constexpr int64_t kMaxScores = int64_t{1} << 24;
  const int64_t tokens_at_once =
      max_visible <= top_k ? num_tokens : std::clamp<int64_t>(kMaxScores / max_visible, 1, num_tokens);
  float* scores = nullptr;
  if (max_visible > top_k) {
    DSV4_ASSIGN_OR_RETURN_STATUS(scores, context.Scratch<float>(tokens_at_once * max_visible));
  }
  for (int64_t begin = 0; begin < num_tokens; begin += tokens_at_once) {
    const auto count = static_cast<unsigned>(std::min(tokens_at_once, num_tokens - begin));
    if (scores != nullptr) {
      ScoreParams params = {.q = args.q.data,
                            .weights = args.weights.data,
                            .scores = scores,
                            .first_token = begin,
                            .max_visible = max_visible,
                            .top_k = top_k,
                            .ratio = args.ratio,
                            .num_heads = static_cast<int>(num_heads),
                            .width = static_cast<int>(width),
                            .tiles_per_block = 1};
      if (HasScoreMma(args.q.dtype, num_heads, width)) {
        const int64_t num_tiles = CeilDiv(max_visible, kMmaKeys);
        params.tiles_per_block =
            static_cast<int>(std::clamp<int64_t>(count * num_tiles / kScoreBlocks, 1, kMaxTilesPerBlock));
        const dim3 grid(count, static_cast<unsigned>(CeilDiv(num_tiles, params.tiles_per_block)));
        context.Launch(ScoreMmaKernel, grid, 32 * kMmaWarps,
                       static_cast<size_t>(num_heads * (kMmaWidth + 8)) * sizeof(uint16_t), table, params);
      } else {
        const dim3 grid(count, static_cast<unsigned>(CeilDiv(max_visible, kKeysPerBlock)));
        WithElement(args.q.dtype, [&]<typename T>(T*) {
          context.Launch(ScoreKernel<T>, grid, kScoreThreads, shared_bytes, table, params);
        });
      }
    }
    SelectTopK(context, table,
               {.scores = scores,
                .selected = args.selected.as<int32_t>(),
                .first_token = begin,
                .max_visible = max_visible,
                .top_k = top_k,
                .ratio = args.ratio,
                .rounded = args.q.dtype == DType::kBF16},
               count);
  }
  return {};
}

}  // namespace dsv4::backend::cuda
