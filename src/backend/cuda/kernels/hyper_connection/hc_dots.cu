// A dot product is the sum of a warp of hyper_connection.cu over a part of the columns. Each of 32 lanes has
// four columns of every run and adds their products one by one. The lanes' sums are then added as a tree. The
// unit's step m16n8k8 adds eight products of a row one by one too, in ascending order and with fma's
// rounding. So a lane's sum of 16 tokens and eight rows is as many steps as it has pairs of runs.
//
// A block has a part, the matrix there as doubles in shared memory, in the order in which steps read it. Four
// warps, or twice four that share the rows, take 16 tokens. A warp has one of each four neighbouring lanes,
// so it goes through eight lanes. Their order is the one in which a tree needs the fewest sums at once. The
// tokens are also the second operand of two more steps, whose diagonals are their squares.
#include <algorithm>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/ptx/mma_f64.cuh"
#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_dots.h"
#include "backend/cuda/lowering/select/hyper_connection.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kTokens = 32;     // At a time.
constexpr int kMembers = 4;     // Warps of 16 tokens and the same rows; of each four lanes one is a warp's.
constexpr int kLaneGroups = 8;  // Four lanes'.
constexpr int kGroupColumns = 16;  // A run's.
constexpr int kRows = 8;           // The matrix's, a step.
constexpr int kBuffers = 3;

// Sums of a thread: rows of the matrix, four doubles a step, then squares.
template <int kTiles, bool kSquares>
struct Sums {
  static constexpr int kCount = kTiles + (kSquares ? 1 : 0);
  double of[kCount][4];
};

struct Params {
  const uint16_t* streams;
  const float* fn;
  double* dots;
  int dim;
  int num_rows;
  int num_parts;
  int runs;
  int num_tokens;
  int tokens_per_block;
};

// Variants of the kernel have three parameters. The first is a block's tiles of the matrix. The second is the
// runs of a part, which fixes the layout, or 0: then Params has them. The third tells whether the last tile
// and the squares are for warps of their own, twice as many, of half as many registers.
template <int kTilesOfBlock, int kRunsOfPart, bool kShared>
struct Kind {
  static constexpr int kTiles = kTilesOfBlock;
  static constexpr int kRuns = kRunsOfPart;
  static constexpr bool kIsShared = kShared;
  static constexpr int kThreads = 2 * kMembers * 32 * (kShared ? 2 : 1);
};
using Flash = Kind<3, 8, true>;
using ThreeTiles = Kind<3, 0, false>;
using OneTile = Kind<1, 0, false>;

// Bytes of a token's columns of a group of lanes, with a gap that spreads tokens over banks.
__host__ __device__ constexpr int TokenBytes(int runs) { return runs * kGroupColumns * 2 + 16; }

constexpr size_t SharedBytes(int tiles, int runs) {
  const size_t matrix =
      static_cast<size_t>(tiles) * static_cast<size_t>(runs) * 32 * 4 * kRows * sizeof(double);
  const size_t tokens = static_cast<size_t>(kBuffers) * kTokens * static_cast<size_t>(TokenBytes(runs));
  const size_t exchange = size_t{2} * 32 * static_cast<size_t>(tiles + 1) * 4 * sizeof(double);
  return matrix + tokens + exchange;
}
static_assert(SharedBytes(1, 8) == HcDotsSharedBytes(1, 8) && SharedBytes(3, 2) == HcDotsSharedBytes(3, 2));

// Grid: tokens by tokens_per_block, parts, rows by Kind::kTiles * kRows, which are one block's where runs are
// known.
template <typename Kind>
__global__ void __launch_bounds__(Kind::kThreads, 1) HcDotsKernel(const __grid_constant__ Params p) {
  constexpr int kThreads = Kind::kThreads;
  constexpr int kTiles = Kind::kTiles;
  constexpr int kRuns = Kind::kRuns;
  BeginKernel();
  extern __shared__ __align__(16) unsigned char raw[];
  // [lane][step][tile][thread of a warp]: both of its numbers.
  auto* const matrix = reinterpret_cast<double2*>(raw);
  const int runs = kRuns > 0 ? kRuns : p.runs;
  const int steps = runs / 2;
  const int token_bytes = TokenBytes(runs);
  unsigned char* const tokens = raw + static_cast<size_t>(32 * steps * kTiles * 32) * sizeof(double2);
  auto* const exchange = reinterpret_cast<double*>(tokens + kBuffers * kTokens * token_bytes);

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int group = lane / 4;
  const int place = lane % 4;
  const int member = thread / 32 % kMembers;
  const int half = thread / 128 % 2;  // Which 16 tokens.
  const int part = static_cast<int>(blockIdx.y);
  const int first_row = kRuns > 0 ? 0 : static_cast<int>(blockIdx.z) * kTiles * kRows;
  const int64_t width = int64_t{4} * p.dim;
  const int run_step = p.num_parts * kHcRunColumns;

  const int first_token = static_cast<int>(blockIdx.x) * p.tokens_per_block;
  const int num_tokens = min(p.tokens_per_block, p.num_tokens - first_token);
  const int chunks = (num_tokens + kTokens - 1) / kTokens * kLaneGroups;
  // Groups in the tree's order: bits reversed.
  const auto group_of = [](int chunk) { return chunk % 2 * 4 + chunk / 2 % 2 * 2 + chunk / 4 % 2; };
  // With known runs a thread copies the same sixteen bytes of one token each time.
  static_assert(kRuns == 0 || kThreads == kTokens * 2 * kRuns);
  const int own_token = thread / 2 / runs;
  const int64_t own_columns = part * kHcRunColumns + thread / 2 % runs * int64_t{run_step} + thread % 2 * 8;
  const auto own_place = static_cast<uint32_t>(own_token * token_bytes +
                                               thread / 2 % runs * (kGroupColumns * 2) + thread % 2 * 16);
  int buffer_to_fill = 0;
  const auto copy = [&](int chunk) {
    if (chunk < chunks) {
      const int lanes = group_of(chunk);
      const uint16_t* const from = p.streams + lanes / 2 * p.dim + lanes % 2 * kGroupColumns;
      const uint32_t to =
          SharedAddress(tokens) + static_cast<uint32_t>(buffer_to_fill * kTokens * token_bytes);
      const int first = chunk / kLaneGroups * kTokens;
      const auto row = [&](int token) { return first_token + min(first + token, num_tokens - 1); };
      if constexpr (kRuns > 0) {
        CopyAsync16(to + own_place, from + own_columns + row(own_token) * width, true);
      } else {
        for (int i = thread; i < kTokens * runs * 2; i += kThreads) {
          const int run = i / 2 % runs;
          const int token = i / 2 / runs;
          CopyAsync16(
              to + static_cast<uint32_t>(token * token_bytes + run * (kGroupColumns * 2) + i % 2 * 16),
              from + part * kHcRunColumns + row(token) * width + run * run_step + i % 2 * 8, true);
        }
      }
    }
    if (++buffer_to_fill == kBuffers) buffer_to_fill = 0;
    CommitCopies();
  };
  for (int i = 0; i < kBuffers - 1; ++i) copy(i);

  // Number `which` of thread t's two is row t / 4 of the tile and column t % 4 of run 2 * step + which.
  for (int i = thread; i < 32 * steps * kTiles * 32; i += kThreads) {
    const int t = i % 32;
    const int tile = i / 32 % kTiles;
    const int step = i / 32 / kTiles % steps;
    const int of_lane = i / 32 / kTiles / steps;
    const int64_t row = min(first_row + tile * kRows + t / 4, p.num_rows - 1);
    const float* const from = p.fn + row * width + of_lane / 8 * p.dim + part * kHcRunColumns +
                              of_lane % 8 * 4 + t % 4 + 2 * step * run_step;
    matrix[i] = make_double2(static_cast<double>(from[0]), static_cast<double>(from[run_step]));
  }

  // Work on tiles from kFirst on, kOwn of them, and on squares. All warps come to as many barriers.
  const auto work = [&]<int kFirst, int kOwn, bool kSquares>() {
    using Own = Sums<kOwn, kSquares>;
    constexpr int kId = kFirst > 0 ? 1 : 0;
    int buffer = 0;
    const auto sum_of_group = [&](int chunk, Own& sums) {
      WaitForCopies<kBuffers - 2>();
      asm volatile("bar.sync 0, %0;" ::"n"(kThreads) : "memory");
      copy(chunk + kBuffers - 1);  // Buffer of the previous chunk.
      const unsigned char* x =
          tokens + (buffer * kTokens + half * 16 + group) * token_bytes + member * 8 + place * 2;
      if (++buffer == kBuffers) buffer = 0;
      const double2* b =
          matrix + ((group_of(chunk) * kMembers + member) * steps * kTiles + kFirst) * 32 + lane;
      // Squares of the first eight tokens, and what is none, and of the others.
      [[maybe_unused]] double below[4] = {};
      [[maybe_unused]] double above[4] = {};
#pragma unroll
      for (int tile = 0; tile < kOwn; ++tile) {
#pragma unroll
        for (double& sum : sums.of[tile]) sum = 0.0;
      }
      const auto load = [&](int token, int run) {
        const uint32_t bits =
            *reinterpret_cast<const uint16_t*>(x + token * token_bytes + run * (kGroupColumns * 2));
        return static_cast<double>(__uint_as_float(bits << 16));
      };
#pragma unroll(kRuns > 0 ? kRuns / 2 : 2)
      for (int step = 0; step < steps; ++step) {
        const double a[4] = {load(0, 2 * step), load(8, 2 * step), load(0, 2 * step + 1),
                             load(8, 2 * step + 1)};
#pragma unroll
        for (int tile = 0; tile < kOwn; ++tile) {
          const double2 rows = b[(step * kTiles + tile) * 32];
          AddDoubleProducts(sums.of[tile], a, rows.x, rows.y);
        }
        if constexpr (kSquares) {
          AddDoubleProducts(below, a, a[0], a[2]);
          AddDoubleProducts(above, a, a[1], a[3]);
        }
      }
      if constexpr (kSquares) {
        sums.of[kOwn][0] = below[0];
        sums.of[kOwn][1] = below[1];
        sums.of[kOwn][2] = above[2];
        sums.of[kOwn][3] = above[3];
      }
    };
    const auto add = [](Own& to, const Own& sums) {
#pragma unroll
      for (int k = 0; k < Own::kCount; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to.of[k][i] = sums.of[k][i] + to.of[k][i];
      }
    };

    for (int first = 0; first < chunks; first += kLaneGroups) {
      // Groups 0 and 4, 2 and 6, 1 and 5, 3 and 7.
      Own all;
      Own eight;
      Own four;
#pragma unroll(kRuns > 0 ? kLaneGroups / 2 : 1)
      for (int pair = 0; pair < kLaneGroups / 2; ++pair) {
        Own two;
        sum_of_group(first + 2 * pair, two);
        {
          Own other;
          sum_of_group(first + 2 * pair + 1, other);
          add(two, other);
        }
        if (pair % 2 == 0) {
          four = two;
          continue;
        }
        add(two, four);
        if (pair == 1) {
          eight = two;
        } else {
          all = two;
        }
      }
      add(all, eight);

      // Members 0 and 2, 1 and 3, then both.
      double* const shared = exchange + (half * (kTiles + 1) + kFirst) * (4 * 32) + lane;
      const auto meet = [&] { asm volatile("bar.sync %0, 128;" ::"r"(half * 2 + kId + 1) : "memory"); };
      const auto give = [&] {
#pragma unroll
        for (int k = 0; k < Own::kCount; ++k) {
#pragma unroll
          for (int i = 0; i < 4; ++i) shared[(k * 4 + i) * 32] = all.of[k][i];
        }
      };
      const auto take = [&] {
        Own other;
#pragma unroll
        for (int k = 0; k < Own::kCount; ++k) {
#pragma unroll
          for (int i = 0; i < 4; ++i) other.of[k][i] = shared[(k * 4 + i) * 32];
        }
        add(all, other);
      };
      meet();
      if (member == 2) give();
      meet();
      if (member == 0) take();
      meet();
      if (member == 3) give();
      meet();
      if (member == 1) {
        take();
        give();
      }
      meet();
      if (member != 0) continue;
      take();
      const int token = first / kLaneGroups * kTokens + half * 16 + group;
      double* const to = p.dots + (int64_t{first_token} + token) * (p.num_rows + 1) * p.num_parts + part;
      const auto store = [&](int above, int row, double sum) {
        if (token + above < num_tokens && row <= p.num_rows)
          to[(int64_t{above} * (p.num_rows + 1) + row) * p.num_parts] = sum;
      };
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int tile = 0; tile < kOwn; ++tile) {
          const int row = first_row + (kFirst + tile) * kRows + place * 2 + i % 2;
          if (row < p.num_rows) store(i / 2 * 8, row, all.of[tile][i]);
        }
        if constexpr (kSquares) {
          if (group == place * 2 + i % 2) store(i / 2 * 8, p.num_rows, all.of[kOwn][i]);
        }
      }
    }
  };
  if constexpr (Kind::kIsShared) {
    if (thread < kThreads / 2) {
      work.template operator()<0, kTiles - 1, false>();
    } else {
      work.template operator()<kTiles - 1, 1, true>();
    }
  } else if (first_row == 0) {
    work.template operator()<0, kTiles, true>();
  } else {
    work.template operator()<0, kTiles, false>();
  }
}

template <typename Kind>
void Launch(LaunchContext& context, const Params& params) {
  const auto row_blocks = static_cast<int64_t>(CeilDiv(params.num_rows, Kind::kTiles * kRows));
  const int64_t wanted = std::max<int64_t>(1, context.limits().num_sms / (params.num_parts * row_blocks));
  Params p = params;
  p.tokens_per_block = static_cast<int>(CeilDiv(CeilDiv(params.num_tokens, wanted), kTokens) * kTokens);
  const dim3 grid(static_cast<unsigned>(CeilDiv(params.num_tokens, p.tokens_per_block)),
                  static_cast<unsigned>(params.num_parts), static_cast<unsigned>(row_blocks));
  context.Launch(HcDotsKernel<Kind>, grid, Kind::kThreads, SharedBytes(Kind::kTiles, params.runs), p);
}

int Runs(int64_t dim) { return static_cast<int>(dim / (HcParts(dim) * kHcRunColumns)); }

}  // namespace

void LaunchHcDotsMma(LaunchContext& context, const TensorView& streams, const TensorView& fn, double* dots) {
  const int64_t dim = streams.shape[2];
  const Params params = {.streams = streams.as<const uint16_t>(),
                         .fn = fn.as<const float>(),
                         .dots = dots,
                         .dim = static_cast<int>(dim),
                         .num_rows = static_cast<int>(fn.shape[0]),
                         .num_parts = static_cast<int>(HcParts(dim)),
                         .runs = Runs(dim),
                         .num_tokens = static_cast<int>(streams.shape[0]),
                         .tokens_per_block = 0};
  if (params.num_rows <= kRows ||
      SharedBytes(ThreeTiles::kTiles, params.runs) > context.limits().shared_bytes) {
    Launch<OneTile>(context, params);
  } else if (params.runs == Flash::kRuns && params.num_rows <= Flash::kTiles * kRows) {
    Launch<Flash>(context, params);
  } else {
    Launch<ThreeTiles>(context, params);
  }
}

}  // namespace dsv4::backend::cuda
