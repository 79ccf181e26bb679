// Scores of rows whose tokens have been chosen: the sum that log-probabilities are of (sampling/log_sum.h), and the highest logits. A row is
// cut into pieces, a block each, so that its exponentials, which are in double, are made by many SMs.
#include <algorithm>
#include <vector>

#include "backend/cuda/device/numeric/ordered_key.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/sampling/sample_params.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPieceTokens = 8192;
constexpr int kMostPieces = static_cast<int>(sampling::kMaxChoices / kPieceTokens);
static_assert(kMostPieces <= 32, "a lane a piece");

struct ScoredRow {
  int32_t row;
  int32_t num_top;
};

struct ScoresParams {
  const ScoredRow* rows;
  const float* logits;
  const int32_t* tokens;
  const int32_t* faults;
  int32_t* scores;
  uint64_t*
      ranked;  // [rows, pieces, most_ranked]: the best of each piece, the highest first; 0 behind the last.
  uint64_t* sums;  // [rows, pieces, 2]: of the high halves and of the low ones.
  int vocab_size;
  int num_pieces;
  int most_ranked;
  int width;  // Width of a row of scores.

  __device__ uint64_t* Ranked(int row, int piece) const {
    return ranked + (int64_t{row} * num_pieces + piece) * most_ranked;
  }
  __device__ uint64_t* Sums(int row, int piece) const {
    return sums + (int64_t{row} * num_pieces + piece) * 2;
  }
};

// The key of a token in rank, and 0 for -infinity, which has none.
__device__ uint64_t KeyOf(float logit, int id) {
  const uint32_t key = OrderedKey(logit);
  if (key <= OrderedKey(-INFINITY)) return 0;
  return static_cast<uint64_t>(key) << 32 | ~static_cast<uint32_t>(id);
}
__device__ int TokenOf(uint64_t key) { return static_cast<int>(~static_cast<uint32_t>(key)); }

__device__ uint64_t WarpMax(uint64_t value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value = max(value, __shfl_xor_sync(kWholeWarp, value, offset));
  return value;
}
__device__ uint64_t WarpSum(uint64_t value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kWholeWarp, value, offset);
  return value;
}

// A block a piece: its best tokens, one after the other.
__global__ void __launch_bounds__(kThreads) SampleScoresRankedKernel(const ScoresParams p) {
  __shared__ float piece[kPieceTokens];
  __shared__ uint64_t of_warp[2][kWarps];
  BeginKernel();
  const int number = static_cast<int>(blockIdx.x) / p.num_pieces;
  const int place = static_cast<int>(blockIdx.x) % p.num_pieces;
  const ScoredRow scored = p.rows[number];
  if (p.faults[scored.row] != ops::kNoFault) return;
  const int first = place * kPieceTokens;
  const int count = min(kPieceTokens, p.vocab_size - first);
  const float* const logits = p.logits + int64_t{scored.row} * p.vocab_size + first;
  for (int j = static_cast<int>(threadIdx.x); j < count; j += kThreads) piece[j] = logits[j];
  uint64_t* const ranked = p.Ranked(number, place);
  uint64_t last = ~uint64_t{0};
  const int num_ranked = max(1, scored.num_top);
  for (int i = 0; i < num_ranked; ++i) {
    uint64_t best = 0;
    for (int j = static_cast<int>(threadIdx.x); j < count && last != 0; j += kThreads) {
      const uint64_t key = KeyOf(piece[j], first + j);
      if (key < last) best = max(best, key);
    }
    best = WarpMax(best);
    if (threadIdx.x % 32 == 0) of_warp[i % 2][threadIdx.x / 32] = best;
    __syncthreads();
    for (int warp = 0; warp < kWarps; ++warp) best = max(best, of_warp[i % 2][warp]);
    last = best;
    if (threadIdx.x == 0) ranked[i] = best;
  }
}

__device__ float HighestOf(const ScoresParams& p, int number, const float* logits) {
  uint64_t best = 0;
  for (int place = 0; place < p.num_pieces; ++place) best = max(best, p.Ranked(number, place)[0]);
  return logits[TokenOf(best)] + 0.0F;
}

// A block a piece: the sum of its weights.
__global__ void __launch_bounds__(kThreads) SampleScoresSumsKernel(const ScoresParams p) {
  __shared__ uint64_t of_warp[2][kWarps];
  BeginKernel();
  const int number = static_cast<int>(blockIdx.x) / p.num_pieces;
  const int place = static_cast<int>(blockIdx.x) % p.num_pieces;
  const ScoredRow scored = p.rows[number];
  if (p.faults[scored.row] != ops::kNoFault) return;
  const float* const logits = p.logits + int64_t{scored.row} * p.vocab_size;
  const double highest = HighestOf(p, number, logits);
  const int end = min((place + 1) * kPieceTokens, p.vocab_size);
  uint64_t high = 0;
  uint64_t low = 0;
  for (int id = place * kPieceTokens + static_cast<int>(threadIdx.x); id < end; id += kThreads) {
    const uint64_t steps = sampling::ExpInSteps(static_cast<double>(logits[id]) - highest);
    high += steps >> 32;
    low += steps & 0xFFFFFFFFU;
  }
  high = WarpSum(high);
  low = WarpSum(low);
  if (threadIdx.x % 32 == 0) {
    of_warp[0][threadIdx.x / 32] = high;
    of_warp[1][threadIdx.x / 32] = low;
  }
  __syncthreads();
  if (threadIdx.x >= 2) return;
  uint64_t sum = 0;
  for (const uint64_t part : of_warp[threadIdx.x]) sum += part;
  p.Sums(number, place)[threadIdx.x] = sum;
}

// A warp a row: what the pieces have found, a lane a piece.
__global__ void __launch_bounds__(32) SampleScoresKernel(const ScoresParams p) {
  BeginKernel();
  const int number = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x);
  const ScoredRow scored = p.rows[number];
  if (p.faults[scored.row] != ops::kNoFault) return;
  const float* const logits = p.logits + int64_t{scored.row} * p.vocab_size;
  const bool has_piece = lane < p.num_pieces;
  const uint64_t high = WarpSum(has_piece ? p.Sums(number, lane)[0] : 0);
  const uint64_t low = WarpSum(has_piece ? p.Sums(number, lane)[1] : 0);
  int32_t* const out = p.scores + int64_t{scored.row} * p.width;
  if (lane == 0) {
    ops::ScoresHead head;
    head.logit = logits[p.tokens[scored.row]];
    head.highest = HighestOf(p, number, logits);
    head.high[0] = static_cast<uint32_t>(high);
    head.high[1] = static_cast<uint32_t>(high >> 32);
    head.low[0] = static_cast<uint32_t>(low);
    head.low[1] = static_cast<uint32_t>(low >> 32);
    *reinterpret_cast<ops::ScoresHead*>(out) = head;
  }
  auto* const top = reinterpret_cast<ops::TopScore*>(out + sizeof(ops::ScoresHead) / sizeof(int32_t));
  const uint64_t* const ranked = p.Ranked(number, has_piece ? lane : 0);
  int taken = 0;
  for (int i = 0; i < scored.num_top; ++i) {
    const uint64_t mine = has_piece && taken < scored.num_top ? ranked[taken] : 0;
    const uint64_t best = WarpMax(mine);
    if (best != 0 && best == mine) ++taken;
    if (lane != 0) continue;
    ops::TopScore score = ops::kNoTopScore;
    if (best != 0) {
      score.token = TokenOf(best);
      score.logit = logits[score.token];
    }
    top[i] = score;
  }
}

}  // namespace

Status LaunchSampleScores(LaunchContext& context, const ops::SampleArgs& args) {
  std::vector<ScoredRow> rows;
  int most_ranked = 1;
  for (size_t i = 0; i < args.rules.size(); ++i) {
    if (args.rules[i].num_top < 0) continue;
    rows.push_back({static_cast<int32_t>(i), args.rules[i].num_top});
    most_ranked = std::max(most_ranked, args.rules[i].num_top);
  }
  if (rows.empty()) return {};
  const auto vocab_size = static_cast<int>(args.logits.shape[1]);
  const int num_pieces = (vocab_size + kPieceTokens - 1) / kPieceTokens;
  const auto num_rows = static_cast<int64_t>(rows.size());
  DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<ScoredRow> staged,
                               context.Stage(std::span<const ScoredRow>(rows)));
  DSV4_ASSIGN_OR_RETURN_STATUS(uint64_t* const ranked,
                               context.Scratch<uint64_t>(num_rows * num_pieces * most_ranked));
  DSV4_ASSIGN_OR_RETURN_STATUS(uint64_t* const sums, context.Scratch<uint64_t>(num_rows * num_pieces * 2));
  const ScoresParams params = {.rows = staged.data,
                               .logits = args.logits.as<const float>(),
                               .tokens = args.tokens.as<const int32_t>(),
                               .faults = args.faults.as<const int32_t>(),
                               .scores = args.scores.as<int32_t>(),
                               .ranked = ranked,
                               .sums = sums,
                               .vocab_size = vocab_size,
                               .num_pieces = num_pieces,
                               .most_ranked = most_ranked,
                               .width = static_cast<int>(args.scores.shape[1])};
  const auto blocks = static_cast<unsigned>(num_rows * num_pieces);
  context.Launch(SampleScoresRankedKernel, blocks, kThreads, 0, params);
  context.Launch(SampleScoresSumsKernel, blocks, kThreads, 0, params);
  context.Launch(SampleScoresKernel, static_cast<unsigned>(num_rows), 32, 0, params);
  return {};
}

}  // namespace dsv4::backend::cuda
