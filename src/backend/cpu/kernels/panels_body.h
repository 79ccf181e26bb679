// The kernels of panels.h, included by the unit of every tier inside its own namespace after it has defined
//
//   kLanes           of a panel: fp32 lanes of a register
//   kStep            1 (fp32) or 2 (bf16)
//   Vec              a register of kLanes fp32
//   MultiplyStep(sum, a, b)   sum plus one step of the lane at `a`, for all lanes, times the step `b` (raw bits in a Vec)
//
// and, before the namespace, has included <utility> (types only).
//
// No include guard: one inclusion per unit.

#include "backend/cpu/kernels/memory_body.h"

constexpr int64_t kStepBytes = 4 * kLanes;
constexpr int64_t kStepElements = kLanes * kStep;  // Elements of a row that make one register.
typedef uint32_t Words __attribute__((vector_size(kStepBytes)));
typedef uint16_t Halves __attribute__((vector_size(kStepBytes / 2)));

DSV4_INLINE Words WidenHalves(Halves x) { return __builtin_convertvector(x, Words); }

// A register of consecutive elements of a row, as a step holds them.
template <bool kBf16>
DSV4_INLINE Words LoadElements(const uint8_t* from) {
  if (kBf16 && kStep == 1) return WidenHalves(Load<Halves>(from)) << 16;
  return Load<Words>(from);
}

// Blocks of kStage x kStage off the diagonal are exchanged.
template <int kStage, int... kLane>
DSV4_INLINE void ExchangePair(Words& a, Words& b, std::integer_sequence<int, kLane...>) {
  const Words low =
      __builtin_shufflevector(a, b, ((kLane & kStage) != 0 ? int{kLanes} + kLane - kStage : kLane)...);
  const Words high =
      __builtin_shufflevector(a, b, ((kLane & kStage) != 0 ? int{kLanes} + kLane : kLane + kStage)...);
  a = low;
  b = high;
}
template <int kStage>
DSV4_INLINE void Exchange(Words* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kStage) == 0)
      ExchangePair<kStage>(rows[i], rows[i + kStage], std::make_integer_sequence<int, kLanes>());
  }
}
DSV4_INLINE void Transpose(Words* rows) {
  Exchange<1>(rows);
  Exchange<2>(rows);
  if constexpr (kLanes > 4) Exchange<4>(rows);
  if constexpr (kLanes > 8) Exchange<8>(rows);
}

template <bool kBf16>
static void PackLanesOf(const uint8_t* const* rows, int64_t num_rows, int64_t depth, uint8_t* panel) {
  constexpr int64_t kBytes = kBf16 ? 2 : 4;
  int64_t k = 0;
  for (; k + kStepElements <= depth; k += kStepElements) {
    Words lanes[kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      lanes[r] = r < num_rows && rows[r] != nullptr ? LoadElements<kBf16>(rows[r] + kBytes * k) : Words{};
    }
    Transpose(lanes);
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) Store(panel + r * kStepBytes, lanes[r]);
    panel += kLanes * kStepBytes;
  }
  if (k == depth) return;
  Words lanes[kLanes];
  for (int r = 0; r < kLanes; ++r) {
    uint8_t padded[kStepElements * kBytes] = {};
    if (r < num_rows && rows[r] != nullptr)
      __builtin_memcpy(padded, rows[r] + kBytes * k, static_cast<uint64_t>(kBytes * (depth - k)));
    lanes[r] = LoadElements<kBf16>(padded);
  }
  Transpose(lanes);
  const int64_t steps = (depth - k + kStep - 1) / kStep;
  for (int64_t s = 0; s < steps; ++s) Store(panel + s * kStepBytes, lanes[s]);
}

static void PackLanes(const uint8_t* const* rows, int64_t num_rows, bool bf16, int64_t depth,
                      uint8_t* panel) {
  if (bf16) return PackLanesOf<true>(rows, num_rows, depth, panel);
  PackLanesOf<false>(rows, num_rows, depth, panel);
}

// The same columns of a step's rows, `second` the odd one of a bf16 pair.
template <bool kBf16>
DSV4_INLINE Words Columns(const uint8_t* first, const uint8_t* second) {
  if (kStep == 2) return WidenHalves(Load<Halves>(first)) | WidenHalves(Load<Halves>(second)) << 16;
  return LoadElements<kBf16>(first);
}

template <bool kBf16>
static void PackColumnsOf(const uint8_t* const* rows, int64_t num_rows, int64_t first, int64_t num_columns,
                          uint8_t* panels, int64_t panel_bytes) {
  constexpr int64_t kBytes = kBf16 ? 2 : 4;
  static const uint8_t zeros[kLanes * 4] = {};
  const int64_t whole = num_columns / kLanes;
  const auto rest = static_cast<uint64_t>(kBytes * (num_columns - whole * kLanes));
  for (int64_t k = 0; k < num_rows; k += kStep) {
    const uint8_t* const a = rows[k];
    const uint8_t* const b = kStep == 2 && k + 1 < num_rows ? rows[k + 1] : nullptr;
    uint8_t* to = panels + k / kStep * kStepBytes;
    for (int64_t p = 0; p < whole; ++p, to += panel_bytes) {
      const int64_t at = kBytes * (first + p * kLanes);
      Store(to, Columns<kBf16>(a == nullptr ? zeros : a + at, b == nullptr ? zeros : b + at));
    }
    if (rest == 0) continue;
    uint8_t padded[2][kLanes * 4] = {};
    const int64_t at = kBytes * (first + whole * kLanes);
    if (a != nullptr) __builtin_memcpy(padded[0], a + at, rest);
    if (b != nullptr) __builtin_memcpy(padded[1], b + at, rest);
    Store(to, Columns<kBf16>(padded[0], padded[1]));
  }
}

static void PackColumns(const uint8_t* const* rows, int64_t num_rows, bool bf16, int64_t first,
                        int64_t num_columns, uint8_t* panels, int64_t panel_bytes) {
  if (bf16) return PackColumnsOf<true>(rows, num_rows, first, num_columns, panels, panel_bytes);
  PackColumnsOf<false>(rows, num_rows, first, num_columns, panels, panel_bytes);
}

static void MultiplyPanel(const uint8_t* a, const uint8_t* b, int64_t num_steps, int64_t num_rows, bool add,
                          float* out, int64_t out_stride) {
  constexpr int64_t kRunSteps = kPanelRun / kStep;
  for (int64_t begin = 0; begin < num_steps; begin += kRunSteps) {
    const int64_t end = begin + kRunSteps < num_steps ? begin + kRunSteps : num_steps;
    Vec sums[kLanes] = {};
    for (int64_t s = begin; s < end; ++s) {
      const Vec step = Load<Vec>(b + s * kStepBytes);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) sums[r] = MultiplyStep(sums[r], a + s * kStepBytes + 4 * r, step);
    }
    const bool join = add || begin > 0;
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      if (r >= num_rows) continue;
      float* const to = out + r * out_stride;
      Store(to, join ? Load<Vec>(to) + sums[r] : sums[r]);
    }
  }
}

static void Multiply(const uint8_t* a, const uint8_t* b, int64_t b_bytes, int64_t num_panels, int64_t depth,
                     int64_t num_rows, bool add, float* out, int64_t out_stride) {
  for (int64_t p = 0; p < num_panels; ++p) {
    MultiplyPanel(a, b + p * b_bytes, (depth + kStep - 1) / kStep, num_rows, add, out + p * kLanes,
                  out_stride);
  }
}

static constexpr PanelKernels MakePanelKernels() {
  return {.lanes = kLanes,
          .step = kStep,
          .pack_lanes = PackLanes,
          .pack_columns = PackColumns,
          .multiply = Multiply};
}
