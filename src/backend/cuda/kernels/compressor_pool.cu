#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/rows.h"

namespace dsv4::backend::cuda {
namespace {

using Sequence = CompressorHistory;
using Sequences = DeviceArray<Sequence>;

struct Params {
  const float* values;
  const float* scores;
  const float* ape;
  int64_t width;  // Of a row of values: channels * pooled width.
  int64_t pooled_width;
  int64_t ratio;
  bool overlap;
};

// The (value, score + ape) of one channel at any position that a block of this step may need.
struct TokenRows {
  const Params& p;
  const Sequence& s;

  __device__ float Value(int64_t position, int64_t channel) const {
    const int64_t row = position - s.first_position;
    return row < 0 ? s.values[position % s.value_capacity * p.width + channel]
                   : p.values[(s.token_begin + row) * p.width + channel];
  }
  // An fp32 sum, as it is in the history: an entry must not depend on where the chunks were cut.
  __device__ float Score(int64_t position, int64_t channel) const {
    const int64_t row = position - s.first_position;
    return row < 0 ? s.scores[position % s.score_capacity * p.width + channel]
                   : p.scores[(s.token_begin + row) * p.width + channel] +
                         p.ape[position % p.ratio * p.width + channel];
  }
};

// One thread a channel of an entry.
template <typename T>
__global__ void PoolKernel(const Sequences sequences, const Params p, T* pooled) {
  BeginKernel();
  const int64_t index = blockIdx.x;
  const int64_t c = blockIdx.y * int64_t{blockDim.x} + threadIdx.x;
  if (c >= p.pooled_width) return;
  int64_t i = 0;
  while (i + 1 < sequences.size && sequences[i + 1].first_entry <= index) ++i;
  const Sequence& s = sequences[i];
  const int64_t entry = s.first_position / p.ratio + index - s.first_entry;
  const TokenRows rows{p, s};

  // The previous block's tokens with the first channels, then the block's own.
  const int64_t num_previous = p.overlap && entry > 0 ? p.ratio : 0;
  const int64_t own_channel = c + (p.overlap ? p.pooled_width : 0);
  const int64_t begin = entry * p.ratio - num_previous;
  const auto channel = [&](int64_t t) { return t < num_previous ? c : own_channel; };
  float max = -INFINITY;
  for (int64_t t = 0; t < num_previous + p.ratio; ++t) {
    const float score = rows.Score(begin + t, channel(t));
    max = max < score ? score : max;
  }
  double weighted = 0.0;
  double total = 0.0;
  for (int64_t t = 0; t < num_previous + p.ratio; ++t) {
    const double weight =
        exp(static_cast<double>(rows.Score(begin + t, channel(t))) - static_cast<double>(max));
    weighted += weight * static_cast<double>(rows.Value(begin + t, channel(t)));
    total += weight;
  }
  Store(pooled, index * p.pooled_width + c, weighted / total);
}

}  // namespace

Status CompressorPool(CudaContext& context, const ops::CompressorPoolArgs& args) {
  const int64_t num_tokens = args.values.shape[0];
  if (args.values.num_elements() == 0) return {};
  std::vector<Sequence> list;
  int64_t num_entries = 0;
  for (const ops::CompressorSequence& s : args.sequences) {
    if (s.num_tokens == 0) continue;
    list.push_back({s.token_begin, s.num_tokens, s.first_position, num_entries,
                    static_cast<float*>(s.value_history.data), static_cast<float*>(s.score_history.data),
                    s.value_history.capacity, s.score_history.capacity});
    num_entries += ops::NumCompletedEntries(s.first_position, s.num_tokens, args.ratio);
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const Sequences sequences, context.Stage(std::span<const Sequence>(list)));
  const Params params = {.values = args.values.as<const float>(),
                         .scores = args.scores.as<const float>(),
                         .ape = args.ape.as<const float>(),
                         .width = args.values.shape[1],
                         .pooled_width = args.pooled.shape[1],
                         .ratio = args.ratio,
                         .overlap = args.overlap};
  constexpr int kThreads = 128;
  if (num_entries > 0) {
    const dim3 grid(static_cast<unsigned>(num_entries),
                    static_cast<unsigned>(CeilDiv(params.pooled_width, kThreads)));
    WithElement(args.pooled.dtype, [&]<typename T>(T*) {
      context.Launch(PoolKernel<T>, grid, kThreads, 0, sequences, params, args.pooled.as<T>());
    });
  }
  // Only now: the rings may hold rows that this step's blocks have just read.
  std::vector<MemoryRange> touches = {{args.scores.data, static_cast<size_t>(args.scores.num_bytes())}};
  for (const Sequence& s : list) {
    touches.push_back({s.values, static_cast<size_t>(s.value_capacity * params.width) * sizeof(float)});
    touches.push_back({s.scores, static_cast<size_t>(s.score_capacity * params.width) * sizeof(float)});
  }
  const RowsOperand rows = {
      .in = params.values, .in_stride = params.width, .num_rows = num_tokens, .width = params.width};
  return AddRowStep(context, rows,
                    {.kind = RowStepKind::kHistory,
                     .num_columns = static_cast<int>(params.ratio),
                     .weight = params.ape,
                     .scores = params.scores,
                     .histories = sequences},
                    touches);
}

}  // namespace dsv4::backend::cuda
