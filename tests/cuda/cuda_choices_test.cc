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
  EXPECT_EQ(of("attention ", "", "indexer_select, attention"), 3) << "one layer has a list";
  for (const backend::CudaChoice& choice : choices) EXPECT_FALSE(choice.reason.empty()) << choice.op;
  EXPECT_TRUE(backend::ChoicesOf(Take(backend::MakeCudaBackend({}))).empty());
}

}  // namespace
}  // namespace dsv4::testing
