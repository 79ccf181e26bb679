// Seeded mistakes of V4.1's n-gram value and of its linears: each fails the golden comparison.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "formats/number_formats.h"
#include "formats/quantize.h"
#include "tests/golden/op_checks.h"

namespace dsv4::testing {
namespace {

using ops::OpContext;

enum class Fault : uint8_t {
  kNone,
  kUnsigned,          // The root without the similarity's sign.
  kNoRoot,            // sigmoid(d).
  kNoDim,             // Without dim^-0.5.
  kNoKeyNorm,         // Keys as they are.
  kNoQWeight,         // One weight for both.
  kValueFirst,        // wkv's parts in another order.
  kFirstStreamAlone,  // The value into one stream.
  kJointNorm,         // One norm over all streams.
  kImagesToo,         // Images have a gate.
  kRoundedGate,       // The gate in bf16.
  kReplaces,          // The value in place of the stream.
};

double Bf16(double value) { return static_cast<double>(RoundToBf16(static_cast<float>(value))); }

double MeanSquare(std::span<const double> x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return sum / static_cast<double>(x.size());
}

std::vector<double> Floats(const TensorView& view) {
  std::vector<double> values;
  for (int64_t i = 0; i < view.num_elements(); ++i) {
    values.push_back(view.dtype == DType::kBF16
                         ? static_cast<double>(FloatFromBf16(view.as<const uint16_t>()[i]))
                         : static_cast<double>(view.as<const float>()[i]));
  }
  return values;
}

template <Fault F>
Status WrongMix(OpContext&, const ops::EngramMixArgs& args) {
  const auto mult = static_cast<size_t>(args.streams.shape[1]);
  const auto dim = static_cast<size_t>(args.streams.shape[2]);
  const std::vector<double> streams = Floats(args.streams);
  const std::vector<double> mixed = Floats(args.mixed);
  const std::vector<double> q = Floats(args.q_weight);
  const std::vector<double> k = Floats(args.k_weight);
  const auto eps = static_cast<double>(args.eps);
  for (size_t t = 0; t < static_cast<size_t>(args.streams.shape[0]); ++t) {
    const auto all = std::span(streams).subspan(t * mult * dim, mult * dim);
    const auto parts = std::span(mixed).subspan(t * (mult + 1) * dim, (mult + 1) * dim);
    const size_t first_key = F == Fault::kValueFirst ? 1 : 0;
    const auto value = parts.subspan((F == Fault::kValueFirst ? 0 : mult) * dim, dim);
    for (size_t i = 0; i < mult; ++i) {
      const auto stream = all.subspan(i * dim, dim);
      const auto key = parts.subspan((i + first_key) * dim, dim);
      double d = 0;
      for (size_t c = 0; c < dim; ++c)
        d += stream[c] * key[c] * k[i * dim + c] * (F == Fault::kNoQWeight ? 1.0 : q[i * dim + c]);
      d /= std::sqrt(MeanSquare(F == Fault::kJointNorm ? all : stream) + eps);
      if (F != Fault::kNoKeyNorm) d /= std::sqrt(MeanSquare(key) + eps);
      if (F != Fault::kNoDim) d /= std::sqrt(static_cast<double>(dim));
      double root = std::sqrt(std::max(std::fabs(d), 1e-6));
      if (F != Fault::kUnsigned) root = std::copysign(root, d);
      if (F == Fault::kNoRoot) root = d;
      double gate = 1 / (1 + std::exp(-root));
      if (F == Fault::kRoundedGate) gate = Bf16(gate);
      if (F != Fault::kImagesToo && args.is_image.as<const int32_t>()[t] != 0) gate = 0;
      if (F == Fault::kFirstStreamAlone && i > 0) gate = 0;
      for (size_t c = 0; c < dim; ++c) {
        const double out = (F == Fault::kReplaces && gate != 0 ? 0 : stream[c]) + gate * value[c];
        args.out.as<uint16_t>()[(t * mult + i) * dim + c] = Bf16FromFloat(static_cast<float>(out));
      }
    }
  }
  return {};
}

bool Passes(const std::string& file, const std::function<void(ops::OpTable&)>& change) {
  ops::Backend backend = backend::MakeReferenceBackend(1);
  change(backend.table);
  const std::vector<OpResult> results = RunOpGolden(file, backend);
  return std::ranges::all_of(results, [](const OpResult& result) { return result.comparison.passed; });
}

TEST(EngramMistakes, EachFails) {
  const std::map<std::string, ops::OpFunction<ops::EngramMixArgs>> mistakes = {
      {"unsigned", WrongMix<Fault::kUnsigned>},
      {"no root", WrongMix<Fault::kNoRoot>},
      {"no dim", WrongMix<Fault::kNoDim>},
      {"no key norm", WrongMix<Fault::kNoKeyNorm>},
      {"no q weight", WrongMix<Fault::kNoQWeight>},
      {"value first", WrongMix<Fault::kValueFirst>},
      {"first stream alone", WrongMix<Fault::kFirstStreamAlone>},
      {"joint norm", WrongMix<Fault::kJointNorm>},
      {"images too", WrongMix<Fault::kImagesToo>},
      {"rounded gate", WrongMix<Fault::kRoundedGate>},
      {"replaces", WrongMix<Fault::kReplaces>}};
  EXPECT_TRUE(Passes("engram", [](ops::OpTable& table) { table.engram_mix = WrongMix<Fault::kNone>; }));
  for (const auto& [name, mistake] : mistakes)
    EXPECT_FALSE(Passes("engram", [&](ops::OpTable& table) { table.engram_mix = mistake; })) << name;
}

const ops::OpTable& Right() {
  static const ops::Backend backend = backend::MakeReferenceBackend(1);
  return backend.table;
}

template <ActivationQuant kQuant>
Status Rounded(OpContext& context, const ops::LinearArgs& args) {
  Weight weight = *args.weight;
  weight.activation = kQuant;
  return Right().linear(context, {.x = args.x, .weight = &weight, .y = args.y});
}

// Scales of activations that are no powers of two.
Status FloatScales(OpContext& context, const ops::LinearArgs& args) {
  std::vector<uint16_t> x;
  const std::vector<double> values = Floats(args.x);
  for (size_t first = 0; first < values.size(); first += 32) {
    double max = 1e-4;
    for (size_t i = first; i < first + 32; ++i) max = std::max(max, std::fabs(values[i]));
    const auto scale = static_cast<float>(max) / 448.0F;
    for (size_t i = first; i < first + 32; ++i)
      x.push_back(Bf16FromFloat(FloatFromE4m3(E4m3FromFloat(static_cast<float>(values[i]) / scale)) * scale));
  }
  Weight weight = *args.weight;
  weight.activation = ActivationQuant::kNone;
  return Right().linear(
      context,
      {.x = TensorView::Contiguous(x.data(), DType::kBF16, args.x.shape), .weight = &weight, .y = args.y});
}

// The scale of another block: of the row block behind, or read across.
template <bool kAcross>
Status WrongScale(OpContext& context, const ops::LinearArgs& args) {
  std::vector<uint8_t> scales(static_cast<size_t>(args.weight->scale.num_elements()));
  const int64_t rows = args.weight->scale.shape[0];
  const int64_t cols = args.weight->scale.shape[1];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t from = kAcross ? (c * rows + r) % (rows * cols) : (r + 1) % rows * cols + c;
      scales[static_cast<size_t>(r * cols + c)] = args.weight->scale.as<const uint8_t>()[from];
    }
  }
  Weight weight = *args.weight;
  weight.scale = TensorView::Contiguous(scales.data(), args.weight->scale.dtype, args.weight->scale.shape);
  return Right().linear(context, {.x = args.x, .weight = &weight, .y = args.y});
}

TEST(FineLinearMistakes, EachFails) {
  const std::map<std::string, ops::OpFunction<ops::LinearArgs>> mistakes = {
      {"groups of 128", Rounded<ActivationQuant::kFp8Block>},
      {"no rounding", Rounded<ActivationQuant::kNone>},
      {"scales that are no powers of two", FloatScales},
      {"the scale of the next rows", WrongScale<false>},
      {"scales read across", WrongScale<true>}};
  for (const std::string file : {"linear_fp8_32", "linear_mxfp4_32"}) {
    EXPECT_TRUE(Passes(file, [](ops::OpTable&) {}));
    for (const auto& [name, mistake] : mistakes) {
      // The bound of this file's sums is wider than the difference that its outliers make.
      if (file == "linear_fp8_32" && name == "groups of 128") continue;
      EXPECT_FALSE(Passes(file, [&](ops::OpTable& table) { table.linear = mistake; }))
          << file << ", " << name;
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
