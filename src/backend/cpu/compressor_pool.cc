// Op compressor_pool on the CPU: a softmax over the rows of a block, column by column, and the history that
// later blocks need.
#include <algorithm>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

namespace {

// Finds the value and score rows of any token that a block of this step may need: in the step itself or in
// the rings.
class TokenRows {
 public:
  TokenRows(const ops::CompressorPoolArgs& args, const ops::CompressorSequence& sequence)
      : args_(args), sequence_(sequence), width_(args.values.shape[1]) {}

  const float* Values(int64_t position) const {
    const int64_t row = position - sequence_.first_position;
    return row < 0 ? RingRow(sequence_.value_history, position)
                   : args_.values.as<const float>() + (sequence_.token_begin + row) * width_;
  }

  // Scores with ape, channels [channel, channel + count). An fp32 sum, as it is in the history: an entry must
  // not depend on where the chunks were cut.
  void Scores(int64_t position, int64_t channel, int64_t count, float* out) const {
    const int64_t row = position - sequence_.first_position;
    if (row < 0) {
      std::copy_n(RingRow(sequence_.score_history, position) + channel, count, out);
      return;
    }
    const float* const scores =
        args_.scores.as<const float>() + (sequence_.token_begin + row) * width_ + channel;
    if (args_.ape.is_null()) {
      std::copy_n(scores, count, out);
      return;
    }
    const uint8_t* const ape = At(args_.ape.data, DType::kF32, position % args_.ratio * width_ + channel);
    for (int64_t c = 0; c < count; ++c) {
      float bias;
      std::memcpy(&bias, ape + 4 * c, sizeof(bias));
      out[c] = scores[c] + bias;
    }
  }

 private:
  static const float* RingRow(const ops::RingRows& ring, int64_t position) {
    return static_cast<const float*>(ring.data) + position % ring.capacity * ring.width;
  }

  const ops::CompressorPoolArgs& args_;
  const ops::CompressorSequence& sequence_;
  int64_t width_;
};

// Channels [first, first + count) of entry j: per channel, the softmax of the scores over the pooled tokens
// weighs values.
void PoolEntry(const RowKernels& kernels, const ops::CompressorPoolArgs& args, const TokenRows& rows,
               int64_t entry, int64_t first, int64_t count, float* pooled) {
  const int64_t block_begin = entry * args.ratio;
  const int64_t begin = args.overlap && entry > 0 ? block_begin - args.ratio : block_begin;
  const int64_t num_tokens = block_begin + args.ratio - begin;
  // Tokens of the previous block give their first channels, the block's own the second half (with overlap).
  const auto channel = [&](int64_t position) {
    return first + (args.overlap && position >= block_begin ? args.pooled.shape[1] : 0);
  };
  std::vector<float> scores(static_cast<size_t>(num_tokens * count));
  std::vector<const float*> values;
  for (int64_t i = 0; i < num_tokens; ++i) {
    rows.Scores(begin + i, channel(begin + i), count, scores.data() + i * count);
    values.push_back(rows.Values(begin + i) + channel(begin + i));
  }
  kernels.pool(scores.data(), count, values.data(), num_tokens, count, pooled);
}

// The step's last tokens into the rings, the scores with ape.
void WriteHistory(const ops::CompressorPoolArgs& args, const ops::CompressorSequence& sequence) {
  const TokenRows rows(args, sequence);
  const int64_t width = args.values.shape[1];
  const int64_t end = sequence.first_position + sequence.num_tokens;
  const auto slot = [&](const ops::RingRows& ring, int64_t position) {
    return static_cast<float*>(ring.data) + position % ring.capacity * ring.width;
  };
  for (const bool is_value : {true, false}) {
    const ops::RingRows& ring = is_value ? sequence.value_history : sequence.score_history;
    for (int64_t p = std::max(sequence.first_position, end - ring.capacity); p < end; ++p) {
      if (is_value) {
        std::copy_n(rows.Values(p), width, slot(ring, p));
      } else {
        rows.Scores(p, 0, width, slot(ring, p));
      }
    }
  }
}

}  // namespace

Status CompressorPool(ops::OpContext& context, const ops::CompressorPoolArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Kernels& kernels = KernelsOf(context);
  struct Task {
    const ops::CompressorSequence* sequence;
    int64_t entry;
  };
  std::vector<Task> tasks;
  for (const ops::CompressorSequence& sequence : args.sequences) {
    const int64_t end = sequence.first_position + sequence.num_tokens;
    for (int64_t entry = sequence.first_position / args.ratio; entry < end / args.ratio; ++entry) {
      tasks.push_back({&sequence, entry});
    }
  }
  // Channels are independent, so that even one entry of a decode step keeps several threads busy.
  constexpr int64_t kChannels = 128;
  const int64_t width = args.pooled.shape[1];
  const int64_t slices = (width + kChannels - 1) / kChannels;
  context.threads().ParallelFor(
      static_cast<int64_t>(tasks.size()) * slices, 1, [&](int64_t begin, int64_t end) {
        float pooled[kChannels];
        for (int64_t i = begin; i < end; ++i) {
          const Task& task = tasks[static_cast<size_t>(i / slices)];
          const int64_t first = i % slices * kChannels;
          const int64_t count = std::min(kChannels, width - first);
          PoolEntry(kernels.rows, args, TokenRows(args, *task.sequence), task.entry, first, count, pooled);
          StoreFloats(
              kernels, pooled, count,
              args.pooled.as<uint8_t>() + (i / slices * width + first) * ElementBytes(args.pooled.dtype),
              args.pooled.dtype);
        }
      });
  // Only now: the rings may hold rows that this step's blocks have just read.
  for (const ops::CompressorSequence& sequence : args.sequences) WriteHistory(args, sequence);
  return {};
}

}  // namespace dsv4::backend::cpu
