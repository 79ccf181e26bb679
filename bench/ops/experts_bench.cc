// routed_experts with the shape of `mini`: every call uses the experts of another layer, so that their
// weights come from memory.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "bench/ops/bench.h"
#include "formats/number_formats.h"

namespace dsv4::bench {

namespace {

constexpr int64_t kDim = 2048;
constexpr int64_t kWidth = 1024;
constexpr int64_t kExperts = 32;
constexpr int64_t kTopK = 6;
constexpr int64_t kLayers = 3;
constexpr float kLimit = 10.0F;

// Choices that the router might make: distinct experts for each token.
std::vector<int32_t> Choose(int64_t num_tokens) {
  std::mt19937 random(3);
  std::vector<int32_t> experts(kExperts);
  std::iota(experts.begin(), experts.end(), 0);
  std::vector<int32_t> chosen;
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::shuffle(experts.begin(), experts.end(), random);
    chosen.insert(chosen.end(), experts.begin(), experts.begin() + kTopK);
  }
  return chosen;
}

// The contract: the composition of linear and swiglu, expert by expert in ascending order, bit for bit.
void CheckToken(const Machine& machine, std::span<const ops::ExpertWeights> experts,
                std::vector<int32_t> chosen, float weight, std::vector<uint16_t> x, std::span<const float> y,
                const std::string& what) {
  std::sort(chosen.begin(), chosen.end());
  ops::OpContext& context = *machine.backend.context;
  const ops::OpTable& table = machine.backend.table;
  std::vector<float> want(kDim, 0.0F);
  for (const int32_t expert : chosen) {
    const ops::ExpertWeights& weights = experts[static_cast<size_t>(expert)];
    std::vector<uint16_t> gate(kWidth);
    std::vector<uint16_t> up(kWidth);
    std::vector<float> down(kDim);
    std::vector<uint16_t> rounded(kDim);
    const TensorView weight_view = TensorView::Contiguous(static_cast<void*>(&weight), DType::kF32, {1});
    Require(table.linear(context, {View(x, {1, kDim}), &weights.w1, View(gate, {1, kWidth})}));
    Require(table.linear(context, {View(x, {1, kDim}), &weights.w3, View(up, {1, kWidth})}));
    Require(table.swiglu(context, {View(gate, {1, kWidth}), View(up, {1, kWidth}), weight_view,
                                   View(gate, {1, kWidth}), kLimit}));
    Require(table.linear(context, {View(gate, {1, kWidth}), &weights.w2, View(rounded, {1, kDim})}));
    for (size_t i = 0; i < want.size(); ++i) want[i] += FloatFromBf16(rounded[i]);
  }
  if (!std::equal(want.begin(), want.end(), y.begin()))
    Fail(fmt::format("{}: not the composition of its parts", what));
}

}  // namespace

void BenchRoutedExperts(const Machine& machine, const Wanted& wanted) {
  for (const std::string format : {"nvfp4", "mxfp4", "fp8"}) {
    std::vector<RandomWeight> made;
    std::vector<ops::ExpertWeights> experts;
    for (const int64_t tokens : {1, 8, 512}) {
      const std::string what = fmt::format("routed_experts {} x {}", format, tokens);
      if (!wanted(what)) continue;
      for (int64_t i = static_cast<int64_t>(experts.size()); i < kLayers * kExperts; ++i) {
        for (int w = 0; w < 3; ++w)
          made.push_back(w == 1 ? MakeWeight(format, kDim, kWidth) : MakeWeight(format, kWidth, kDim));
        experts.push_back({made.end()[-3].weight, made.end()[-2].weight, made.end()[-1].weight});
      }
      std::vector<int32_t> indices = Choose(tokens);
      std::vector<float> weights(indices.size(), 0.25F);
      std::vector<uint16_t> x = Normals(tokens * kDim);
      std::vector<float> y(static_cast<size_t>(tokens * kDim));
      int64_t layer = 0;
      const auto run = [&] {
        Require(machine.backend.table.routed_experts(
            *machine.backend.context,
            {View(x, {tokens, kDim}),
             TensorView::Contiguous(static_cast<void*>(indices.data()), DType::kI32, {tokens, kTopK}),
             TensorView::Contiguous(static_cast<void*>(weights.data()), DType::kF32, {tokens, kTopK}),
             std::span(experts).subspan(static_cast<size_t>(layer * kExperts), kExperts), kLimit,
             TensorView::Contiguous(static_cast<void*>(y.data()), DType::kF32, {tokens, kDim})}));
        layer = (layer + 1) % kLayers;
      };
      run();
      for (const int64_t token : {int64_t{0}, tokens - 1}) {
        CheckToken(machine, std::span(experts).first(kExperts),
                   {indices.begin() + token * kTopK, indices.begin() + (token + 1) * kTopK}, 0.25F,
                   {x.begin() + token * kDim, x.begin() + (token + 1) * kDim},
                   std::span(y).subspan(static_cast<size_t>(token * kDim), kDim), what);
      }
      const double distinct = static_cast<double>(std::set(indices.begin(), indices.end()).size());
      const double expert_bytes =
          static_cast<double>(made[0].num_bytes() + made[1].num_bytes() + made[2].num_bytes());
      Print(machine, what, Time(machine, run), distinct * expert_bytes,
            static_cast<double>(3 * tokens * kTopK * kDim * kWidth));
    }
  }
}

}  // namespace dsv4::bench
