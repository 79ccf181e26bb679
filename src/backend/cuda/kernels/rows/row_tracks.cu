// Kernel of fused steps on rows: a block for each row of a track, steps in registers or in shared memory.
#include <algorithm>
#include <cstddef>
#include <span>

#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/device/sync/stage_times.cuh"
#include "backend/cuda/kernels/rows/compressor_rows.cuh"
#include "backend/cuda/kernels/rows/row_registers.cuh"
#include "backend/cuda/kernels/rows/row_steps.cuh"
#include "backend/cuda/kernels/rows/row_tracks.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

// The run that has a row: every thread of the block looks at one.
struct RunOfRow {
  int count;  // Count of such runs: if there are several, `run` is none of them.
  StoredRun run = {};

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
  // Calls write(destination's run) for all of them, by one call: what it does would be fetched again for
  // another.
  template <typename Write>
  __device__ __forceinline__ void ForEach(const RowStep& store, int64_t row, Write&& write) const {
    StoredRun next = run;
    int64_t i = 0;
#pragma unroll 1
    for (int left = count; left > 0; --left) {
      if (count > 1) {
        do {
          next = store.runs[i++];
        } while (row < next.begin || row >= next.end);
      }
      write(next);
    }
  }
};

// A row whose steps come in this order, each once (FitsRegisters). An entry that is pooled first goes the
// same way as all other rows. Code of its own for the steps behind would be fetched for it alone.
__device__ void StepsInRegisters(const RowTrack& track, int64_t r, Fault* fault) {
  extern __shared__ __align__(16) unsigned char shared[];
  const RowsOperand& rows = track.rows;
  const int width = static_cast<int>(rows.width);
  const auto t = static_cast<int>(threadIdx.x);
  // Weights, positions, frequencies and lists of runs come from the host, and no kernel in flight writes them. All are asked for before any
  // is waited for.
  const RowStep* const norm = track.First(RowStepKind::kRmsNorm);
  RegisterRow::Values weights;
  if (norm != nullptr) RegisterRow::LoadWeights(weights, norm->weight, width);
  const bool pools = track.place == RowPlace::kPooledInRegisters;
  if (pools) PooledRow::Prefetch(track.steps[0]);
  const RowStep* const rope = track.First(RowStepKind::kRope);
  int32_t position = 0;
  bool rotates = false;
  float frequency = 0.0F;
  if (rope != nullptr) {
    position = rope->positions[static_cast<uint32_t>(r) / static_cast<uint32_t>(rope->group)];
    // First of the thread's columns that may be rotated.
    const int begin = width - 2 * rope->num_columns;
    const int column = begin / RegisterRow::kThreads * RegisterRow::kThreads + t;
    rotates = column >= begin && column < width;
    if (rotates) frequency = rope->weight[(column - begin) / 2];
  }
  const RowStep* const store = track.First(RowStepKind::kStore);
  const RunOfRow runs(store, r);
  double2 rotation = {};
  if (rotates && position >= 0) rotation = Rotation(position, frequency, rope->inverse);
  // So that arguments are in the cache of constants by then, wherever the compiler reads them.
  const RowStep* const simulate = track.First(RowStepKind::kSimulateFp8);
  const int simulated = simulate != nullptr ? simulate->num_columns : 0;
  asm volatile("" ::"r"(simulated), "l"(rows.in), "l"(rows.out));
  RegisterRow row(width);
  if (pools) {
    const PooledRow pooled(rows, track.steps[0], r, reinterpret_cast<float*>(shared));
    pooled.AskForApe();
    MarkStage(Stage::kAsked);
    WaitForKernelsBefore();
    MarkStage(Stage::kInput);
    const float4 entry = pooled.Pool();
    row.Fill({entry.x, entry.y, entry.z, entry.w});
  } else {
    MarkStage(Stage::kAsked);
    WaitForKernelsBefore();
    MarkStage(Stage::kInput);
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
  if (simulated > 0) {
    if (simulate->group == kRegisterGroup) {
      row.SimulateFp8(simulated);
    } else {
      row.SimulateFp8OfWarps(simulated);
    }
  }
  if (track.First(RowStepKind::kHadamardFp4) != nullptr) row.HadamardFp4();
  if (const RowStep* const step = track.First(RowStepKind::kRoundFp4); step != nullptr)
    row.RoundFp4(step->group, step->scale);
  if (const RowStep* const step = track.First(RowStepKind::kScale); step != nullptr) row.Scale(step->factor);
  if (store != nullptr && store->code != CacheCode::kNone) {
    const auto pack = [&](const RegisterRow::Places& places) {
      row.Pack(places, r, fault);
      runs.ForEach(*store, r, [&](const StoredRun& run) {
        row.WritePacked(
            places, reinterpret_cast<unsigned char*>(run.destination) + (r - run.begin) * places.row_bytes);
      });
    };
    if (row.HasReleaseCodes(store->code, store->num_columns, store->group)) {
      row.TakeReleaseCodes(r, fault);
      runs.ForEach(*store, r, [&](const StoredRun& run) {
        row.WriteReleaseRow(reinterpret_cast<unsigned char*>(run.destination) +
                            (r - run.begin) * kReleaseRowBytes);
      });
    } else if (row.IsReleaseKey(store->code, store->num_columns)) {
      pack(RegisterRow::PlacesOfReleaseKey());
    } else {
      pack(row.PlacesOf(store->code, store->num_columns, store->group));
    }
  } else if (store != nullptr) {
    runs.ForEach(*store, r, [&](const StoredRun& run) {
      row.Write(reinterpret_cast<uint16_t*>(run.destination) + (r - run.begin) * width);
    });
  }
  row.Write(static_cast<uint16_t*>(rows.out) + r * rows.out_stride);
}

// The same for any steps, in shared memory.
template <int kThreads>
__device__ void StepsInSharedMemory(const RowTracks& p, const RowTrack& track, int64_t r) {
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
  MarkStage(Stage::kAsked);
  WaitForKernelsBefore();
  MarkStage(Stage::kInput);

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
      case RowStepKind::kRoundFp4:
        RoundFp4Row<kThreads>(row, width, step.group, step.scale, is_bf16);
        break;
      case RowStepKind::kScale:
#pragma unroll 1
        for (int i = t; i < width; i += kThreads)
          row[i] = is_bf16 ? RoundToBf16(row[i] * step.factor) : row[i] * step.factor;
        __syncthreads();
        break;
      case RowStepKind::kStore:
        (&step == store ? runs : RunOfRow(&step, r)).ForEach(step, r, [&](const StoredRun& run) {
          if (step.code != CacheCode::kNone) {
            const CacheFormat format = PackedFormat(step);
            return PackRowBy(
                t, kThreads, format, width, [&](int i) { return row[i]; },
                reinterpret_cast<unsigned char*>(run.destination) + (r - run.begin) * format.RowBytes(width),
                r, p.fault);
          }
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
__global__ void __launch_bounds__(kThreads) RowTracksKernel(const __grid_constant__ RowTracks p) {
  MarkStage(Stage::kBegin);
  LetNextKernelStart();
  const int block = static_cast<int>(blockIdx.x);
  int number = 0;
#pragma unroll
  for (int i = 1; i < kMaxTracks; ++i) {
    if (i < p.num_tracks && p.first_blocks[i] <= block) number = i;
  }
  const RowTrack& track = p.tracks[number];
  const int64_t r = block - p.first_blocks[number];
  if (track.place == RowPlace::kNowhere) {
    StoreHistory<kThreads>(track.rows, track.steps[0], r);
    return;
  }
  if constexpr (kThreads == RegisterRow::kThreads) {
    if (track.place == RowPlace::kRegisters || track.place == RowPlace::kPooledInRegisters) {
      StepsInRegisters(track, r, p.fault);
      EndStages(StageKernel::kRows, 0);
      return;
    }
  }
  StepsInSharedMemory<kThreads>(p, track, r);
  EndStages(StageKernel::kRows, 0);
}

}  // namespace

void LaunchRowTracks(LaunchContext& context, const RowTracks& tracks, int64_t num_rows) {
  bool doubles = false;
  size_t pooled_bytes = 0;
  for (const RowTrack& track : std::span(tracks.tracks, static_cast<size_t>(tracks.num_tracks))) {
    for (const RowStep& step : std::span(track.steps, static_cast<size_t>(track.num_steps)))
      doubles = doubles || step.kind == RowStepKind::kHadamardFp4;
    if (track.steps[0].kind == RowStepKind::kPool)
      pooled_bytes = std::max(pooled_bytes, PooledRowBytes(track.rows.width));
  }
  const size_t width = static_cast<size_t>(tracks.max_width + 1) / 2 * 2;
  const size_t shared_bytes =
      std::max(pooled_bytes, static_cast<size_t>(tracks.max_frequencies) * sizeof(double2) +
                                 width * (sizeof(float) + (doubles ? sizeof(double) : 0)));
  const auto grid = static_cast<unsigned>(num_rows);
  const bool narrow = tracks.max_width <= kMaxNarrowRow;
  context.Launch(narrow ? RowTracksKernel<kNarrowRowThreads> : RowTracksKernel<kWideRowThreads>, grid,
                 narrow ? kNarrowRowThreads : kWideRowThreads, shared_bytes, tracks);
}

}  // namespace dsv4::backend::cuda
