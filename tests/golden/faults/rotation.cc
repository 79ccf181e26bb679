// Mistakes 7 to 12, 26 and 28: head norm, rotation, and what is rounded around it.
#include <cmath>

#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

Status Rope(ops::OpContext& context, const ops::RopeArgs& args) { return Right().rope(context, args); }

Status RopeWith(ops::OpContext& context, ops::RopeArgs args, const std::vector<float>& frequencies) {
  args.frequencies = TensorView::Contiguous(frequencies.data(), DType::kF32, args.frequencies.shape);
  return Rope(context, args);
}

Status RopeAt(ops::OpContext& context, ops::RopeArgs args, const std::vector<int32_t>& positions) {
  args.positions = TensorView::Contiguous(positions.data(), DType::kI32, args.positions.shape);
  return Rope(context, args);
}

// Rotates a copy whose elements were moved by `place` (rotated element k of a row lies at place(k) there),
// and moves back.
template <typename Place>
Status RopePlaced(ops::OpContext& context, const ops::RopeArgs& args, const Place& place) {
  const auto width = static_cast<size_t>(args.x.shape[2]);
  std::vector<double> values = Values(args.x);
  std::vector<double> moved(values.size());
  for (size_t i = 0; i < values.size(); ++i) moved[i] = values[i / width * width + place(i % width)];
  SetValues(args.x, moved);
  DSV4_RETURN_IF_ERROR(Rope(context, args));
  moved = Values(args.x);
  for (size_t i = 0; i < values.size(); ++i) values[i / width * width + place(i % width)] = moved[i];
  SetValues(args.x, values);
  return {};
}

Status FirstDims(ops::OpContext& context, const ops::RopeArgs& args) {
  const auto width = static_cast<size_t>(args.x.shape[2]);
  const auto rotary = static_cast<size_t>(2 * args.frequencies.shape[0]);
  return RopePlaced(context, args, [=](size_t k) { return (k + rotary) % width; });
}

Status HalfSplit(ops::OpContext& context, const ops::RopeArgs& args) {
  const auto rotary = static_cast<size_t>(2 * args.frequencies.shape[0]);
  const size_t nope = static_cast<size_t>(args.x.shape[2]) - rotary;
  return RopePlaced(context, args, [=](size_t k) {
    if (k < nope) return k;
    return nope + (k - nope) / 2 + (k - nope) % 2 * (rotary / 2);
  });
}

Status WindowTheta(ops::OpContext& context, const ops::RopeArgs& args) {
  return TheScene().IsTokenRows(args.x) ? RopeWith(context, args, TheScene().plain_frequencies)
                                        : Rope(context, args);
}

Status SeparateTheta(ops::OpContext& context, const ops::RopeArgs& args) {
  const bool window_row = TheScene().IsTokenRows(args.x) && args.x.shape[1] == 1;
  return window_row ? RopeWith(context, args, TheScene().plain_frequencies) : Rope(context, args);
}

double YarnAmplitude() { return 0.1 * std::log(TheScene().config.compress_rope.factor) + 1; }

Status AmplifiedRotation(ops::OpContext& context, const ops::RopeArgs& args) {
  DSV4_RETURN_IF_ERROR(Rope(context, args));
  if (!TheScene().IsCompressTable(args.frequencies)) return {};
  std::vector<double> values = Values(args.x);
  const auto width = static_cast<size_t>(args.x.shape[2]);
  const size_t nope = width - static_cast<size_t>(2 * args.frequencies.shape[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % width >= nope) values[i] *= YarnAmplitude();
  }
  SetValues(args.x, values);
  return {};
}

Status AmplifiedSoftmax(ops::OpContext& context, const ops::AttentionArgs& args) {
  ops::AttentionArgs wrong = args;
  if (args.ratio > 0) wrong.softmax_scale *= static_cast<float>(YarnAmplitude() * YarnAmplitude());
  return Right().attention(context, wrong);
}

// Entries lie ratio positions apart; the prompt runs in one pass, so their number gives the ratio.
template <bool kIndex>
Status EntryPosition(ops::OpContext& context, const ops::RopeArgs& args) {
  if (args.x.shape[0] == TheScene().num_tokens || args.x.shape[0] == 0) return Rope(context, args);
  const auto ratio = static_cast<int32_t>(args.x.shape[0] == TheScene().num_tokens / 4 ? 4 : 128);
  std::vector<int32_t> positions(static_cast<size_t>(args.x.shape[0]));
  for (size_t j = 0; j < positions.size(); ++j) {
    positions[j] = kIndex ? static_cast<int32_t>(j) : static_cast<int32_t>(j) * ratio + ratio - 1;
  }
  return RopeAt(context, args, positions);
}

Status NoInverse(ops::OpContext& context, const ops::RopeArgs& args) {
  return args.inverse ? Status() : Rope(context, args);
}

Status InverseAtZero(ops::OpContext& context, const ops::RopeArgs& args) {
  if (!args.inverse) return Rope(context, args);
  return RopeAt(context, args, std::vector<int32_t>(static_cast<size_t>(args.x.shape[0]), 0));
}

Status InverseOtherTable(ops::OpContext& context, const ops::RopeArgs& args) {
  if (!args.inverse) return Rope(context, args);
  const Scene& scene = TheScene();
  return RopeWith(
      context, args,
      scene.IsCompressTable(args.frequencies) ? scene.plain_frequencies : scene.compress_frequencies);
}

// A range reduction in fp32, as fast intrinsics do: the angle loses its low bits long before it is reduced.
Status FastSinCos(ops::OpContext&, const ops::RopeArgs& args) {
  std::vector<double> values = Values(args.x);
  const auto heads = static_cast<size_t>(args.x.shape[1]);
  const auto width = static_cast<size_t>(args.x.shape[2]);
  const auto pairs = static_cast<size_t>(args.frequencies.shape[0]);
  const auto turn = static_cast<float>(2 * M_PI);
  for (size_t row = 0; row * width < values.size(); ++row) {
    const size_t token = row / heads;
    const auto position = static_cast<float>(args.positions.as<const int32_t>()[token]);
    double* rotary = values.data() + (row + 1) * width - 2 * pairs;
    for (size_t i = 0; i < pairs; ++i) {
      float angle = position * args.frequencies.as<const float>()[i];
      angle -= std::nearbyint(angle / turn) * turn;
      const double cos = std::cos(static_cast<double>(angle));
      const double sin = (args.inverse ? -1 : 1) * std::sin(static_cast<double>(angle));
      const double a = rotary[2 * i];
      const double b = rotary[2 * i + 1];
      rotary[2 * i] = a * cos - b * sin;
      rotary[2 * i + 1] = a * sin + b * cos;
    }
  }
  SetValues(args.x, values);
  return {};
}

// --- Head norm ---

Status NoHeadNorm(ops::OpContext&, const ops::HeadRmsNormArgs& args) {
  SetValues(args.y, Values(args.x));
  return {};
}

Status HeadNormOf(ops::OpContext& context, const TensorView& x) {
  return Right().head_rms_norm(context,
                               {.x = x, .y = x, .eps = static_cast<float>(TheScene().config.rms_norm_eps)});
}

Status NormAfterRope(ops::OpContext& context, const ops::RopeArgs& args) {
  DSV4_RETURN_IF_ERROR(Rope(context, args));
  const bool query = TheScene().IsTokenRows(args.x) && args.x.shape[1] > 1 && !args.inverse;
  return query ? HeadNormOf(context, args.x) : Status();
}

Status NormWindowRows(ops::OpContext& context, const ops::RopeArgs& args) {
  if (TheScene().IsTokenRows(args.x) && args.x.shape[1] == 1) {
    DSV4_RETURN_IF_ERROR(HeadNormOf(context, args.x));
  }
  return Rope(context, args);
}

// --- Rounding of cache rows ---

Status RoundBeforeRope(ops::OpContext& context, const ops::RopeArgs& args) {
  if (args.x.shape[1] == 1 && args.x.shape[2] == TheScene().config.head_dim && args.x.shape[0] > 0) {
    const TensorView rows = args.x.Reshaped({args.x.shape[0], args.x.shape[2]});
    DSV4_RETURN_IF_ERROR(Right().simulate_fp8(context, {.x = rows, .num_columns = rows.shape[1]}));
  }
  return Rope(context, args);
}

Status NoRounding(ops::OpContext&, const ops::SimulateFp8Args&) { return {}; }

Status RoundWholeRow(ops::OpContext& context, const ops::SimulateFp8Args& args) {
  ops::SimulateFp8Args wrong = args;
  wrong.num_columns = args.x.shape[1];
  return Right().simulate_fp8(context, wrong);
}

// Groups of 128 and a shorter last one.
Status GroupsOf128(ops::OpContext& context, const ops::SimulateFp8Args& args) {
  const int64_t whole = args.num_columns / 128 * 128;
  if (whole > 0) {
    DSV4_RETURN_IF_ERROR(Right().simulate_fp8(context, {.x = args.x, .num_columns = whole, .group = 128}));
  }
  if (whole == args.num_columns) return {};
  TensorView rest = args.x;
  rest.data = args.x.as<std::byte>() + whole * ElementBytes(args.x.dtype);
  rest.shape = {args.x.shape[0], args.x.shape[1] - whole};
  const int64_t left = args.num_columns - whole;
  return Right().simulate_fp8(context, {.x = rest, .num_columns = left, .group = left});
}

template <ops::OpFunction<ops::RopeArgs> kOp>
SeededMistake WithRope() {
  return {.mutation = {.parts = {}, .ops = [](ops::OpTable& table) { table.rope = kOp; }, .options = {}}};
}

}  // namespace

void AddRotationMistakes(SeededMistakes& mistakes) {
  mistakes["07-no-head-norm"].mutation.ops = [](ops::OpTable& table) { table.head_rms_norm = NoHeadNorm; };
  mistakes["07-head-norm-after-rope"].mutation.ops = [](ops::OpTable& table) {
    table.head_rms_norm = NoHeadNorm;
    table.rope = NormAfterRope;
  };
  mistakes["07-kv-head-norm"] = WithRope<NormWindowRows>();
  mistakes["08-rope-first-dims"] = WithRope<FirstDims>();
  mistakes["08-rope-half-split"] = WithRope<HalfSplit>();
  mistakes["09-window-theta"] = WithRope<WindowTheta>();
  mistakes["09-separate-theta"] = WithRope<SeparateTheta>();
  mistakes["09-yarn-in-swa"].mutation.parts = [](ModelParts& parts) {
    parts.config.rope = parts.config.compress_rope;
  };
  mistakes["10-yarn-on-rotation"] = WithRope<AmplifiedRotation>();
  mistakes["10-yarn-on-softmax"].mutation.ops = [](ops::OpTable& table) {
    table.attention = AmplifiedSoftmax;
  };
  mistakes["11-entry-last"] = WithRope<EntryPosition<false>>();
  mistakes["11-entry-index"] = WithRope<EntryPosition<true>>();
  mistakes["12-no-inverse-rope"] = WithRope<NoInverse>();
  mistakes["12-inverse-at-zero"] = WithRope<InverseAtZero>();
  mistakes["12-inverse-other-table"] = WithRope<InverseOtherTable>();
  mistakes["26-fp8-before-rope"].mutation.ops = [](ops::OpTable& table) {
    table.rope = RoundBeforeRope;
    table.simulate_fp8 = NoRounding;
  };
  mistakes["26-fp8-rope-dims"].mutation.ops = [](ops::OpTable& table) { table.simulate_fp8 = RoundWholeRow; };
  mistakes["26-fp8-group-128"].mutation.ops = [](ops::OpTable& table) { table.simulate_fp8 = GroupsOf128; };
  mistakes["28-fast-sincos"] = WithRope<FastSinCos>();
}

}  // namespace dsv4::testing
