// Reference compressor_pool: one softmax per channel over a block's rows, in double, and the rows kept for
// the next block.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

namespace {

// Reads the (values, scores + ape) row of any token that a block of this step may need. Rows come from the
// step itself, or from the history rings.
class TokenRows {
 public:
  TokenRows(const ops::CompressorPoolArgs& args, const ops::CompressorSequence& sequence)
      : args_(args), sequence_(sequence), width_(args.values.shape[1]) {}

  void Value(int64_t position, int64_t channel, std::span<double> out) const {
    const int64_t row = position - sequence_.first_position;
    if (row < 0) {
      LoadHistory(sequence_.value_history, position, channel, out);
    } else {
      LoadValues(args_.values.data, DType::kF32, (sequence_.token_begin + row) * width_ + channel, out);
    }
  }

  void Score(int64_t position, int64_t channel, std::span<double> out) const {
    const int64_t row = position - sequence_.first_position;
    if (row < 0) return LoadHistory(sequence_.score_history, position, channel, out);
    const float* scores = args_.scores.as<const float>() + (sequence_.token_begin + row) * width_ + channel;
    if (args_.ape.is_null()) return LoadValues(scores, DType::kF32, 0, out);
    const float* ape = args_.ape.as<const float>() + position % args_.ratio * width_ + channel;
    // An fp32 sum, as it is in the history: an entry must not depend on where the chunks were cut.
    for (size_t c = 0; c < out.size(); ++c) out[c] = static_cast<double>(scores[c] + ape[c]);
  }

 private:
  static void LoadHistory(const ops::RingRows& ring, int64_t position, int64_t channel,
                          std::span<double> out) {
    LoadValues(ring.data, DType::kF32, RingSlot(ring, position) * ring.width + channel, out);
  }

  const ops::CompressorPoolArgs& args_;
  const ops::CompressorSequence& sequence_;
  int64_t width_;
};

// E_j: per channel, the softmax of the scores over the pooled tokens weighs their values.
std::vector<double> PoolEntry(const ops::CompressorPoolArgs& args, const TokenRows& rows, int64_t entry) {
  const size_t width = static_cast<size_t>(args.pooled.shape[1]);
  struct PooledToken {
    int64_t position;
    int64_t channel;
  };
  std::vector<PooledToken> tokens;
  const int64_t block_begin = entry * args.ratio;
  if (args.overlap && entry > 0) {
    for (int64_t i = 0; i < args.ratio; ++i) tokens.push_back({block_begin - args.ratio + i, 0});
  }
  for (int64_t i = 0; i < args.ratio; ++i) {
    tokens.push_back({block_begin + i, args.overlap ? args.pooled.shape[1] : 0});
  }

  std::vector<std::vector<double>> scores;
  std::vector<double> max(width, -std::numeric_limits<double>::infinity());
  for (const PooledToken& token : tokens) {
    std::vector<double>& score = scores.emplace_back(width);
    rows.Score(token.position, token.channel, score);
    for (size_t c = 0; c < width; ++c) max[c] = std::max(max[c], score[c]);
  }
  std::vector<double> weighted(width, 0.0);
  std::vector<double> total(width, 0.0);
  std::vector<double> value(width);
  for (size_t i = 0; i < tokens.size(); ++i) {
    rows.Value(tokens[i].position, tokens[i].channel, value);
    for (size_t c = 0; c < width; ++c) {
      const double weight = std::exp(scores[i][c] - max[c]);
      weighted[c] += weight * value[c];
      total[c] += weight;
    }
  }
  for (size_t c = 0; c < width; ++c) weighted[c] /= total[c];
  return weighted;
}

// The step's last tokens into the rings, the scores with ape.
void WriteHistory(const ops::CompressorPoolArgs& args, const ops::CompressorSequence& sequence) {
  const TokenRows rows(args, sequence);
  const int64_t end = sequence.first_position + sequence.num_tokens;
  std::vector<double> row(static_cast<size_t>(args.values.shape[1]));
  for (const bool is_value : {true, false}) {
    const ops::RingRows& ring = is_value ? sequence.value_history : sequence.score_history;
    for (int64_t p = std::max(sequence.first_position, end - ring.capacity); p < end; ++p) {
      is_value ? rows.Value(p, 0, row) : rows.Score(p, 0, row);
      StoreValues(row, ring.data, DType::kF32, RingSlot(ring, p) * ring.width);
    }
  }
}

}  // namespace

Status CompressorPool(ops::OpContext& context, const ops::CompressorPoolArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
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
  context.threads().ParallelFor(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Task& task = tasks[static_cast<size_t>(i)];
      StoreRow(PoolEntry(args, TokenRows(args, *task.sequence), task.entry), args.pooled, i);
    }
  });
  // Only now: the rings may hold rows that this step's blocks have just read.
  for (const ops::CompressorSequence& sequence : args.sequences) WriteHistory(args, sequence);
  return {};
}

}  // namespace dsv4::backend::reference
