// A dot product is what a warp of hyper_connection.cu sums in a part of the columns: each of 32 lanes has four columns of every run and
// adds their products one by one; the lanes' sums meet as a tree. The unit's step m16n8k8 adds eight products of a row one by one too,
// in ascending order and with fma's rounding, so a lane's sum of 16 tokens and eight rows is as many steps as it has pairs of runs.
//
// A block has a part, the matrix there as doubles in shared memory, in the order in which steps read it. Four warps take 16 tokens: of
// each four lanes that follow each other one is a warp's, so a warp goes through eight lanes, in the order in which a tree of them
// needs the fewest sums at once. The tokens are also the second operand of two more steps, whose diagonals are their squares.
#include <algorithm>

#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/double_products.cuh"
#include "backend/cuda/kernels/hc_dots.h"
#include "backend/cuda/kernels/hc_mix.h"
#include "backend/cuda/kernels/hopper.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 32;        // At a time.
constexpr int kLaneGroups = 8;     // Of four lanes.
constexpr int kGroupColumns = 16;  // Of a run.
constexpr int kRows = 8;           // Of the matrix, a step.
constexpr int kBuffers = 3;
constexpr size_t kMostShared = 227 * 1024;

// Sums of a thread: rows of the matrix, four doubles a step, then squares.
template <int kTiles>
struct Sums {
  double rows[kTiles][4];
  double squares[4];
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

// Bytes of a token's columns of a group of lanes, with a gap that spreads tokens over banks.
__host__ __device__ constexpr int TokenBytes(int runs) { return runs * kGroupColumns * 2 + 16; }

constexpr size_t SharedBytes(int tiles, int runs) {
  const size_t matrix =
      static_cast<size_t>(tiles) * static_cast<size_t>(runs) * 32 * 4 * kRows * sizeof(double);
  const size_t tokens = static_cast<size_t>(kBuffers) * kTokens * static_cast<size_t>(TokenBytes(runs));
  const size_t exchange = size_t{2} * 32 * static_cast<size_t>(tiles * 4 + 4) * sizeof(double);
  return matrix + tokens + exchange;
}

// Grid: tokens by tokens_per_block, parts, rows by kTiles * kRows.
template <int kTiles>
__global__ void __launch_bounds__(kThreads, 1) DotsKernel(const __grid_constant__ Params p) {
  BeginKernel();
  extern __shared__ __align__(16) unsigned char raw[];
  // [lane][step][tile][thread of a warp]: both of its numbers.
  auto* const matrix = reinterpret_cast<double2*>(raw);
  const int steps = p.runs / 2;
  const int token_bytes = TokenBytes(p.runs);
  unsigned char* const tokens = raw + static_cast<size_t>(32 * steps * kTiles * 32) * sizeof(double2);
  auto* const exchange = reinterpret_cast<double*>(tokens + kBuffers * kTokens * token_bytes);

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int group = lane / 4;
  const int place = lane % 4;
  const int member = thread / 32 % 4;  // Of the four lanes, the one that is this warp's.
  const int half = thread / 128;       // Which 16 tokens.
  const int part = static_cast<int>(blockIdx.y);
  const int first_row = static_cast<int>(blockIdx.z) * kTiles * kRows;
  const bool has_squares = first_row == 0;
  const int64_t width = int64_t{4} * p.dim;
  const int run_step = p.num_parts * kHcRunColumns;

  const int first_token = static_cast<int>(blockIdx.x) * p.tokens_per_block;
  const int num_tokens = min(p.tokens_per_block, p.num_tokens - first_token);
  const int chunks = (num_tokens + kTokens - 1) / kTokens * kLaneGroups;
  // Groups in the tree's order: bits reversed.
  const auto group_of = [](int chunk) { return chunk % 2 * 4 + chunk / 2 % 2 * 2 + chunk / 4 % 2; };
  const auto copy = [&](int chunk) {
    if (chunk < chunks) {
      const int lanes = group_of(chunk);
      const uint16_t* const from =
          p.streams + lanes / 2 * p.dim + part * kHcRunColumns + lanes % 2 * kGroupColumns;
      const uint32_t to = SharedAddress(tokens + chunk % kBuffers * kTokens * token_bytes);
      for (int i = thread; i < kTokens * p.runs * 2; i += kThreads) {
        const int piece = i % 2;
        const int run = i / 2 % p.runs;
        const int token = i / 2 / p.runs;
        const int64_t row = first_token + min(chunk / kLaneGroups * kTokens + token, num_tokens - 1);
        CopyAsync16(to + token * token_bytes + run * (kGroupColumns * 2) + piece * 16,
                    from + row * width + run * run_step + piece * 8, true);
      }
    }
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

  const auto sum_of_group = [&](int chunk, Sums<kTiles>& sums) {
    WaitForCopies<kBuffers - 2>();
    __syncthreads();
    copy(chunk + kBuffers - 1);  // Where the chunk before was.
    const unsigned char* x =
        tokens + (chunk % kBuffers * kTokens + half * 16 + group) * token_bytes + member * 8 + place * 2;
    const double2* b = matrix + (group_of(chunk) * 4 + member) * steps * kTiles * 32 + lane;
    double below[4] = {};  // Squares of the first eight tokens, and what is none,
    double above[4] = {};  // and of the others.
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.rows[tile][i] = 0.0;
    }
    const auto load = [&](int token, int run) {
      const uint32_t bits =
          *reinterpret_cast<const uint16_t*>(x + token * token_bytes + run * (kGroupColumns * 2));
      return static_cast<double>(__uint_as_float(bits << 16));
    };
#pragma unroll 2
    for (int step = 0; step < steps; ++step) {
      const double a[4] = {load(0, 2 * step), load(8, 2 * step), load(0, 2 * step + 1),
                           load(8, 2 * step + 1)};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const double2 rows = *b;
        b += 32;
        AddDoubleProducts(sums.rows[tile], a, rows.x, rows.y);
      }
      if (has_squares) {
        AddDoubleProducts(below, a, a[0], a[2]);
        AddDoubleProducts(above, a, a[1], a[3]);
      }
    }
    sums.squares[0] = below[0];
    sums.squares[1] = below[1];
    sums.squares[2] = above[2];
    sums.squares[3] = above[3];
  };
  const auto add = [](Sums<kTiles>& to, const Sums<kTiles>& sums) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) to.rows[tile][i] = sums.rows[tile][i] + to.rows[tile][i];
      to.squares[i] = sums.squares[i] + to.squares[i];
    }
  };

  for (int first = 0; first < chunks; first += kLaneGroups) {
    // Groups 0 and 4, 2 and 6, 1 and 5, 3 and 7.
    Sums<kTiles> all;
    Sums<kTiles> eight;
    Sums<kTiles> four;
#pragma unroll 1
    for (int pair = 0; pair < kLaneGroups / 2; ++pair) {
      Sums<kTiles> two;
      sum_of_group(first + 2 * pair, two);
      {
        Sums<kTiles> other;
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
    double* const shared = exchange + half * (32 * (kTiles * 4 + 4)) + lane;
    const auto meet = [&] { asm volatile("bar.sync %0, 128;" ::"r"(half + 1) : "memory"); };
    const auto give = [&] {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) shared[(tile * 4 + i) * 32] = all.rows[tile][i];
        shared[(kTiles * 4 + i) * 32] = all.squares[i];
      }
    };
    const auto take = [&] {
      Sums<kTiles> other;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) other.rows[tile][i] = shared[(tile * 4 + i) * 32];
        other.squares[i] = shared[(kTiles * 4 + i) * 32];
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
      for (int tile = 0; tile < kTiles; ++tile) {
        const int row = first_row + tile * kRows + place * 2 + i % 2;
        if (row < p.num_rows) store(i / 2 * 8, row, all.rows[tile][i]);
      }
      if (has_squares && group == place * 2 + i % 2) store(i / 2 * 8, p.num_rows, all.squares[i]);
    }
  }
}

template <int kTiles>
void Launch(CudaContext& context, const Params& params) {
  const auto row_blocks = static_cast<int64_t>(CeilDiv(params.num_rows, kTiles * kRows));
  const int64_t wanted =
      std::max<int64_t>(1, context.queue().num_processors() / (params.num_parts * row_blocks));
  Params p = params;
  p.tokens_per_block = static_cast<int>(CeilDiv(CeilDiv(params.num_tokens, wanted), kTokens) * kTokens);
  const dim3 grid(static_cast<unsigned>(CeilDiv(params.num_tokens, p.tokens_per_block)),
                  static_cast<unsigned>(params.num_parts), static_cast<unsigned>(row_blocks));
  context.Launch(DotsKernel<kTiles>, grid, kThreads, SharedBytes(kTiles, params.runs), p);
}

int Runs(int64_t dim) { return static_cast<int>(dim / (HcParts(dim) * kHcRunColumns)); }

}  // namespace

bool HasHcDotsMma(const TensorView& streams, const TensorView& fn) {
  const int runs = Runs(streams.shape[2]);
  return streams.dtype == DType::kBF16 && HasHcRuns(streams, fn) && runs % 2 == 0 &&
         SharedBytes(1, runs) <= kMostShared;
}

void LaunchHcDotsMma(CudaContext& context, const TensorView& streams, const TensorView& fn, double* dots) {
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
  if (params.num_rows > kRows && SharedBytes(3, params.runs) <= kMostShared) {
    Launch<3>(context, params);
  } else {
    Launch<1>(context, params);
  }
}

}  // namespace dsv4::backend::cuda
