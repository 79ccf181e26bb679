// Experts that the host multiplies for a device. Their bytes stay at the addresses that prepare_weight got
// for as long as the model lives. Everything else of the checkpoint is let go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "base/parallel.h"
#include "model/arch/architecture.h"
#include "model/runtime/model.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::model {
namespace {

// The host's memory under another name.
class DeviceLikeMemory final : public Memory {
 public:
  Device device() const override { return {DeviceType::kCuda, 0}; }
  Result<Buffer> Allocate(size_t num_bytes) override {
    DSV4_ASSIGN_OR_RETURN(const Buffer buffer, HostMemory().Allocate(num_bytes));
    return Buffer(std::shared_ptr<void>(std::make_shared<Buffer>(buffer), buffer.data()), num_bytes,
                  device());
  }
  Status Copy(void* to, const void* from, size_t num_bytes, Stream) override {
    std::memcpy(to, from, num_bytes);
    return {};
  }
  Status CopyFromHost(void* to, const void* from, size_t num_bytes, Stream stream) override {
    return Copy(to, from, num_bytes, stream);
  }
  Status CopyToHost(void* to, const void* from, size_t num_bytes, Stream stream) override {
    return Copy(to, from, num_bytes, stream);
  }
};

// Weights left on the host, and their bytes then.
struct Left {
  TensorView view;
  std::vector<std::byte> bytes;
};

class DeviceLikeContext final : public ops::OpContext {
 public:
  DeviceLikeMemory& memory() override { return memory_; }
  ThreadPool& threads() override { return threads_; }
  Stream stream() override { return nullptr; }
  std::vector<Left> left;
  int64_t num_moved = 0;
  int64_t num_cached = 0;
  int64_t slots = 0;

 private:
  DeviceLikeMemory memory_;
  ThreadPool threads_{1};
};

template <typename Args>
Status Skip(ops::OpContext&, const Args&) {
  return {};
}

Status PrepareOrLeave(ops::OpContext& context, const ops::PrepareWeightArgs& args) {
  auto& device = static_cast<DeviceLikeContext&>(context);
  *args.prepared = *args.source;
  if (args.tier == ops::WeightTier::kHost) {
    for (const TensorView& view : {args.source->data, args.source->scale}) {
      if (view.is_null()) continue;
      const auto* const begin = view.as<const std::byte>();
      device.left.push_back({view, {begin, begin + view.num_bytes()}});
    }
    return {};
  }
  if (args.tier == ops::WeightTier::kCached) {
    ++device.num_cached;
    device.slots = args.slots;
  }
  ++device.num_moved;
  for (TensorView* const view : {&args.prepared->data, &args.prepared->scale}) {
    if (!view->is_null()) view->device = device.memory().device();
  }
  return {};
}

ops::Backend DeviceLikeBackend(const std::shared_ptr<DeviceLikeContext>& context) {
  ops::Backend backend{.name = "like a device", .table = {}, .context = context};
#define DSV4_SKIP_OP(name, Op) backend.table.name = Skip<ops::Op##Args>;
  DSV4_FOR_EVERY_OP(DSV4_SKIP_OP)
#undef DSV4_SKIP_OP
  backend.table.prepare_weight = PrepareOrLeave;
  return backend;
}

void ExpectUnchanged(const DeviceLikeContext& context) {
  ASSERT_FALSE(context.left.empty());
  for (const Left& left : context.left)
    EXPECT_EQ(std::memcmp(left.view.data, left.bytes.data(), left.bytes.size()), 0);
}

TEST(HostTier, StaysMappedWithAModelOfFiles) {
  const auto context = std::make_shared<DeviceLikeContext>();
  const Result<ModelConfig> config = LoadModelConfig("models/tiny");  // Tests run in the source root.
  ASSERT_TRUE(config.has_value());
  ModelOptions options;
  options.experts = {1, config->n_routed_experts - 1};
  const auto model = Model::Load("models/tiny", DeviceLikeBackend(context), options);
  ASSERT_TRUE(model.has_value()) << model.error().message();
  // Two or three matrices with scales an expert.
  EXPECT_GE(static_cast<int64_t>(context->left.size()), config->num_hidden_layers * options.experts.host * 3);
  EXPECT_GT(context->num_moved, 0);
  ExpectUnchanged(*context);
}

TEST(HostTier, KeepsNumbersThatAreMadeInMemory) {
  const auto context = std::make_shared<DeviceLikeContext>();
  const SyntheticOptions synthetic{.num_layers = {}, .vocab_size = {}, .format = SyntheticFormat::kRelease};
  const ModelConfig config = *ParseModelConfig(*SyntheticConfig(synthetic), "test");
  ModelOptions options;
  options.experts = {config.n_routed_experts - 1, 1};
  // The model alone holds the checkpoint.
  const auto model = Model::FromCheckpoint(config, *MakeSyntheticCheckpoint("test", synthetic, 1),
                                           DeviceLikeBackend(context), options);
  ASSERT_TRUE(model.has_value()) << model.error().message();
  ExpectUnchanged(*context);
}

TEST(HostTier, ABackendIsToldWhichExpertsAreCachedAndForHowManyThereIsRoom) {
  const auto context = std::make_shared<DeviceLikeContext>();
  const Result<ModelConfig> config = LoadModelConfig("models/tiny");
  ASSERT_TRUE(config.has_value());
  ModelOptions options;
  options.experts = {.resident = config->n_routed_experts - 5, .host = 2, .cached = 3, .slots = 11};
  const auto model = Model::Load("models/tiny", DeviceLikeBackend(context), options);
  ASSERT_TRUE(model.has_value()) << model.error().message();
  EXPECT_EQ(context->num_cached, config->num_hidden_layers * 3 * 3);
  EXPECT_EQ(context->slots, 11);
  ExpectUnchanged(*context);
}

}  // namespace
}  // namespace dsv4::model
