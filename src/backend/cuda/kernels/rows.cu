#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/attention_cluster.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/compressor_rows.cuh"
#include "backend/cuda/kernels/hc_mix.h"
#include "backend/cuda/kernels/head_rows.h"
#include "backend/cuda/kernels/many_heads.h"
#include "backend/cuda/kernels/many_rows.h"
#include "backend/cuda/kernels/row_registers.cuh"
#include "backend/cuda/kernels/row_steps.cuh"
#include "backend/cuda/kernels/rows.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kMaxTracks = 8;
constexpr int kMaxSteps = 5;
// Where a block has its row.
enum class RowPlace : uint8_t { kShared, kRegisters, kPooledInRegisters, kNowhere };
// Rows, and what is done to each of them.
struct Track {
  RowsOperand rows;
  int num_steps;
  RowPlace place;
  signed char first[kNumRowStepKinds];  // The first step of a kind, or -1.
  RowStep steps[kMaxSteps];

  __device__ const RowStep* First(RowStepKind kind) const {
    const int i = first[static_cast<int>(kind)];
    return i < 0 ? nullptr : steps + i;
  }
};

struct Params {
  int num_tracks;
  int max_width;
  int max_frequencies;
  int first_blocks[kMaxTracks];  // Of tracks.
  Fault* fault;
  Track tracks[kMaxTracks];  // Last (LaunchList::AddArgument).
};
static_assert(offsetof(Params, tracks) + sizeof(Params::tracks) == sizeof(Params));
static_assert(offsetof(Track, steps) + sizeof(Track::steps) == sizeof(Track));

// The run that has a row: every thread of the block looks at one.
struct RunOfRow {
  int count;  // Of such runs: if there are several, `run` is none of them.
  StoredRun run;

  __device__ RunOfRow(const RowStep* store, int64_t row) {
    static_assert(kMaxJoinedRuns <= kNarrowRowThreads);
    __shared__ StoredRun found;
    count = 0;
    if (store == nullptr) return;
    StoredRun mine = {};
    if (threadIdx.x < store->runs.size) mine = store->runs[threadIdx.x];
    const bool has_row = row >= mine.begin && row < mine.end;
    count = __syncthreads_count(has_row);
    if (has_row && count == 1) found = mine;
    __syncthreads();
    if (count == 1) run = found;
  }
  // Calls write(destination's run) for all of them.
  template <typename Write>
  __device__ void ForEach(const RowStep& store, int64_t row, Write&& write) const {
    if (count == 1) return write(run);
#pragma unroll 1
    for (int64_t i = 0; count > 1 && i < store.runs.size; ++i) {
      const StoredRun other = store.runs[i];
      if (row >= other.begin && row < other.end) write(other);
    }
  }
};

// A row whose steps come in the order in which they stand here, each once (FitsRegisters). `kPools`: kPool is the first. Others do not
// have its registers.
template <bool kPools>
__device__ void StepsInRegisters(const Track& track, int64_t r, Fault* fault) {
  const RowsOperand& rows = track.rows;
  const int width = static_cast<int>(rows.width);
  const auto t = static_cast<int>(threadIdx.x);
  // Weights, positions, frequencies and lists of runs come from the host, and no kernel in flight writes them.
  const RowStep* const norm = track.First(RowStepKind::kRmsNorm);
  RegisterRow::Values weights;
  if (norm != nullptr) RegisterRow::LoadWeights(weights, norm->weight, width);
  const RowStep* const store = track.First(RowStepKind::kStore);
  const RunOfRow runs(store, r);
  const RowStep* const rope = track.First(RowStepKind::kRope);
  int32_t position = 0;
  double2 rotation = {};
  if (rope != nullptr) {
    position = rope->positions[static_cast<uint32_t>(r) / static_cast<uint32_t>(rope->group)];
    // Of the only one of the thread's columns that may be among those rotated.
    const int begin = width - 2 * rope->num_columns;
    const int column = begin / RegisterRow::kThreads * RegisterRow::kThreads + t;
    if (position >= 0 && column >= begin && column < width)
      rotation = Rotation(position, rope->weight[(column - begin) / 2], rope->inverse);
  }
  // So that arguments are in the cache of constants by then, wherever the compiler reads them.
  const RowStep* const simulate = track.First(RowStepKind::kSimulateFp8);
  const int simulated = simulate != nullptr ? simulate->num_columns : 0;
  asm volatile("" ::"r"(simulated), "l"(rows.in), "l"(rows.out));
  RegisterRow row(width);
  if constexpr (kPools) {
    extern __shared__ __align__(16) unsigned char shared[];
    const PooledRow pooled(rows, track.steps[0], r, reinterpret_cast<float*>(shared));
    pooled.AskForApe();
    WaitForKernelsBefore();
    pooled.Pool(row);
  } else {
    WaitForKernelsBefore();
    row.Load(static_cast<const uint16_t*>(rows.in) + r * rows.in_stride);
  }
  if (norm != nullptr) row.RmsNorm(weights, norm->factor);
  if (const RowStep* const step = track.First(RowStepKind::kHeadRmsNorm); step != nullptr)
    row.HeadRmsNorm(step->factor);
  if (rope != nullptr) {
    if (position >= 0) {
      row.Rope(rotation, rope->num_columns);
    } else if (t == 0 && r % rope->group == 0) {
      ReportFault(fault, FaultKind::kPosition, r / rope->group, 0, position, 0);
    }
  }
  if (simulated > 0) row.SimulateFp8(simulated);
  if (track.First(RowStepKind::kHadamardFp4) != nullptr) row.HadamardFp4();
  if (const RowStep* const step = track.First(RowStepKind::kScale); step != nullptr) row.Scale(step->factor);
  if (store != nullptr) {
    runs.ForEach(*store, r, [&](const StoredRun& run) {
      row.Write(reinterpret_cast<uint16_t*>(run.destination) + (r - run.begin) * width);
    });
  }
  row.Write(static_cast<uint16_t*>(rows.out) + r * rows.out_stride);
}

// The same for any steps, in shared memory.
template <int kThreads>
__device__ void StepsInSharedMemory(const Params& p, const Track& track, int64_t r) {
  extern __shared__ __align__(16) unsigned char shared[];
  // [max_frequencies], [max_width], [max_width]: where a step needs doubles, they come last.
  auto* const rotations = reinterpret_cast<double2*>(shared);
  auto* const row = reinterpret_cast<float*>(rotations + p.max_frequencies);
  auto* const wide = reinterpret_cast<double*>(row + (p.max_width + 1) / 2 * 2);
  const RowsOperand& rows = track.rows;
  const int width = static_cast<int>(rows.width);
  const int t = static_cast<int>(threadIdx.x);
  // As above. A track has one rotation, and is quick about one norm and one store.
  int32_t position = 0;
  float frequency = 0.0F;
  const RowStep* const rope = track.First(RowStepKind::kRope);
  if (rope != nullptr) {
    position = rope->positions[static_cast<uint32_t>(r) / static_cast<uint32_t>(rope->group)];
    if (t < rope->num_columns) frequency = rope->weight[t];
  }
  const RowStep* const norm = track.First(RowStepKind::kRmsNorm);
  RowWeights weights;
  if (norm != nullptr) AskForWeights<kThreads>(weights, norm->weight, width);
  const RowStep* const store = track.First(RowStepKind::kStore);
  const RunOfRow runs(store, r);
  WaitForKernelsBefore();

  const auto* const in =
      static_cast<const std::byte*>(rows.in) + r * rows.in_stride * (rows.in_is_bf16 ? 2 : 4);
  auto* const out = static_cast<std::byte*>(rows.out) + r * rows.out_stride * (rows.out_is_bf16 ? 2 : 4);
  const bool is_bf16 = rows.out_is_bf16;
  LoadRow<kThreads>(row, in, rows.in_is_bf16, width, [&] {
    if (rope == nullptr || position < 0) return;
    if (t < rope->num_columns) rotations[t] = Rotation(position, frequency, rope->inverse);
#pragma unroll 1
    for (int i = t + kThreads; i < rope->num_columns; i += kThreads)
      rotations[i] = Rotation(position, rope->weight[i], rope->inverse);
  });
#pragma unroll 1
  for (int s = 0; s < track.num_steps; ++s) {
    const RowStep& step = track.steps[s];
    switch (step.kind) {
      case RowStepKind::kRmsNorm:
        if (&step != norm) AskForWeights<kThreads>(weights, step.weight, width);
        RmsNormRow<kThreads>(row, width, step.weight, weights, step.factor, is_bf16);
        break;
      case RowStepKind::kHeadRmsNorm:
        HeadRmsNormRow<kThreads>(row, width, step.factor, is_bf16);
        break;
      case RowStepKind::kRope:
        if (position >= 0) {
          RopeRow<kThreads>(row, width, rotations, step.num_columns, is_bf16);
        } else if (t == 0 && r % step.group == 0) {
          ReportFault(p.fault, FaultKind::kPosition, r / step.group, 0, position, 0);
        }
        break;
      case RowStepKind::kSimulateFp8:
        SimulateFp8Row<kThreads>(row, step.num_columns, step.group, is_bf16);
        break;
      case RowStepKind::kHadamardFp4:
        HadamardFp4Row<kThreads>(row, wide, width, is_bf16);
        break;
      case RowStepKind::kScale:
#pragma unroll 1
        for (int i = t; i < width; i += kThreads)
          row[i] = is_bf16 ? RoundToBf16(row[i] * step.factor) : row[i] * step.factor;
        __syncthreads();
        break;
      case RowStepKind::kStore:
        (&step == store ? runs : RunOfRow(&step, r)).ForEach(step, r, [&](const StoredRun& run) {
          WriteRow<kThreads>(row, run.destination + (r - run.begin) * width * (is_bf16 ? 2 : 4), is_bf16,
                             width);
        });
        break;
      case RowStepKind::kPool:
      case RowStepKind::kHistory:
        break;
    }
  }
  WriteRow<kThreads>(row, out, is_bf16, width);
}

// One block a row.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) RowsKernel(const __grid_constant__ Params p) {
  LetNextKernelStart();
  const int block = static_cast<int>(blockIdx.x);
  int number = 0;
#pragma unroll
  for (int i = 1; i < kMaxTracks; ++i) {
    if (i < p.num_tracks && p.first_blocks[i] <= block) number = i;
  }
  const Track& track = p.tracks[number];
  const int64_t r = block - p.first_blocks[number];
  if (track.place == RowPlace::kNowhere) {
    StoreHistory<kThreads>(track.rows, track.steps[0], r);
    return;
  }
  if constexpr (kThreads == RegisterRow::kThreads) {
    if (track.place == RowPlace::kRegisters) {
      StepsInRegisters<false>(track, r, p.fault);
      return;
    }
    if (track.place == RowPlace::kPooledInRegisters) {
      StepsInRegisters<true>(track, r, p.fault);
      return;
    }
  }
  StepsInSharedMemory<kThreads>(p, track, r);
}

static_assert(sizeof(Params) <= 4000);  // Arguments of a launch.

// Whether `next` goes on with what `track` leaves.
bool GoesOn(const RowsOperand& track, const RowsOperand& next) {
  return track.out != nullptr && next.in == track.out && next.out == track.out && next.width == track.width &&
         next.num_rows == track.num_rows && next.in_is_bf16 == track.out_is_bf16 &&
         next.out_is_bf16 == track.out_is_bf16 &&
         (track.num_rows == 1 || (next.in_stride == track.out_stride && next.out_stride == track.out_stride));
}

}  // namespace

// The last launch of row steps, which another may join.
struct OpenRows {
  uint64_t launch = 0;
  int64_t num_blocks = 0;
  Params params;
  std::vector<std::pair<int, MemoryRange>> touched;  // By track.
};

namespace {

// What head_rows.h makes of a launch, if it takes all of it: one track of many rows.
std::optional<HeadRows> HeadRowsOf(const Params& p) {
  const Track& track = p.tracks[0];
  const RowsOperand& rows = track.rows;
  if (p.num_tracks != 1 || rows.num_rows < kManyHeadRows || !rows.in_is_bf16 || !rows.out_is_bf16 ||
      !FitsHeadRows(rows.width, rows.in, rows.in_stride, rows.out, rows.out_stride)) {
    return std::nullopt;
  }
  HeadRows heads = {.in = static_cast<const uint16_t*>(rows.in),
                    .out = static_cast<uint16_t*>(rows.out),
                    .in_stride = rows.in_stride,
                    .out_stride = rows.out_stride,
                    .frequencies = nullptr,
                    .positions = nullptr,
                    .fault = p.fault,
                    .num_rows = rows.num_rows,
                    .width = static_cast<int>(rows.width),
                    .group = 1,
                    .eps = 0.0F,
                    .has_norm = false,
                    .has_rope = false,
                    .inverse = false,
                    .has_hadamard = false};
  for (const RowStep& step : std::span(track.steps, static_cast<size_t>(track.num_steps))) {
    if (step.kind == RowStepKind::kHeadRmsNorm && !heads.has_norm && !heads.has_rope && !heads.has_hadamard) {
      heads.has_norm = true;
      heads.eps = step.factor;
    } else if (step.kind == RowStepKind::kRope && !heads.has_rope && !heads.has_hadamard &&
               2 * step.num_columns == kRotatedColumns && step.group % kHeadRowsOfWarp == 0) {
      heads.has_rope = true;
      heads.inverse = step.inverse;
      heads.frequencies = step.weight;
      heads.positions = step.positions;
      heads.group = step.group;
    } else if (step.kind == RowStepKind::kHadamardFp4 && !heads.has_hadamard && rows.width == 128) {
      heads.has_hadamard = true;
    } else {
      return std::nullopt;
    }
  }
  return heads;
}

// The same of many_rows.h.
std::optional<ManyRows> ManyRowsOf(const Params& p) {
  const Track& track = p.tracks[0];
  const RowsOperand& rows = track.rows;
  if (p.num_tracks != 1 || rows.num_rows < kManyRows || !rows.in_is_bf16 || !rows.out_is_bf16 ||
      track.steps[0].kind != RowStepKind::kRmsNorm) {
    return std::nullopt;
  }
  ManyRows many = {.in = static_cast<const uint16_t*>(rows.in),
                   .out = static_cast<uint16_t*>(rows.out),
                   .in_stride = rows.in_stride,
                   .out_stride = rows.out_stride,
                   .num_rows = rows.num_rows,
                   .width = static_cast<int>(rows.width),
                   .eps = track.steps[0].factor,
                   .weight = track.steps[0].weight,
                   .positions = nullptr,
                   .frequencies = nullptr,
                   .group = 1,
                   .inverse = false,
                   .num_simulated = 0,
                   .runs = {},
                   .fault = p.fault};
  for (const RowStep& step : std::span(track.steps, static_cast<size_t>(track.num_steps)).subspan(1)) {
    const bool stored = many.runs.size > 0;
    if (step.kind == RowStepKind::kRope && many.positions == nullptr && many.num_simulated == 0 && !stored &&
        2 * step.num_columns == kManyRowsRotated) {
      many.positions = step.positions;
      many.frequencies = step.weight;
      many.group = step.group;
      many.inverse = step.inverse;
    } else if (step.kind == RowStepKind::kSimulateFp8 && many.num_simulated == 0 && !stored &&
               step.group == kManyRowsGroup && step.num_columns % kManyRowsGroup == 0) {
      many.num_simulated = step.num_columns;
    } else if (step.kind == RowStepKind::kStore && !stored && step.runs.size > 0) {
      many.runs = step.runs;
    } else {
      return std::nullopt;
    }
  }
  return HasManyRows(many) ? std::optional(many) : std::nullopt;
}

// Whether each step comes once, in the order of StepsInRegisters, and is one of RegisterRow's.
bool FitsRegisters(const Track& track) {
  const RowsOperand& rows = track.rows;
  if (!rows.in_is_bf16 || !rows.out_is_bf16 || rows.width > kMaxRegisterRow) return false;
  constexpr RowStepKind kOrder[] = {RowStepKind::kPool,  RowStepKind::kRmsNorm,     RowStepKind::kHeadRmsNorm,
                                    RowStepKind::kRope,  RowStepKind::kSimulateFp8, RowStepKind::kHadamardFp4,
                                    RowStepKind::kScale, RowStepKind::kStore};
  const RowStepKind* next = std::begin(kOrder);
  for (const RowStep& step : std::span(track.steps, static_cast<size_t>(track.num_steps))) {
    next = std::find(next, std::end(kOrder), step.kind);
    if (next == std::end(kOrder)) return false;
    ++next;
    const int64_t rotated = rows.width - 2 * int64_t{step.num_columns};
    const bool fits = step.kind == RowStepKind::kRope
                          ? rows.width % 2 == 0 && rotated >= 0 &&
                                rotated / RegisterRow::kThreads == (rows.width - 1) / RegisterRow::kThreads
                      : step.kind == RowStepKind::kSimulateFp8
                          ? step.group == kRegisterGroup && step.num_columns % kRegisterGroup == 0
                      : step.kind == RowStepKind::kHadamardFp4 ? rows.width == kRegisterHadamard
                                                               : true;
    if (!fits) return false;
  }
  // One sum a block.
  return track.first[static_cast<int>(RowStepKind::kRmsNorm)] < 0 ||
         track.first[static_cast<int>(RowStepKind::kHeadRmsNorm)] < 0;
}

void AddStep(Track& track, const RowStep& step) {
  signed char& first = track.first[static_cast<int>(step.kind)];
  if (first < 0) first = static_cast<signed char>(track.num_steps);
  track.steps[track.num_steps++] = step;
  track.place = step.kind == RowStepKind::kHistory          ? RowPlace::kNowhere
                : !FitsRegisters(track)                     ? RowPlace::kShared
                : track.steps[0].kind == RowStepKind::kPool ? RowPlace::kPooledInRegisters
                                                            : RowPlace::kRegisters;
}

// The launch with one more step; false if it must be another launch.
bool Join(OpenRows& open, const RowsOperand& rows, const RowStep& step, std::span<const MemoryRange> touches,
          const void* beside) {
  Params& p = open.params;
  if (p.num_tracks > 0 && (rows.width <= kMaxNarrowRow) != (p.max_width <= kMaxNarrowRow)) return false;
  int number = 0;
  while (number < p.num_tracks && !GoesOn(p.tracks[number].rows, rows)) ++number;
  if (number == kMaxTracks) return false;
  // Rows of many heads stay by themselves, and so do those of many tokens.
  const bool heads = step.kind == RowStepKind::kHeadRmsNorm || step.kind == RowStepKind::kRope ||
                     step.kind == RowStepKind::kHadamardFp4;
  if (number == p.num_tracks && number > 0 &&
      ((heads && rows.num_rows >= kManyHeadRows) || HeadRowsOf(p).has_value() ||
       (step.kind == RowStepKind::kRmsNorm && rows.num_rows >= kManyRows) || ManyRowsOf(p).has_value())) {
    return false;
  }
  std::vector<std::pair<int, MemoryRange>> touched;
  for (const MemoryRange& range : touches) touched.emplace_back(number, range);
  Track& track = p.tracks[number];
  if (number < p.num_tracks) {
    const std::span<const RowStep> steps(track.steps, static_cast<size_t>(track.num_steps));
    const bool second_rope =
        step.kind == RowStepKind::kRope &&
        std::ranges::any_of(steps, [](const RowStep& s) { return s.kind == RowStepKind::kRope; });
    if (track.num_steps == kMaxSteps || second_rope) return false;
  } else {
    touched.emplace_back(number,
                         RangeOfRows(rows.in, rows.in_stride, rows.width, rows.in_is_bf16, rows.num_rows));
    touched.emplace_back(number,
                         RangeOfRows(rows.out, rows.out_stride, rows.width, rows.out_is_bf16, rows.num_rows));
  }
  for (const auto& [track_of, range] : open.touched) {
    if (beside != nullptr && p.tracks[track_of].rows.out == beside) continue;
    for (const auto& [mine, next] : touched) {
      if (track_of != mine && Overlap(range, next)) return false;
    }
  }
  open.touched.insert(open.touched.end(), touched.begin(), touched.end());
  if (number == p.num_tracks) {
    track = {};
    track.rows = rows;
    std::ranges::fill(track.first, static_cast<signed char>(-1));
    p.first_blocks[p.num_tracks] = static_cast<int>(open.num_blocks);
    open.num_blocks += rows.num_rows;
    ++p.num_tracks;
  }
  AddStep(track, step);
  // Nothing else pools.
  if (track.steps[0].kind == RowStepKind::kPool && track.place != RowPlace::kPooledInRegisters) return false;
  p.max_width = std::max(p.max_width, static_cast<int>(rows.width));
  if (step.kind == RowStepKind::kRope) p.max_frequencies = std::max(p.max_frequencies, step.num_columns);
  return true;
}

uint64_t Launch(CudaContext& context, const OpenRows& rows, uint64_t before) {
  const Params& p = rows.params;
  bool doubles = false;
  size_t pooled_bytes = 0;
  for (const Track& track : std::span(p.tracks, static_cast<size_t>(p.num_tracks))) {
    for (const RowStep& step : std::span(track.steps, static_cast<size_t>(track.num_steps)))
      doubles = doubles || step.kind == RowStepKind::kHadamardFp4;
    if (track.steps[0].kind == RowStepKind::kPool)
      pooled_bytes = std::max(pooled_bytes, PooledRowBytes(track.rows.width));
  }
  const size_t width = static_cast<size_t>(p.max_width + 1) / 2 * 2;
  const size_t shared_bytes =
      std::max(pooled_bytes, static_cast<size_t>(p.max_frequencies) * sizeof(double2) +
                                 width * (sizeof(float) + (doubles ? sizeof(double) : 0)));
  if (const std::optional<HeadRows> heads = HeadRowsOf(p); heads.has_value())
    return LaunchHeadRows(context, *heads, before);
  if (const std::optional<ManyRows> many = ManyRowsOf(p); many.has_value())
    return LaunchManyRows(context, *many, before);
  const auto grid = static_cast<unsigned>(rows.num_blocks);
  if (p.max_width <= kMaxNarrowRow) {
    return context.queue().LaunchInPlaceOf(before, RowsKernel<kNarrowRowThreads>, grid, kNarrowRowThreads,
                                           shared_bytes, p);
  }
  return context.queue().LaunchInPlaceOf(before, RowsKernel<kWideRowThreads>, grid, kWideRowThreads,
                                         shared_bytes, p);
}

}  // namespace

Status AddRowStep(CudaContext& context, const RowsOperand& rows, const RowStep& step,
                  std::span<const MemoryRange> touches, const void* beside) {
  if (rows.num_rows == 0 || rows.width == 0) return {};
  if (rows.width > kMaxRowWidth) {
    return Unimplemented("this backend takes rows of up to 16384 elements, not " +
                         std::to_string(rows.width));
  }
  std::shared_ptr<OpenRows>& open = context.open_rows();
  if (open != nullptr && open->launch != 0) {
    auto joined = std::make_shared<OpenRows>(*open);
    if (Join(*joined, rows, step, touches, beside)) {
      joined->launch = Launch(context, *joined, open->launch);
      if (joined->launch != 0) {
        open = std::move(joined);
        return {};
      }
    }
  }
  open = std::make_shared<OpenRows>();
  open->params = {};
  open->params.fault = context.fault();
  Join(*open, rows, step, touches, beside);
  open->launch = Launch(context, *open, 0);
  return {};
}

bool ContinuesRows(CudaContext& context, const RowsOperand& rows) {
  const std::shared_ptr<OpenRows>& open = context.open_rows();
  if (open == nullptr || !context.queue().IsLastLaunch(open->launch)) return false;
  const Params& p = open->params;
  return std::ranges::any_of(std::span(p.tracks, static_cast<size_t>(p.num_tracks)),
                             [&](const Track& track) { return GoesOn(track.rows, rows); });
}

// --- The ops ---------------------------------------------------------------------------------------------------------

namespace {

bool IsBf16(const TensorView& x) { return x.dtype == DType::kBF16; }

// Rows in place, `width` elements each, of a contiguous x.
RowsOperand InPlace(const TensorView& x, int64_t width) {
  return {.in = x.data,
          .in_stride = width,
          .out = x.data,
          .out_stride = width,
          .num_rows = x.num_elements() / width,
          .width = width,
          .in_is_bf16 = IsBf16(x),
          .out_is_bf16 = IsBf16(x)};
}

}  // namespace

Status RmsNorm(CudaContext& context, const ops::RmsNormArgs& args) {
  if (args.x.num_elements() == 0 || NormJoinsHcPre(context, args)) return {};
  const RowsOperand rows = {.in = args.x.data,
                            .in_stride = args.x.strides[0],
                            .out = args.y.data,
                            .out_stride = args.y.strides[0],
                            .num_rows = args.x.shape[0],
                            .width = args.x.shape[1],
                            .in_is_bf16 = IsBf16(args.x),
                            .out_is_bf16 = IsBf16(args.y)};
  return AddRowStep(
      context, rows,
      {.kind = RowStepKind::kRmsNorm, .factor = args.eps, .weight = args.weight.as<const float>()});
}

Status HeadRmsNorm(CudaContext& context, const ops::HeadRmsNormArgs& args) {
  if (args.x.num_elements() == 0) return {};
  if (HasManyHeads(args)) return HeadRmsNormOfMany(context, args);
  RowsOperand rows = InPlace(args.x, args.x.shape[2]);
  rows.out = args.y.data;
  return AddRowStep(context, rows, {.kind = RowStepKind::kHeadRmsNorm, .factor = args.eps});
}

Status Rope(CudaContext& context, const ops::RopeArgs& args) {
  if (args.x.num_elements() == 0 || args.frequencies.shape[0] == 0) return {};
  if (RopeJoinsAttention(context, args)) return {};
  if (HasManyHeads(args)) return RopeOfMany(context, args);
  return AddRowStep(context, InPlace(args.x, args.x.shape[2]),
                    {.kind = RowStepKind::kRope,
                     .inverse = args.inverse,
                     .num_columns = static_cast<int>(args.frequencies.shape[0]),
                     .group = static_cast<int>(args.x.shape[1]),
                     .weight = args.frequencies.as<const float>(),
                     .positions = args.positions.as<const int32_t>()});
}

Status SimulateFp8(CudaContext& context, const ops::SimulateFp8Args& args) {
  if (args.x.shape[0] == 0 || args.num_columns == 0) return {};
  RowsOperand rows = InPlace(args.x, args.x.shape[1]);
  rows.in_stride = rows.out_stride = args.x.strides[0];
  return AddRowStep(context, rows,
                    {.kind = RowStepKind::kSimulateFp8,
                     .num_columns = static_cast<int>(args.num_columns),
                     .group = static_cast<int>(args.group)});
}

Status HadamardFp4(CudaContext& context, const ops::HadamardFp4Args& args) {
  if (args.x.num_elements() == 0) return {};
  return AddRowStep(context, InPlace(args.x, args.x.shape[1]), {.kind = RowStepKind::kHadamardFp4});
}

}  // namespace dsv4::backend::cuda
