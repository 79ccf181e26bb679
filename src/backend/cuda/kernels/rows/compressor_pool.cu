#include <algorithm>
#include <span>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/compressor_rows.cuh"
#include "backend/cuda/lowering/record/rows.h"

namespace dsv4::backend::cuda {
namespace {

using Sequence = CompressorHistory;
using Sequences = DeviceArray<Sequence>;

struct Params {
  const float* values;
  const float* scores;
  const float* ape;
  int64_t width;  // Of a row of values: channels * pooled width.
  int pooled_width;
  int ratio;
  bool overlap;
};

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
  // In place of those outside the row, its last.
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
      if (tokens.IsNew(token)) scores[i] += p.ape[tokens.RowOfApe(token) * p.width + channel];
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

  double sum = 0.0;  // Of thread t < 2 * kChannels: terms t / kChannels of channel t % kChannels.
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

// Whether no row that goes to a ring lies where the entries of this step read another: it may go there while they are pooled.
bool KeepsWhatIsRead(const ops::CompressorSequence& s, int64_t ratio, bool overlap) {
  if (ops::NumCompletedEntries(s.first_position, s.num_tokens, ratio) == 0) return true;
  const int64_t entry = s.first_position / ratio;
  const int64_t first_read = (overlap && entry > 0 ? entry - 1 : entry) * ratio;
  const int64_t rows = s.first_position + s.num_tokens - first_read;
  return rows <= s.value_history.capacity && rows <= s.score_history.capacity;
}

void AppendHistories(std::span<const ops::CompressorSequence> sequences, int64_t ratio,
                     std::vector<Sequence>* list) {
  int64_t num_entries = 0;
  for (const ops::CompressorSequence& s : sequences) {
    if (s.num_tokens == 0) continue;
    list->push_back({.token_begin = s.token_begin,
                     .num_tokens = s.num_tokens,
                     .first_entry = num_entries,
                     .values = static_cast<float*>(s.value_history.data),
                     .scores = static_cast<float*>(s.score_history.data),
                     .value_capacity = static_cast<int>(s.value_history.capacity),
                     .score_capacity = static_cast<int>(s.score_history.capacity),
                     .value_slot = static_cast<int>(s.first_position % s.value_history.capacity),
                     .score_slot = static_cast<int>(s.first_position % s.score_history.capacity),
                     .phase = static_cast<int>(s.first_position % ratio),
                     .has_previous = s.first_position >= ratio ? 1 : 0});
    num_entries += ops::NumCompletedEntries(s.first_position, s.num_tokens, ratio);
  }
}

}  // namespace

Status CompressorPool(CudaContext& context, const ops::CompressorPoolArgs& args) {
  const int64_t num_tokens = args.values.shape[0];
  if (args.values.num_elements() == 0) return {};
  const int64_t num_entries = context.NumberFrom(
      args.sequences, [ratio = args.ratio](std::span<const ops::CompressorSequence> sequences) {
        int64_t count = 0;
        for (const ops::CompressorSequence& s : sequences)
          count += ops::NumCompletedEntries(s.first_position, s.num_tokens, ratio);
        return count;
      });
  const bool keeps_what_is_read =
      context.NumberFrom(args.sequences, [ratio = args.ratio, overlap = args.overlap](
                                             std::span<const ops::CompressorSequence> sequences) {
        return std::ranges::all_of(sequences, [&](const ops::CompressorSequence& s) {
          return s.num_tokens == 0 || KeepsWhatIsRead(s, ratio, overlap);
        });
      }) != 0;
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const Sequences sequences,
      context.StageFrom<Sequence>(
          args.sequences,
          [ratio = args.ratio](std::span<const ops::CompressorSequence> all, std::vector<Sequence>* list) {
            AppendHistories(all, ratio, list);
          }));
  const Params params = {.values = args.values.as<const float>(),
                         .scores = args.scores.as<const float>(),
                         .ape = args.ape.as<const float>(),
                         .width = args.values.shape[1],
                         .pooled_width = static_cast<int>(args.pooled.shape[1]),
                         .ratio = static_cast<int>(args.ratio),
                         .overlap = args.overlap};
  std::vector<MemoryRange> touches = {{args.scores.data, static_cast<size_t>(args.scores.num_bytes())},
                                      {args.values.data, static_cast<size_t>(args.values.num_bytes())}};
  // Rings of other sequences lie apart in the same way.
  for (const ops::CompressorSequence& s : args.sequences) {
    if (s.num_tokens == 0) continue;
    for (const RingRows& ring : {s.value_history, s.score_history})
      touches.push_back({ring.data, static_cast<size_t>(ring.capacity * params.width) * sizeof(float)});
  }
  const bool in_rows = args.ratio * (args.overlap ? 2 : 1) <= kMaxPooledInRows &&
                       params.pooled_width <= kMaxPooledWidth && args.pooled.dtype == DType::kBF16;
  if (num_entries > 0 && in_rows) {
    const RowsOperand entries = {.in = params.values,
                                 .in_stride = params.width,
                                 .out = args.pooled.data,
                                 .out_stride = params.pooled_width,
                                 .num_rows = num_entries,
                                 .width = params.pooled_width,
                                 .in_is_bf16 = true,
                                 .out_is_bf16 = true};
    DSV4_RETURN_IF_ERROR(AddRowStep(context, entries,
                                    {.kind = RowStepKind::kPool,
                                     .num_columns = params.ratio,
                                     .group = params.overlap ? 1 : 0,
                                     .weight = params.ape,
                                     .scores = params.scores,
                                     .histories = sequences},
                                    touches));
  } else if (num_entries > 0) {
    const dim3 grid(static_cast<unsigned>(num_entries),
                    static_cast<unsigned>(CeilDiv(params.pooled_width, kChannels)));
    WithElement(args.pooled.dtype, [&]<typename T>(T*) {
      context.Launch(CompressorPoolKernel<T>, grid, kThreads, 0, sequences, params, args.pooled.as<T>());
    });
  }
  // Only now, unless they are other rows of the rings than those that this step's entries read.
  const RowsOperand rows = {
      .in = params.values, .in_stride = params.width, .num_rows = num_tokens, .width = params.width};
  return AddRowStep(context, rows,
                    {.kind = RowStepKind::kHistory,
                     .num_columns = params.ratio,
                     .weight = params.ape,
                     .scores = params.scores,
                     .histories = sequences},
                    touches, num_entries > 0 && in_rows && keeps_what_is_read ? args.pooled.data : nullptr);
}

}  // namespace dsv4::backend::cuda
