// The scores of few tokens a sequence over packed keys (kReleaseKey), those of ScoreSixteenKeys
// (indexer_keys.cuh), bit for bit. Tokens share no keys, so each key is read once, and the instructions of a
// key bound the kernel. A block keeps its token's query in shared memory. Every warp has sixteen keys of a
// tile of its warpgroup. One copy by TMA brings them as they are stored, several tiles ahead, for this warp
// alone. Codes are read from there in the layout of an A operand, and widened in registers.
//
// A lane of an operand has four of a step's 16 columns. Any choice of columns will do as long as queries
// agree. Here their codes lie in two bytes of one word, so that a mask picks two codes at once. How dot
// products become scores: indexer_terms.cuh.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/packed_rows.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/indexer/indexer_decode.h"
#include "backend/cuda/kernels/indexer/indexer_terms.cuh"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kWarpKeys = 16;
constexpr int kGroupWarps = 4;
constexpr int kKeys = kWarpKeys * kGroupWarps;
constexpr int kGroups = kDecodeScoreGroups;  // Warpgroups.
static_assert(kKeys == kDecodeScoreKeys);
constexpr int kWarps = kGroups * kGroupWarps;
constexpr int kThreads = 32 * kWarps;
constexpr int kSteps = kScoreWidth / 16;
constexpr int kHalfBytes = kTermHeads * 128;  // 64 columns of a query, in the layout of wgmma_tma.cuh.
constexpr int kStages = 6;                    // Tiles that a warp has asked for.
constexpr int kStageBytes = kWarpKeys * kReleaseKeyBytes;
static_assert(kStageBytes % 16 == 0 && kIndexerDecodePage % kWarpKeys == 0);

struct Shared {
  unsigned char q[2][kHalfBytes];  // Pieces permuted.
  unsigned char keys[kWarps][kStages][kStageBytes];
  uint64_t full[kWarps][kStages];
  uint32_t weights[4][kTermHeads / 8];  // [place][j]: of heads 8 j + 2 place and the next.
};

// The columns of a step in the order in which operands have them: of every lane first two, then two more.
__device__ __forceinline__ void PermuteStep(const uint4& low, const uint4& high, uint4 (&pieces)[2]) {
  constexpr uint32_t kFirst = 0x5410;  // The first of either pair,
  constexpr uint32_t kSecond = 0x7632;
  pieces[0] = make_uint4(__byte_perm(low.x, low.z, kFirst), __byte_perm(low.y, low.w, kFirst),
                         __byte_perm(high.x, high.z, kFirst), __byte_perm(high.y, high.w, kFirst));
  pieces[1] = make_uint4(__byte_perm(low.x, low.z, kSecond), __byte_perm(low.y, low.w, kSecond),
                         __byte_perm(high.x, high.z, kSecond), __byte_perm(high.y, high.w, kSecond));
}

// Two e2m1 codes, at bits kAt and kAt + 16, as bf16 numbers 2^126 too small.
template <int kAt>
__device__ __forceinline__ uint32_t TinyPair(uint32_t codes) {
  return ((codes << (12 - kAt)) & 0x80008000U) | ((codes << (6 - kAt)) & 0x01C001C0U);
}

// The power that such codes of a group with scale 2^(e8m0 - 127) are multiplied by. It is for both of a pair,
// if the scale is 2 at most.
constexpr uint32_t kLargestScale = 128;
__device__ __forceinline__ uint32_t FactorsOfTiny(uint32_t scales, int group) {
  const uint32_t twice = __byte_perm(scales, 0, 0x4040 + group * 0x0101);
  return twice * 128 + 126 * 128 * 0x10001U;
}
// Remaining factors of larger ones.
__device__ __forceinline__ uint32_t MoreFactors(uint32_t scales, int group) {
  const uint32_t e8m0 = scales >> (8 * group) & 0xFFU;
  if (e8m0 == 255) return kPairOfNaN;
  return PairOfExponent(127 + static_cast<int>(max(e8m0, kLargestScale) - kLargestScale));
}

// Grid: tokens, parts of their tiles.
__global__ void __launch_bounds__(kThreads, kDecodeScoreBlocksOfSm)
    IndexerDecodeKernel(const __grid_constant__ SequenceTable table, const ScoreParams p) {
  BeginKernel();
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& m = *reinterpret_cast<Shared*>(raw);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int place = lane % 4;
  const int64_t token = p.first_token + blockIdx.x;
  const SequenceRows& sequence = table.Of(token);
  const auto visible = static_cast<int>(NumVisible(sequence, token, p.ratio));
  if (visible <= p.top_k) return;

  // --- What is scored ---
  // A launch is made for as many entries as there may soon be: the tiles that there are, are dealt out here.
  const auto num_tiles = static_cast<unsigned>(visible + kKeys - 1) / kKeys;
  const auto begin_of = [&](unsigned group) {
    return static_cast<int>(num_tiles * group / (gridDim.y * kGroups));
  };
  if (begin_of(blockIdx.y * kGroups) == begin_of((blockIdx.y + 1) * kGroups)) return;
  const unsigned group = blockIdx.y * kGroups + warp / kGroupWarps;
  const int begin = begin_of(group);
  const int end = begin_of(group + 1);

  // --- Copies ---
  const auto rows_per_page = static_cast<uint32_t>(table.rows_per_page);
  const int first_key = begin * kKeys + warp % kGroupWarps * kWarpKeys;
  int next_key = first_key;
  const void* const* page = &table.pages[sequence.page_begin + first_key / rows_per_page];
  uint32_t row = first_key % rows_per_page;
  RingPlace<kStages> asking;
  const auto ask = [&] {
    if (next_key < end * kKeys) {
      uint64_t* const full = &m.full[warp][asking.i];
      unsigned char* const to = m.keys[warp][asking.i];
      const int num_keys = min(visible - next_key, kWarpKeys);
      if (num_keys <= 0) {
        if (lane == 0) Arrive(full);  // Whatever lies there will do.
      } else {
        const auto* const from = static_cast<const unsigned char*>(*page) + row * kReleaseKeyBytes;
        if ((reinterpret_cast<uintptr_t>(from) & 15U) == 0) {
          if (lane == 0) {
            const auto num_bytes = static_cast<uint32_t>((num_keys * kReleaseKeyBytes + 15) & ~15);
            ArriveAndAnnounce(full, num_bytes);
            CopyBulk(to, from, num_bytes, full);
          }
        } else {
          // TMA takes nothing that does not begin at 16 bytes.
          for (int i = lane; i < num_keys * kReleaseKeyBytes / 4; i += 32)
            reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
          __syncwarp();
          if (lane == 0) Arrive(full);
        }
      }
    }
    next_key += kKeys;
    for (row += kKeys; row >= rows_per_page; row -= rows_per_page) ++page;
    asking.Next();
  };
  if (lane == 0) {
    for (int i = 0; i < kStages; ++i) InitBarrier(&m.full[warp][i], 1);
    PublishBarriers();
  }
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) ask();

  const auto* const q = static_cast<const uint16_t*>(p.q) + token * kTermHeads * kScoreWidth;
  for (int i = thread; i < kTermHeads * kSteps; i += kThreads) {
    const int head = i / kSteps;
    const int step = i % kSteps;
    const auto* const from = reinterpret_cast<const uint4*>(q + i * 16);
    uint4 pieces[2];
    PermuteStep(from[0], from[1], pieces);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int piece = step % 4 * 2 + k;
      *reinterpret_cast<uint4*>(m.q[step / 4] + head * 128 + (piece ^ (head % 8)) * 16) = pieces[k];
    }
  }
  if (thread < kTermHeads) {
    reinterpret_cast<uint16_t*>(m.weights[thread % 8 / 2])[thread / 8 * 2 + thread % 2] =
        static_cast<const uint16_t*>(p.weights)[token * kTermHeads + thread];
  }
  PublishToMatrixSteps();
  __syncthreads();

  // --- Scores ---
  uint32_t weights[kTermHeads / 8];
#pragma unroll
  for (int j = 0; j < kTermHeads / 8; ++j) weights[j] = m.weights[place][j];
  const uint32_t sign_mask = SignMaskOfLane(lane);
  const uint64_t b = MatrixDescriptor(SharedAddress(m.q));
  const int byte_of_word = place % 2 * 8;  // In bits.
  float* scores = p.scores + blockIdx.x * p.max_visible + first_key + lane / 4;
  int num_keys = visible - first_key - lane / 4;  // From this lane's first key on.
  RingPlace<kStages> now;
#pragma unroll 1
  for (int tile = begin; tile < end; ++tile, scores += kKeys, num_keys -= kKeys) {
    WaitForPhase(&m.full[warp][now.i], now.parity);
    const unsigned char* const rows = m.keys[warp][now.i] + lane / 4 * kReleaseKeyBytes;
    uint32_t codes[2][kSteps];
    uint32_t scales[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned char* const key = rows + r * 8 * kReleaseKeyBytes;
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        codes[r][step] = *reinterpret_cast<const uint32_t*>(key + step * 8 + place / 2 * 4);
      scales[r] = *reinterpret_cast<const uint32_t*>(key + kReleaseKeyScales);
    }
    __syncwarp();
    ask();
    now.Next();

    uint32_t a[kSteps][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool large = __vmaxu4(scales[r], kLargestScale * 0x01010101U) != kLargestScale * 0x01010101U;
      const uint32_t held = large ? __vminu4(scales[r], kLargestScale * 0x01010101U) : scales[r];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint32_t factors = FactorsOfTiny(held, step * 16 / kReleaseKeyGroup);
        const uint32_t mine = codes[r][step] >> byte_of_word;
        a[step][r] = MulBf16x2(TinyPair<0>(mine), factors);
        a[step][2 + r] = MulBf16x2(TinyPair<4>(mine), factors);
      }
      if (large) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const uint32_t more = MoreFactors(scales[r], step * 16 / kReleaseKeyGroup);
          a[step][r] = MulBf16x2(a[step][r], more);
          a[step][2 + r] = MulBf16x2(a[step][2 + r], more);
        }
      }
    }
    float dots[kTermHeads / 2];
    FenceRegisters(dots);
    BeginMatrixSteps();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      // The address is in the low half alone.
      const uint32_t low = static_cast<uint32_t>(b) + step / 4 * (kHalfBytes >> 4) + step % 4 * 2;
      MatrixStep<kTermHeads>::Add(dots, a[step], (b >> 32 << 32) | low, step > 0 ? 1 : 0);
    }
    CommitMatrixSteps();
    WaitForMatrixSteps<0>();
    FenceRegisters(dots);
    ScoresOfDots(
        dots, weights, sign_mask, [&](int r) { return place == 0 && 8 * r < num_keys; },
        [&](int r, float score) { scores[8 * r] = score; });
  }
}

}  // namespace

void LaunchIndexerScoresDecode(LaunchContext& context, const SequenceTable& table, const ScoreParams& params,
                               int64_t num_tokens, int64_t num_blocks) {
  context.Launch(IndexerDecodeKernel,
                 dim3(static_cast<unsigned>(num_tokens), static_cast<unsigned>(num_blocks)), kThreads,
                 sizeof(Shared), table, params);
}

}  // namespace dsv4::backend::cuda
