// indexer_select: scores of all visible entries, token by token, then an exact top-k by radix selection.
#include <cub/block/block_scan.cuh>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/reduce.cuh"
#include "backend/cuda/kernels/sequences.h"

namespace dsv4::backend::cuda {
namespace {

// --- Scores ----------------------------------------------------------------------------------------------------------

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
};

__device__ int64_t NumVisible(const SequenceRows& sequence, int64_t token, int64_t ratio) {
  return (sequence.first_position + token - sequence.token_begin + 1) / ratio;
}

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

// --- Top-k -----------------------------------------------------------------------------------------------------------

constexpr int kSelectThreads = 512;

// Unsigned keys in the order of the scores; NaN counts as the lowest number.
__device__ uint32_t OrderedKey(float score) {
  const uint32_t bits = __float_as_uint(isnan(score) ? -INFINITY : score + 0.0F);  // -0 becomes +0.
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// One block a token. Four passes of eight bits find the k-th highest key; then entries above it, and the first of those
// equal to it, are written in order of index.
__global__ void SelectKernel(const __grid_constant__ SequenceTable table, const float* all_scores,
                             int32_t* all_selected, int64_t first_token, int64_t max_visible, int64_t top_k,
                             int64_t ratio) {
  BeginKernel();
  using Scan = cub::BlockScan<int, kSelectThreads>;
  __shared__ typename Scan::TempStorage scan_storage;
  __shared__ int histogram[256];
  __shared__ uint32_t shared_prefix;
  __shared__ int64_t shared_left;

  const int64_t token = first_token + blockIdx.x;
  const SequenceRows& sequence = table.Of(token);
  const int64_t visible = NumVisible(sequence, token, ratio);
  int32_t* const selected = all_selected + token * top_k;
  if (visible <= top_k) {
    for (int64_t i = threadIdx.x; i < top_k; i += kSelectThreads)
      selected[i] = i < visible ? static_cast<int32_t>(i) : -1;
    return;
  }
  if (top_k == 0) return;
  const float* const scores = all_scores + blockIdx.x * max_visible;

  uint32_t prefix = 0;   // The high bits of the k-th highest key.
  int64_t left = top_k;  // How many of the keys with this prefix are chosen.
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kSelectThreads) histogram[i] = 0;
    __syncthreads();
    for (int64_t j = threadIdx.x; j < visible; j += kSelectThreads) {
      const uint32_t key = OrderedKey(scores[j]);
      if (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8))
        atomicAdd(&histogram[key >> shift & 0xFFU], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int bucket = 255;
      while (histogram[bucket] < left) left -= histogram[bucket--];
      shared_prefix = prefix | static_cast<uint32_t>(bucket) << shift;
      shared_left = left;
    }
    __syncthreads();
    prefix = shared_prefix;
    left = shared_left;
  }

  int64_t written = 0;
  int64_t equal_seen = 0;
  for (int64_t begin = 0; begin < visible && written < top_k; begin += kSelectThreads) {
    const int64_t j = begin + threadIdx.x;
    const uint32_t key = j < visible ? OrderedKey(scores[j]) : 0;
    const int equal = j < visible && key == prefix ? 1 : 0;
    int equal_before = 0;
    int num_equal = 0;
    Scan(scan_storage).ExclusiveSum(equal, equal_before, num_equal);
    __syncthreads();
    const bool chosen = j < visible && (key > prefix || (equal == 1 && equal_seen + equal_before < left));
    int place = 0;
    int num_chosen = 0;
    Scan(scan_storage).ExclusiveSum(chosen ? 1 : 0, place, num_chosen);
    __syncthreads();
    if (chosen) selected[written + place] = static_cast<int32_t>(j);
    written += num_chosen;
    equal_seen += num_equal;
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
  // Where there is something to score, for as many as there may soon be.
  if (max_visible > top_k) max_visible = InSteps(max_visible);
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
      const ScoreParams params = {.q = args.q.data,
                                  .weights = args.weights.data,
                                  .scores = scores,
                                  .first_token = begin,
                                  .max_visible = max_visible,
                                  .top_k = top_k,
                                  .ratio = args.ratio,
                                  .num_heads = static_cast<int>(num_heads),
                                  .width = static_cast<int>(width)};
      const dim3 grid(count, static_cast<unsigned>(CeilDiv(max_visible, kKeysPerBlock)));
      WithElement(args.q.dtype, [&]<typename T>(T*) {
        context.Launch(ScoreKernel<T>, grid, kScoreThreads, shared_bytes, table, params);
      });
    }
    context.Launch(SelectKernel, count, kSelectThreads, 0, table, scores, args.selected.as<int32_t>(), begin,
                   max_visible, top_k, args.ratio);
  }
  return {};
}

}  // namespace dsv4::backend::cuda
