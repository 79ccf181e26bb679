// Mistakes 17 to 19: pooling, and what a sequence keeps of unfinished blocks.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

enum class Fault : uint8_t {
  kHalvesSwapped,
  kFourRows,
  kSharedSoftmax,
  kHcaOverlap,
  kScoreZero,
  kStaleState,
};

constexpr double kAbsent = -std::numeric_limits<double>::infinity();
constexpr int64_t kPrefill =
    150;  // Prefill of the mistakes that lie at its end: 2 past a block of 4, 22 past one of 128.

// One row of a pooling window: where its (a, b) lie, or a constant.
struct PoolRow {
  int64_t token = -1;  // -1: absent, value 0
  size_t channel = 0;  // of channel 0 of the entry
  double score = kAbsent;
};

// One sequence from position 0, the whole prompt at once.
template <Fault F>
Status Pool(ops::OpContext&, const ops::CompressorPoolArgs& args) {
  const std::vector<double> a = Values(args.values);
  const std::vector<double> b = Values(args.scores);
  const std::vector<double> ape = Values(args.ape);
  const auto width = static_cast<size_t>(args.values.shape[1]);
  const auto d = static_cast<size_t>(args.pooled.shape[1]);
  const auto score = [&](int64_t token, size_t channel) {
    const auto row = static_cast<size_t>(token);
    return b[row * width + channel] + ape[static_cast<size_t>(token % args.ratio) * width + channel];
  };
  const bool two_blocks = args.overlap ? F != Fault::kFourRows : F == Fault::kHcaOverlap;
  const bool swapped = F == Fault::kHalvesSwapped;
  const size_t previous_half = args.overlap && swapped ? d : 0;
  const size_t current_half = args.overlap && !swapped ? d : 0;
  std::vector<double> pooled;
  for (int64_t block = 0; block < args.pooled.shape[0]; ++block) {
    std::vector<PoolRow> rows;
    for (int64_t i = 0; two_blocks && i < args.ratio; ++i) {
      int64_t before = block - 1;
      if (before < 0 && F == Fault::kStaleState && args.overlap) before = args.pooled.shape[0] - 1;
      if (before >= 0) {
        rows.push_back({.token = before * args.ratio + i, .channel = previous_half, .score = 0});
      } else {
        rows.push_back({.token = -1, .channel = 0, .score = F == Fault::kScoreZero ? 0 : kAbsent});
      }
    }
    for (int64_t i = 0; i < args.ratio; ++i) {
      rows.push_back({.token = block * args.ratio + i, .channel = current_half, .score = 0});
    }
    for (size_t c = 0; c < d; ++c) {
      std::vector<double> weights;
      for (const PoolRow& row : rows) {
        if (row.token < 0) {
          weights.push_back(row.score);
        } else if (F == Fault::kSharedSoftmax) {
          double mean = 0;
          for (size_t k = 0; k < d; ++k) mean += score(row.token, row.channel + k) / static_cast<double>(d);
          weights.push_back(mean);
        } else {
          weights.push_back(score(row.token, row.channel + c));
        }
      }
      const double max = *std::max_element(weights.begin(), weights.end());
      double sum = 0;
      double total = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        const double e = std::exp(weights[i] - max);
        total += e;
        if (rows[i].token >= 0)
          sum += e * a[static_cast<size_t>(rows[i].token) * width + rows[i].channel + c];
      }
      pooled.push_back(sum / total);
    }
  }
  SetValues(args.pooled, pooled);
  return {};
}

template <int kTimes>
Status ApeTimes(ops::OpContext& context, const ops::CompressorPoolArgs& args) {
  std::vector<double> values = Values(args.ape);
  std::vector<float> ape;
  for (const double value : values) ape.push_back(static_cast<float>(kTimes * value));
  ops::CompressorPoolArgs wrong = args;
  wrong.ape = TensorView::Contiguous(ape.data(), DType::kF32, args.ape.shape);
  return Right().compressor_pool(context, wrong);
}

// Forgets positions [begin, end) of a sequence's history, as if they had never been written.
void Forget(const ops::CompressorSequence& sequence, int64_t begin, int64_t end) {
  const auto fill = [&](const RingRows& ring, float value) {
    for (int64_t p = std::max(begin, end - ring.capacity); p < end; ++p) {
      float* row = static_cast<float*>(ring.data) + p % ring.capacity * ring.width;
      std::fill(row, row + ring.width, value);
    }
  };
  fill(sequence.value_history, 0);
  fill(sequence.score_history, -std::numeric_limits<float>::infinity());
}

// After the prefill, its remainder (or, at ratio 4, its last whole block) is missing from the state.
template <bool kRemainder>
Status LostState(ops::OpContext& context, const ops::CompressorPoolArgs& args) {
  DSV4_RETURN_IF_ERROR(Right().compressor_pool(context, args));
  const ops::CompressorSequence& sequence = args.sequences[0];
  if (sequence.first_position != 0) return {};
  const int64_t end = sequence.num_tokens;
  const int64_t whole = end / args.ratio * args.ratio;
  if (kRemainder) {
    Forget(sequence, whole, end);
  } else if (args.overlap) {
    Forget(sequence, whole - args.ratio, whole);
  }
  return {};
}

template <ops::OpFunction<ops::CompressorPoolArgs> kOp>
SeededMistake With(std::vector<int64_t> pieces = {1000}) {
  return {.mutation = {.parts = {},
                       .ops = [](ops::OpTable& table) { table.compressor_pool = kOp; },
                       .options = {}},
          .pieces = std::move(pieces)};
}

}  // namespace

void AddCompressorMistakes(SeededMistakes& mistakes) {
  mistakes["17-halves-swapped"] = With<Pool<Fault::kHalvesSwapped>>();
  mistakes["17-four-rows"] = With<Pool<Fault::kFourRows>>();
  mistakes["17-shared-softmax"] = With<Pool<Fault::kSharedSoftmax>>();
  mistakes["17-ape-twice"] = With<ApeTimes<2>>();
  mistakes["17-no-ape"] = With<ApeTimes<0>>();
  mistakes["18-hca-overlap"] = With<Pool<Fault::kHcaOverlap>>();
  mistakes["19-score-zero"] = With<Pool<Fault::kScoreZero>>();
  mistakes["19-state-not-reset"] = With<Pool<Fault::kStaleState>>();
  mistakes["19-remainder-lost"] = With<LostState<true>>({kPrefill, 1});
  mistakes["19-previous-lost"] = With<LostState<false>>({kPrefill, 1});
}

}  // namespace dsv4::testing
