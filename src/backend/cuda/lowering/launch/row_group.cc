// Group of fused steps on rows: tracks, what they touch, and when a step continues a track, begins one or
// stays alone.
#include "backend/cuda/lowering/launch/row_group.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "backend/cuda/lowering/rule.h"
#include "base/check.h"

namespace dsv4::backend::cuda {
namespace {

std::span<const RowStep> StepsOf(const RowTrack& track) {
  return {track.steps, static_cast<size_t>(track.num_steps)};
}

// Whether `next` goes on with what `track` leaves.
bool GoesOn(const RowsOperand& track, const RowsOperand& next) {
  return track.out != nullptr && next.in == track.out && next.out == track.out && next.width == track.width &&
         next.num_rows == track.num_rows && next.in_is_bf16 == track.out_is_bf16 &&
         next.out_is_bf16 == track.out_is_bf16 &&
         (track.num_rows == 1 || (next.in_stride == track.out_stride && next.out_stride == track.out_stride));
}

// Whether a step is one of RegisterRow's, on a row that it takes.
bool FitsRegisters(const RowsOperand& rows, const RowStep& step) {
  switch (step.kind) {
    case RowStepKind::kRope: {
      // The columns that are rotated are those of a thread's last register.
      const int64_t rotated = rows.width - 2 * int64_t{step.num_columns};
      return rows.width % 2 == 0 && rotated >= 0 &&
             rotated / kNarrowRowThreads == (rows.width - 1) / kNarrowRowThreads;
    }
    case RowStepKind::kSimulateFp8:
      return IsRegisterE4m3Group(step.group) && step.num_columns % step.group == 0;
    case RowStepKind::kHadamardFp4:
      return rows.width == kRegisterHadamard;
    case RowStepKind::kRoundFp4:
      return step.group == kRegisterHalfGroup || step.group == kRegisterWarpGroup;
    case RowStepKind::kStore:
      if (step.code == CacheCode::kE4m3)
        return IsRegisterE4m3Group(step.group) && step.num_columns % step.group == 0;
      return step.code == CacheCode::kNone ||
             (step.group == kRegisterE2m1Group && step.num_columns == rows.width);
    default:
      return true;
  }
}

// Whether each step comes once, in the order of StepsInRegisters (row_tracks.cu), and is one of
// RegisterRow's.
bool FitsRegisters(const RowTrack& track) {
  const RowsOperand& rows = track.rows;
  if (!rows.in_is_bf16 || !rows.out_is_bf16 || rows.width > kMaxRegisterRow) return false;
  constexpr RowStepKind kOrder[] = {
      RowStepKind::kPool,     RowStepKind::kRmsNorm,     RowStepKind::kHeadRmsNorm,
      RowStepKind::kRope,     RowStepKind::kSimulateFp8, RowStepKind::kHadamardFp4,
      RowStepKind::kRoundFp4, RowStepKind::kScale,       RowStepKind::kStore};
  const RowStepKind* next = std::begin(kOrder);
  for (const RowStep& step : StepsOf(track)) {
    next = std::find(next, std::end(kOrder), step.kind);
    if (next == std::end(kOrder) || !FitsRegisters(rows, step)) return false;
    ++next;
  }
  // One sum a block.
  return track.first[static_cast<int>(RowStepKind::kRmsNorm)] < 0 ||
         track.first[static_cast<int>(RowStepKind::kHeadRmsNorm)] < 0;
}

void AddToTrack(RowTrack& track, const RowStep& step) {
  signed char& first = track.first[static_cast<int>(step.kind)];
  if (first < 0) first = static_cast<signed char>(track.num_steps);
  track.steps[track.num_steps++] = step;
  track.place = step.kind == RowStepKind::kHistory          ? RowPlace::kNowhere
                : !FitsRegisters(track)                     ? RowPlace::kShared
                : track.steps[0].kind == RowStepKind::kPool ? RowPlace::kPooledInRegisters
                                                            : RowPlace::kRegisters;
}

// Whether the track takes one more step.
bool TakesStep(const RowTrack& track, const RowStep& step) {
  const bool second_rope =
      step.kind == RowStepKind::kRope &&
      std::ranges::any_of(StepsOf(track), [](const RowStep& s) { return s.kind == RowStepKind::kRope; });
  return track.num_steps < kMaxTrackSteps && !second_rope;
}

// Rows of this width, in memory of this form.
bool FitsHeadRows(const RowsOperand& rows) {
  return (rows.width == 128 || rows.width == 512) && rows.in_stride % 2 == 0 && rows.out_stride % 2 == 0 &&
         IsAligned(rows.in, 4) && IsAligned(rows.out, 4);
}

// Whether all of it is something that there is a kernel for.
bool HasManyRows(const ManyRows& rows) {
  const bool plain = rows.positions == nullptr && rows.num_simulated == 0 && rows.runs.size == 0;
  const bool has_width = rows.width == kManyRowsWidths[0] ||
                         (plain && std::find(std::begin(kManyRowsWidths), std::end(kManyRowsWidths),
                                             int64_t{rows.width}) != std::end(kManyRowsWidths));
  return rows.num_rows >= kManyRows && has_width && rows.in_stride % 4 == 0 && rows.out_stride % 4 == 0 &&
         IsAligned(rows.in, 8) && IsAligned(rows.out, 8) && IsAligned(rows.weight, 16);
}

}  // namespace

int RowGroup::TrackOf(const RowsOperand& rows) const {
  int number = 0;
  while (number < tracks_.num_tracks && !GoesOn(tracks_.tracks[number].rows, rows)) ++number;
  return number;
}

bool RowGroup::Continues(const RowsOperand& rows) const { return TrackOf(rows) < tracks_.num_tracks; }

// Rows of many heads stay by themselves, and so do those of many tokens.
bool RowGroup::StaysAlone(const RowsWork& work) const {
  const bool heads = work.step.kind == RowStepKind::kHeadRmsNorm || work.step.kind == RowStepKind::kRope ||
                     work.step.kind == RowStepKind::kHadamardFp4;
  return (heads && work.rows.num_rows >= kManyHeadRows) || AsHeadRows().has_value() ||
         (work.step.kind == RowStepKind::kRmsNorm && work.rows.num_rows >= kManyRows) ||
         AsManyRows().has_value();
}

// Blocks of different tracks run in any order.
bool RowGroup::TouchesOthers(const RowsWork& work, int number) const {
  const RowsOperand& rows = work.rows;
  const bool is_new = number == tracks_.num_tracks;
  const MemoryRange in =
      is_new ? RangeOfRows(rows.in, rows.in_stride, rows.width, rows.in_is_bf16, rows.num_rows)
             : MemoryRange();
  const MemoryRange out =
      is_new ? RangeOfRows(rows.out, rows.out_stride, rows.width, rows.out_is_bf16, rows.num_rows)
             : MemoryRange();
  return std::ranges::any_of(touched_, [&](const std::pair<int, MemoryRange>& touched) {
    const int track = touched.first;  // No structured binding: clang 14 captures none.
    const MemoryRange& range = touched.second;
    if (track == number || (work.beside != nullptr && tracks_.tracks[track].rows.out == work.beside))
      return false;
    return Overlap(range, in) || Overlap(range, out) ||
           std::ranges::any_of(work.touches, [&](const MemoryRange& next) { return Overlap(range, next); });
  });
}

std::optional<RowTrack> RowGroup::Extended(const RowsWork& work) const {
  const RowsOperand& rows = work.rows;
  const bool is_first = tracks_.num_tracks == 0;
  if (!is_first && (rows.width <= kMaxNarrowRow) != (tracks_.max_width <= kMaxNarrowRow)) return std::nullopt;
  const int number = TrackOf(rows);
  const bool is_new = number == tracks_.num_tracks;
  if (number == kMaxTracks || (is_new && !is_first && StaysAlone(work))) return std::nullopt;
  if (!is_new && !TakesStep(tracks_.tracks[number], work.step)) return std::nullopt;
  if (TouchesOthers(work, number)) return std::nullopt;
  RowTrack track = tracks_.tracks[number];
  if (is_new) {
    track = {};
    track.rows = rows;
    std::ranges::fill(track.first, static_cast<signed char>(-1));
  }
  AddToTrack(track, work.step);
  // Nothing else pools.
  const bool pools = track.steps[0].kind == RowStepKind::kPool;
  if (pools && track.place != RowPlace::kPooledInRegisters && !is_first) return std::nullopt;
  return track;
}

void RowGroup::Add(const RowsWork& work) {
  const std::optional<RowTrack> track = Extended(work);
  DSV4_CHECK(track.has_value()) << "a step that does not fit";
  const RowsOperand& rows = work.rows;
  const int number = TrackOf(rows);
  for (const MemoryRange& range : work.touches) touched_.emplace_back(number, range);
  if (number == tracks_.num_tracks) {
    touched_.emplace_back(number,
                          RangeOfRows(rows.in, rows.in_stride, rows.width, rows.in_is_bf16, rows.num_rows));
    touched_.emplace_back(
        number, RangeOfRows(rows.out, rows.out_stride, rows.width, rows.out_is_bf16, rows.num_rows));
    tracks_.first_blocks[number] = static_cast<int>(num_rows_);
    num_rows_ += rows.num_rows;
    ++tracks_.num_tracks;
  }
  tracks_.tracks[number] = *track;
  tracks_.max_width = std::max(tracks_.max_width, static_cast<int>(rows.width));
  if (work.step.kind == RowStepKind::kRope)
    tracks_.max_frequencies = std::max(tracks_.max_frequencies, work.step.num_columns);
}

std::optional<HeadRows> RowGroup::AsHeadRows() const {
  const RowTrack& track = tracks_.tracks[0];
  const RowsOperand& rows = track.rows;
  if (tracks_.num_tracks != 1 || rows.num_rows < kManyHeadRows || !rows.in_is_bf16 || !rows.out_is_bf16 ||
      !FitsHeadRows(rows)) {
    return std::nullopt;
  }
  HeadRows heads = {.in = static_cast<const uint16_t*>(rows.in),
                    .out = static_cast<uint16_t*>(rows.out),
                    .in_stride = rows.in_stride,
                    .out_stride = rows.out_stride,
                    .frequencies = nullptr,
                    .positions = nullptr,
                    .fault = nullptr,
                    .num_rows = rows.num_rows,
                    .width = static_cast<int>(rows.width),
                    .group = 1,
                    .eps = 0.0F,
                    .has_norm = false,
                    .has_rope = false,
                    .inverse = false,
                    .has_hadamard = false};
  for (const RowStep& step : StepsOf(track)) {
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

std::optional<ManyRows> RowGroup::AsManyRows() const {
  const RowTrack& track = tracks_.tracks[0];
  const RowsOperand& rows = track.rows;
  if (tracks_.num_tracks != 1 || rows.num_rows < kManyRows || !rows.in_is_bf16 || !rows.out_is_bf16 ||
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
                   .num_packed = 0,
                   .runs = {},
                   .fault = nullptr};
  for (const RowStep& step : StepsOf(track).subspan(1)) {
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
    } else if (step.kind == RowStepKind::kStore && !stored && step.runs.size > 0 &&
               (step.code == CacheCode::kNone ||
                (step.code == CacheCode::kE4m3 && step.group == kManyRowsGroup &&
                 step.num_columns == many.num_simulated))) {
      many.runs = step.runs;
      many.num_packed = step.num_columns;
    } else {
      return std::nullopt;
    }
  }
  return HasManyRows(many) ? std::optional(many) : std::nullopt;
}

}  // namespace dsv4::backend::cuda
