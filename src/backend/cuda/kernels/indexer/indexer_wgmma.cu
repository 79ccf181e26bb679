// The scores are those of ScoreSixteenKeys (indexer_keys.cuh), bit for bit. A block keeps the queries of four
// neighbouring tokens in shared memory. Its warpgroups go through tiles of 64 keys, each through its own. A
// tile is the A operand in registers while it is multiplied by one query after the other. The tile after it
// is on its way meanwhile. Warpgroups of an SM take turns: one's dot products are on tensor cores while
// others sum theirs up.
// How dot products become scores: indexer_terms.cuh.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/indexer/indexer_keys.cuh"
#include "backend/cuda/kernels/indexer/indexer_terms.cuh"
#include "backend/cuda/kernels/indexer/indexer_wgmma.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kTokens = kWgmmaScoreTokens;  // A block's,
constexpr int kKeys = kWgmmaScoreKeys;      // and of a tile.
constexpr int kHeads = kTermHeads;
constexpr int kGroups = kWgmmaScoreGroups;  // Warpgroups.
constexpr int kGroupThreads = 128;
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kSteps = kScoreWidth / 16;
constexpr int kHalfBytes = kHeads * 128;  // 64 columns of a query, in the layout of wgmma_tma.cuh.

struct Shared {
  unsigned char q[kTokens][2][kHalfBytes];  // Pieces permuted.
  uint16_t keys[kGroups][kKeys][kScoreRow];
  uint32_t weights[kTokens][4][kHeads / 8];  // [place][j]: of heads 8 j + 2 place and the next.
  int visible[kTokens];                      // 0: is not scored.
};

// Neighbouring tokens of one sequence, and a tile of its keys.
struct Place {
  int begin = 0;
  int end = 0;
  int end_key = 0;  // Behind those that any of the tokens sees and the block scores.
  int key = 0;      // The tile's first.
  const void* const* pages = nullptr;
};

// Grid: tokens by 4, tiles.
template <bool kPacked>
__global__ void __launch_bounds__(kThreads, 2) IndexerWgmmaKernel(const __grid_constant__ SequenceTable table,
                                                                  const ScoreParams p, const int num_tokens) {
  BeginKernel();
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& m = *reinterpret_cast<Shared*>(raw);
  // The last ones, which see most, come first.
  const int first_in_launch = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTokens;
  const int block_tokens = min(kTokens, num_tokens - first_in_launch);
  const int64_t first_token = p.first_token + first_in_launch;
  const int first_key = static_cast<int>(blockIdx.y) * p.tiles_per_block * kKeys;
  const int past_keys = first_key + p.tiles_per_block * kKeys;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / kGroupThreads;
  const int in_group = thread % kGroupThreads;
  const int lane = thread % 32;
  const int place = lane % 4;
  const int row = in_group / 32 * 16 + lane / 4;  // The keys of this thread: this one and that eight further.

  // --- What is scored ---
  const auto next_run = [&](Place& at) {
    while (at.end < block_tokens) {
      at.begin = at.end;
      const SequenceRows& sequence = table.Of(first_token + at.begin);
      at.end = static_cast<int>(
          min(int64_t{block_tokens}, sequence.token_begin + sequence.num_tokens - first_token));
      // Among these tokens the last sees most.
      const int64_t visible = NumVisible(sequence, first_token + at.end - 1, p.ratio);
      at.end_key = visible <= p.top_k ? 0 : static_cast<int>(min(int64_t{past_keys}, visible));
      at.pages = &table.pages[sequence.page_begin];
      at.key = first_key + group * kKeys;
      if (at.key < at.end_key) return true;
    }
    return false;
  };
  const auto next_tile = [&](Place& at) {
    at.key += kGroups * kKeys;
    return at.key < at.end_key || next_run(at);
  };

  // --- Copies ---
  // Two threads a key.
  const auto rows_per_page = static_cast<uint32_t>(table.rows_per_page);
  const uint32_t to = SharedAddress(m.keys[group][in_group / 2]) + in_group % 2 * 16;
  uint16_t(&my_row)[kScoreRow] = m.keys[group][in_group / 2];
  const auto copy_tile = [&](const Place& at) {
    const int key = at.key + in_group / 2;
    const bool exists = key < at.end_key;
    if constexpr (kPacked) {
      // For a key that is none, whose scores are not wanted, any bytes will do.
      if (exists) {
        const auto index = static_cast<uint32_t>(key);
        CopyPackedKey(my_row,
                      static_cast<const char*>(at.pages[index / rows_per_page]) +
                          index % rows_per_page * kReleaseKeyBytes,
                      in_group % 2);
      }
      CommitCopies();
      return;
    }
    const auto* from = static_cast<const uint16_t*>(p.q);
    if (exists) {
      const auto index = static_cast<uint32_t>(key);
      from =
          static_cast<const uint16_t*>(at.pages[index / rows_per_page]) + index % rows_per_page * kScoreWidth;
    }
    from += in_group % 2 * 8;
#pragma unroll
    for (int i = 0; i < kScoreWidth / 16; ++i) CopyAsync16(to + i * 32, from + i * 16, exists);
    CommitCopies();
  };
  Place next;
  bool more = next_run(next);
  if (more) copy_tile(next);
  if (__syncthreads_or(more ? 1 : 0) == 0) return;
  if (thread < kTokens) {
    int64_t visible = 0;
    if (thread < block_tokens) {
      visible = NumVisible(table.Of(first_token + thread), first_token + thread, p.ratio);
      if (visible <= p.top_k) visible = 0;
    }
    m.visible[thread] = static_cast<int>(visible);
  }
  for (int i = thread; i < block_tokens * kHeads; i += kThreads) {
    const int head = i % kHeads;
    reinterpret_cast<uint16_t*>(m.weights[i / kHeads][head % 8 / 2])[head / 8 * 2 + head % 2] =
        static_cast<const uint16_t*>(p.weights)[first_token * kHeads + i];
  }
  const uint32_t q_address = SharedAddress(m.q);
  const auto* const q = static_cast<const uint16_t*>(p.q) + first_token * kHeads * kScoreWidth;
  constexpr int kPieces = kScoreWidth / 8;
  for (int i = thread; i < block_tokens * kHeads * kPieces; i += kThreads) {
    const int piece = i % kPieces;
    const int head = i / kPieces % kHeads;
    const int half = i / kPieces / kHeads * 2 + piece / 8;
    CopyAsync16(q_address + half * kHalfBytes + head * 128 + ((piece % 8) ^ (head % 8)) * 16, q + i * 8,
                true);
  }
  CommitCopies();
  WaitForCopies<0>();
  PublishToMatrixSteps();
  __syncthreads();

  // --- Scores ---
  const auto meet = [&] { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kGroupThreads) : "memory"); };
  const uint32_t sign_mask = SignMaskOfLane(lane);
  while (more) {
    WaitForCopies<0>();
    if constexpr (kPacked) {
      __syncwarp();
      WidenPackedKey(my_row, in_group % 2);
    }
    meet();
    uint32_t a[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      LoadMatrices(a[step], &m.keys[group][in_group / 32 * 16 + lane % 16][step * 16 + lane / 16 * 8]);
    const int end = next.end;
    const int tile_key = next.key;
    int token = next.begin;
    float* scores = p.scores + int64_t{first_in_launch + token} * p.max_visible + tile_key + row;
    meet();
    more = next_tile(next);
    if (more) copy_tile(next);
#pragma unroll 1
    for (; token < end; ++token, scores += p.max_visible) {
      const int visible = m.visible[token];
      if (visible <= tile_key) continue;
      float dots[kHeads / 2];
      FenceRegisters(dots);
      BeginMatrixSteps();
      const uint64_t b = MatrixDescriptor(q_address + token * (2 * kHalfBytes));
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        // The address is in the low half alone.
        const uint32_t low = static_cast<uint32_t>(b) + step / 4 * (kHalfBytes >> 4) + step % 4 * 2;
        MatrixStep<kHeads>::Add(dots, a[step], (b >> 32 << 32) | low, step > 0 ? 1 : 0);
      }
      CommitMatrixSteps();
      uint32_t weights[kHeads / 8];
#pragma unroll
      for (int j = 0; j < kHeads / 8; ++j) weights[j] = m.weights[token][place][j];
      WaitForMatrixSteps<0>();
      FenceRegisters(dots);

      ScoresOfDots(
          dots, weights, sign_mask, [&](int r) { return place == 0 && tile_key + row + 8 * r < visible; },
          [&](int r, float score) { scores[8 * r] = score; });
    }
  }
}

}  // namespace

void LaunchIndexerScoresWgmma(LaunchContext& context, const SequenceTable& table, const ScoreParams& params,
                              int64_t num_tokens) {
  const int64_t num_fours = CeilDiv(num_tokens, kTokens);
  const int64_t num_tiles = CeilDiv(params.max_visible, kKeys);
  const dim3 grid(static_cast<unsigned>(num_fours),
                  static_cast<unsigned>(CeilDiv(num_tiles, params.tiles_per_block)));
  const auto kernel =
      table.form == StoredForm::kRelease ? IndexerWgmmaKernel<true> : IndexerWgmmaKernel<false>;
  context.Launch(kernel, grid, kThreads, sizeof(Shared), table, params, static_cast<int>(num_tokens));
}

}  // namespace dsv4::backend::cuda
