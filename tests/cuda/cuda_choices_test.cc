// Report of the backend on its choices, on the null runtime. It is a line in the log where a release-sized op
// has no fast kernel, and the text of `dsv4 bench --explain`.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/log_sink.h"
#include "tests/cuda/device_tensors.h"
#include "tests/cuda/flash_sizes.h"

namespace dsv4::testing {
namespace {

TEST(CudaChoices, AWideOpWithoutAFastKernelIsLoggedOnce) {
  Device device;
  std::vector<std::string> missed;
  const LogSink::Callback keep = [&](LogLevel, const std::string& message) {
    if (message.find("no fast kernel") != std::string::npos) missed.push_back(message);
  };
  const LogSink sink(keep);
  const auto multiply = [&](int64_t width, DType dtype) {
    const DeviceTensor data = device.New(dtype, {width, width});
    const DeviceTensor x = device.New(DType::kBF16, {1, width});
    const DeviceTensor y = device.New(DType::kBF16, {1, width});
    Weight weight;
    weight.rows = width;
    weight.cols = width;
    weight.data = data.view;
    EXPECT_TRUE(device.table().linear(device.context(), {.x = x.view, .weight = &weight, .y = y.view}).ok());
  };
  multiply(1024, DType::kBF16);
  multiply(512, DType::kF32);
  EXPECT_EQ(missed, std::vector<std::string>()) << "a fast kernel, and a small model's sizes";
  multiply(1024, DType::kF32);
  ASSERT_EQ(missed.size(), 1U);
  EXPECT_NE(missed[0].find("op linear"), std::string::npos) << missed[0];
  EXPECT_NE(missed[0].find("[1, 1024]"), std::string::npos) << missed[0];
  EXPECT_NE(missed[0].find("gemm/gemm_fma (the rest: fp32)"), std::string::npos) << missed[0];
  multiply(2048, DType::kF32);
  EXPECT_EQ(missed.size(), 1U) << "once an op";
}

TEST(CudaChoices, AreToldWithReasonsAndFusions) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({.explain = true}));
  const auto model = MakeFlash(backend);
  kv::SequenceState sequence = Take(model->NewSequence());
  for (int32_t token = 0; token < 3; ++token) {
    const model::SequenceChunk chunk = {.state = &sequence, .tokens = {&token, 1}};
    ASSERT_TRUE(model->Step({&chunk, 1}).has_value());
  }
  const std::vector<backend::CudaChoice> choices = backend::ChoicesOf(backend);
  const auto of = [&](const std::string& op, const std::string& kernel, const std::string& reason) {
    int64_t count = 0;
    for (const backend::CudaChoice& choice : choices) {
      const bool is = choice.op.starts_with(op) && choice.kernel == kernel &&
                      choice.reason.find(reason) != std::string::npos;
      count += is ? choice.count : 0;
    }
    return count;
  };
  // Four layers, three steps; what begins a group is told by its kernel, what follows by its rule.
  EXPECT_EQ(of("attention ", "attention/decode_cluster", "up to 8 tokens"), 12);
  EXPECT_EQ(of("routed_experts ", "moe/gemv_joint", "FP4"), 12);
  EXPECT_EQ(of("rope ", "", "attention, rope"), 12);
  for (const backend::CudaChoice& choice : choices) EXPECT_FALSE(choice.reason.empty()) << choice.op;
  EXPECT_TRUE(backend::ChoicesOf(Take(backend::MakeCudaBackend({}))).empty());
}

// Scales of a trained model's experts are of other sizes in each.
TEST(CudaChoices, ExpertsWhoseScalesReachFurtherAreAlike) {
  constexpr int64_t kDim = 512;
  constexpr int64_t kWidth = 256;
  constexpr int64_t kTopK = 2;
  constexpr int64_t kTokens = 300;
  for (const Format format : {Format::kMxFp4, Format::kFineMxFp4, Format::kNvFp4}) {
    Device device({.explain = true});
    std::vector<ops::ExpertWeights> experts;
    for (uint32_t e = 0; e < 4; ++e) {
      HostWeight w1 = RandomHostWeight(format, kWidth, kDim, 3 * e);
      HostWeight w2 = RandomHostWeight(format, kDim, kWidth, 3 * e + 1);
      const HostWeight w3 = RandomHostWeight(format, kWidth, kDim, 3 * e + 2);
      w1.matrix.scale[5] = static_cast<uint8_t>(w1.matrix.scale[5] - e);
      w2.matrix.scale[7] = static_cast<uint8_t>(w2.matrix.scale[7] - 2 * e);
      experts.push_back({.w1 = device.Prepare(w1.weight),
                         .w2 = device.Prepare(w2.weight),
                         .w3 = device.Prepare(w3.weight)});
    }
    const DeviceTensor x = device.New(DType::kBF16, {kTokens, kDim});
    const DeviceTensor indices = device.New(DType::kI32, {kTokens, kTopK});
    const DeviceTensor routing = device.New(DType::kF32, {kTokens, kTopK});
    const DeviceTensor y = device.New(DType::kF32, {kTokens, kDim});
    const Status status = device.table().routed_experts(device.context(), {.x = x.view,
                                                                           .indices = indices.view,
                                                                           .weights = routing.view,
                                                                           .experts = experts,
                                                                           .limit = 7.0F,
                                                                           .y = y.view});
    ASSERT_TRUE(status.ok()) << status.ToString();
    const std::vector<backend::CudaChoice> choices = backend::ChoicesOf(device.backend());
    ASSERT_EQ(choices.size(), 1U);
    EXPECT_NE(choices[0].kernel, "moe/routed_experts") << choices[0].reason;
  }
}

}  // namespace
}  // namespace dsv4::testing
