// Experts of ops::WeightTier::kCached without a device (null_runtime.cc): where their numbers lie, what is
// refused, and which launches a step makes. That the bits are those of resident experts a device must tell
// (cuda_expert_tiers_test.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/weights/device_weight.h"
#include "backend/cuda/weights/e2m1_order.h"
#include "base/check.h"
#include "model/runtime/model.h"
#include "tests/cuda/flash_sizes.h"
#include "tests/cuda/null_runtime.h"

namespace dsv4::testing {
namespace {

using ::testing::HasSubstr;

// Tensors of so many numbers that threads share them.
struct Stored {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;
  Weight weight;
};

Stored MakeStored(WeightFormat format) {
  constexpr int64_t kRows = 512;
  constexpr int64_t kCols = 8192;
  const int64_t block = format == WeightFormat::kNvFp4 ? kNvFp4Block : kMxFp4Block;
  Stored stored;
  stored.data.resize(kRows * kCols / 2);
  stored.scale.resize(static_cast<size_t>(kRows * (kCols / block)));
  for (size_t i = 0; i < stored.data.size(); ++i)
    stored.data[i] = static_cast<uint8_t>((i * 0x9E3779B97F4A7C15) >> 56);
  for (size_t i = 0; i < stored.scale.size(); ++i) stored.scale[i] = static_cast<uint8_t>(i % 100);
  stored.weight.format = format;
  stored.weight.rows = kRows;
  stored.weight.cols = kCols;
  stored.weight.data =
      TensorView::Contiguous(static_cast<void*>(stored.data.data()), DType::kU8, {kRows, kCols / 2});
  stored.weight.scale = TensorView::Contiguous(
      static_cast<void*>(stored.scale.data()),
      format == WeightFormat::kNvFp4 ? DType::kF8E4M3 : DType::kF8E8M0, {kRows, kCols / block});
  return stored;
}

Result<Weight> Prepare(const ops::Backend& backend, const Weight& source) {
  Weight prepared;
  DSV4_TRY(backend.table.prepare_weight(
      *backend.context,
      {.source = &source, .prepared = &prepared, .tier = ops::WeightTier::kCached, .slots = 8}));
  // A weight of another tier waits for the copies.
  Weight small = source;
  small.rows = 1;
  small.data = source.data.Rows(0, 1);
  small.scale = source.scale.Rows(0, 1);
  Weight resident;
  DSV4_TRY(backend.table.prepare_weight(*backend.context, {.source = &small, .prepared = &resident}));
  return prepared;
}

TEST(ExpertCache, NumbersStayOnTheHostAsTheDeviceWantsThem) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  for (const WeightFormat format : {WeightFormat::kMxFp4, WeightFormat::kNvFp4}) {
    const Stored stored = MakeStored(format);
    const Weight kept = Take(Prepare(backend, stored.weight));
    EXPECT_EQ(kept.data.device.type, DeviceType::kHost);
    EXPECT_NE(kept.data.data, stored.weight.data.data);
    EXPECT_TRUE(kept.repacked);
    std::vector<uint8_t> want = stored.data;
    for (size_t i = 0; i < want.size(); i += 8) {
      uint64_t codes;
      std::memcpy(&codes, &want[i], sizeof(codes));
      codes = backend::cuda::InE2m1Order(codes);
      std::memcpy(&want[i], &codes, sizeof(codes));
    }
    EXPECT_EQ(std::memcmp(kept.data.data, want.data(), want.size()), 0);
    EXPECT_EQ(std::memcmp(kept.scale.data, stored.scale.data(), stored.scale.size()), 0);
    // As a slot is, in which kernels copy in bulk.
    EXPECT_EQ(reinterpret_cast<uintptr_t>(kept.data.data) % 256, 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(kept.scale.data) % 256, 0);
  }
}

// MXFP4 is as stored only where products in FP8 read it: with activations rounded by 128 columns.
TEST(PrepareWeight, OrderOfMxFp4) {
  struct Case {
    backend::cuda::Fp8Products products;
    ActivationQuant activation;
    bool repacked;
  };
  using backend::cuda::Fp8Products;
  for (const Case& c : {Case{Fp8Products::kOff, ActivationQuant::kFp8Block, true},
                        Case{Fp8Products::kMany, ActivationQuant::kFp8Block, false},
                        Case{Fp8Products::kAll, ActivationQuant::kFp8Block, false},
                        Case{Fp8Products::kMany, ActivationQuant::kFp8Columns32, true},
                        Case{Fp8Products::kMany, ActivationQuant::kNone, true}}) {
    const ops::Backend backend = Take(backend::MakeCudaBackend({.fp8_products = c.products}));
    Stored stored = MakeStored(WeightFormat::kMxFp4);
    stored.weight.activation = c.activation;
    Weight prepared;
    ASSERT_TRUE(
        backend.table.prepare_weight(*backend.context, {.source = &stored.weight, .prepared = &prepared})
            .ok());
    EXPECT_EQ(prepared.repacked, c.repacked);
    EXPECT_EQ(backend::cuda::MakeDeviceWeight(prepared, DType::kBF16).kind,
              c.repacked ? backend::cuda::MatmulKind::kMmaMxFp4 : backend::cuda::MatmulKind::kMmaMxFp4Stored);
  }
}

TEST(ExpertCache, MemoryThatCannotBePinnedIsANamedError) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const Stored stored = MakeStored(WeightFormat::kMxFp4);
  null_runtime::max_pinned_bytes = size_t{1} << 20;
  const Result<Weight> kept = Prepare(backend, stored.weight);
  null_runtime::max_pinned_bytes = SIZE_MAX;
  ASSERT_FALSE(kept.has_value());
  EXPECT_EQ(kept.error().code(), StatusCode::kResourceExhausted) << kept.error().ToString();
  EXPECT_THAT(kept.error().message(), HasSubstr("cached experts: 0.00 GB of the host's memory are pinned"));
  EXPECT_THAT(kept.error().message(), HasSubstr("pinning 268435456 bytes"));
  EXPECT_TRUE(Prepare(backend, stored.weight).has_value()) << "the backend goes on";
}

TEST(ExpertCache, ProductsInFp8AreRefused) {
  const ops::Backend backend =
      Take(backend::MakeCudaBackend({.fp8_products = backend::cuda::Fp8Products::kAll}));
  const Stored stored = MakeStored(WeightFormat::kMxFp4);
  const Result<Weight> kept = Prepare(backend, stored.weight);
  ASSERT_FALSE(kept.has_value());
  EXPECT_THAT(kept.error().message(), HasSubstr("DSV4_CUDA_FP8_PRODUCTS"));
}

TEST(ExpertCache, TheRateOfTheLinkWantsPinnedMemoryAndGivesItBack) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  EXPECT_GT(Take(backend::HostToDeviceRate(backend)), 0);
  null_runtime::max_pinned_bytes = size_t{1} << 20;
  const Result<double> rate = backend::HostToDeviceRate(backend);
  null_runtime::max_pinned_bytes = SIZE_MAX;
  ASSERT_FALSE(rate.has_value());
  EXPECT_EQ(rate.error().code(), StatusCode::kResourceExhausted) << rate.error().ToString();
}

Result<std::unique_ptr<model::Model>> LoadTiny(const ops::Backend& backend, const model::ExpertSplit& split) {
  model::ModelOptions options;
  options.experts = split;
  return model::Model::Load("models/tiny", backend, options);  // Tests run in the source root.
}

TEST(ExpertCache, RoomForLessThanALayerIsRefused) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  for (const int64_t slots : {0, 7}) {
    const auto model = LoadTiny(backend, {.resident = 8, .cached = 8, .slots = slots});
    ASSERT_FALSE(model.has_value());
    EXPECT_THAT(model.error().message(), HasSubstr("slots, want those of a layer at least"));
  }
}

TEST(ExpertCache, ADeviceWithoutMemoryForTheSlotsIsANamedErrorAndTheNextStepWorks) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto model = Take(LoadTiny(backend, {.resident = 0, .cached = 16, .slots = 112}));
  kv::SequenceState sequence = Take(model->NewSequence());
  const auto step = [&] {
    const int32_t token = 1;
    const model::SequenceChunk chunk = {.state = &sequence, .tokens = {&token, 1}};
    const auto output = model->Step({&chunk, 1});
    return output.has_value() ? Status() : output.error();
  };
  null_runtime::max_device_bytes = size_t{4} << 20;
  const Status refused = step();
  null_runtime::max_device_bytes = SIZE_MAX;
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.ToString();
  EXPECT_THAT(refused.message(), HasSubstr("cached experts: room for 112 of"));
  EXPECT_TRUE(step().ok());
  EXPECT_EQ(backend::ExpertCacheCountersOf(backend).slots, 112);
}

TEST(ExpertCache, SlotsThatThereIsNoMemoryForLeaveAsManyAsThereWere) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto model = Take(LoadTiny(backend, {.resident = 0, .cached = 16, .slots = 20}));
  kv::SequenceState sequence = Take(model->NewSequence());
  const auto step = [&] {
    const int32_t token = 1;
    const model::SequenceChunk chunk = {.state = &sequence, .tokens = {&token, 1}};
    return model->Step({&chunk, 1}).has_value();
  };
  EXPECT_TRUE(step());
  EXPECT_TRUE(backend::SetExpertSlots(backend, 40).ok());
  EXPECT_TRUE(step());
  EXPECT_EQ(backend::ExpertCacheCountersOf(backend).slots, 40);
  null_runtime::max_device_bytes = size_t{4} << 20;
  const Status refused = backend::SetExpertSlots(backend, 112);
  null_runtime::max_device_bytes = SIZE_MAX;
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.ToString();
  EXPECT_THAT(refused.message(), HasSubstr("cached experts: room for 112 of"));
  EXPECT_TRUE(step());
  EXPECT_EQ(backend::ExpertCacheCountersOf(backend).slots, 40);
  null_runtime::max_device_bytes = size_t{1} << 10;
  EXPECT_FALSE(backend::SetExpertSlots(backend, 112).ok());
  null_runtime::max_device_bytes = SIZE_MAX;
  EXPECT_TRUE(step()) << "experts are read from where they stay";
}

// Loading a model again with another split, as --experts auto does.
TEST(ExpertCache, AModelThatIsForgottenLeavesNothingPinnedAndTheNextOneCountsAnew) {
  const ops::Backend host = Take(backend::MakeCpuBackend({.num_threads = 1}));
  const ops::Backend backend = Take(backend::MakeCudaBackend({.host = host}));
  ASSERT_EQ(null_runtime::registered, 0);
  const auto step = [&](const model::ExpertSplit& split) {
    const auto model = Take(LoadTiny(backend, split));
    kv::SequenceState sequence = Take(model->NewSequence());
    const int32_t token = 1;
    const model::SequenceChunk chunk = {.state = &sequence, .tokens = {&token, 1}};
    ASSERT_TRUE(model->Step({&chunk, 1}).has_value());
    EXPECT_GT(null_runtime::registered, 0);
    EXPECT_EQ(backend::ExpertCacheCountersOf(backend).slots, split.slots);
  };
  step({.host = 4, .cached = 12, .slots = 30});
  EXPECT_GT(null_runtime::registered, 0) << "layers' tables keep them";
  const int64_t pinned = backend::PinnedLoadOf(backend).bytes;
  EXPECT_GT(pinned, 0);
  ASSERT_TRUE(backend::ForgetWeights(backend).ok());
  EXPECT_EQ(null_runtime::registered, 0);
  EXPECT_EQ(backend::ExpertCacheCountersOf(backend).slots, 0);
  EXPECT_EQ(backend::HostExpertCountersOf(backend).requests, 0);
  EXPECT_EQ(backend::PinnedLoadOf(backend).bytes, 0);
  step({.host = 8, .cached = 8, .slots = 20});
  EXPECT_EQ(backend::PinnedLoadOf(backend).bytes, pinned / 12 * 8);
  ASSERT_TRUE(backend::ForgetWeights(backend).ok());
  ASSERT_TRUE(backend::ForgetWeights(backend).ok()) << "nothing is left to forget";
  // All experts have room, which a count of all that ever came would not see.
  step({.cached = 16, .slots = 7 * 16});
}

// Launches of the tenth step of one token, and how many lists of the next steps were not replayed.
std::pair<int64_t, int64_t> StepOf(const model::ExpertSplit& split) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto model = Take(LoadTiny(backend, split));
  kv::SequenceState sequence = Take(model->NewSequence());
  backend::CudaCounters tenth;
  int64_t launches = 0;
  for (int i = 0; i < 200; ++i) {
    const backend::CudaCounters before = backend::CountersOf(backend);
    const int32_t token = 1;
    const model::SequenceChunk chunk = {.state = &sequence, .tokens = {&token, 1}};
    EXPECT_TRUE(model->Step({&chunk, 1}).has_value());
    if (i != 9) continue;
    tenth = backend::CountersOf(backend);
    launches = tenth.launches - before.launches;
  }
  const backend::CudaCounters after = backend::CountersOf(backend);
  return {launches, after.lists - tenth.lists - (after.replayed_lists - tenth.replayed_lists)};
}

TEST(ExpertCache, AStepHasTwoLaunchesMoreALayerAndIsReplayed) {
  const auto [resident, walked] = StepOf({});
  const auto [cached, walked_with_cache] = StepOf({.resident = 0, .cached = 16, .slots = 40});
  constexpr int64_t kLayers = 7;
  EXPECT_EQ(cached, resident + 2 * kLayers);
  EXPECT_LE(walked_with_cache, walked + 4);
}

// Bytes that the DMA engine brings for passes of so many tokens, one behind the other.
std::vector<int64_t> BroughtByPasses(const ops::Backend& backend, const model::ExpertSplit& split,
                                     const std::vector<int>& passes) {
  const auto model = Take(LoadTiny(backend, split));
  kv::SequenceState sequence = Take(model->NewSequence());
  std::vector<int64_t> brought;
  for (const int num_tokens : passes) {
    const int64_t before = null_runtime::copied_to_device;
    const std::vector<int32_t> tokens(static_cast<size_t>(num_tokens), 1);
    const model::SequenceChunk chunk = {.state = &sequence, .tokens = tokens};
    EXPECT_TRUE(model->Step({&chunk, 1}).has_value());
    brought.push_back(null_runtime::copied_to_device - before);
  }
  return brought;
}

// A model of 7 layers with 16 experts each. Kernels do nothing: where the host asks the cache, it is empty.
TEST(ExpertCache, LongPassesBringALayersExpertsWithTheDmaEngine) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const std::vector<int64_t> few = BroughtByPasses(backend, {.cached = 16, .slots = 40}, {64, 64, 15, 1, 64});
  const int64_t all = few[0];
  EXPECT_GT(all, 0);
  // Buffers take 10 of 40 slots. Experts in the 30 others are not brought again.
  EXPECT_NEAR(static_cast<double>(few[1]) / static_cast<double>(all), (112.0 - 30) / 112, 0.02);
  EXPECT_EQ(few[2], 0) << "15 tokens have 60 choices";
  EXPECT_EQ(few[3], 0);
  EXPECT_EQ(few[4], all) << "shorter passes may have moved them";
  // Room for all: they come once, when they are chosen.
  const ops::Backend roomy = Take(backend::MakeCudaBackend({}));
  EXPECT_EQ(BroughtByPasses(roomy, {.cached = 16, .slots = 112}, {64})[0], 0);
}

// Time of a pass on a device whose streams do their work in order. A launch takes one unit of time, a copy as
// many as it has bytes for.
struct Took {
  double all = 0;
  double launches = 0;  // By themselves,
  double copies = 0;    // and these.
  int waits_of_host = 0;
};

Took TimeOf(std::span<const null_runtime::StreamCall> calls, double bytes_of_unit) {
  using Kind = null_runtime::StreamCall::Kind;
  std::map<const void*, double> streams;
  std::map<const void*, double> events;
  Took took;
  for (const null_runtime::StreamCall& call : calls) {
    double& now = streams[call.stream];
    switch (call.kind) {
      case Kind::kLaunch:
        now += 1;
        took.launches += 1;
        break;
      case Kind::kCopyToDevice: {
        const double units = static_cast<double>(call.num_bytes) / bytes_of_unit;
        now += units;
        took.copies += units;
        break;
      }
      case Kind::kRecord:
        events[call.event] = now;
        break;
      case Kind::kWait:
        now = std::max(now, events[call.event]);
        break;
      case Kind::kSynchronize:
        ++took.waits_of_host;
        break;
    }
    took.all = std::max(took.all, now);
  }
  return took;
}

// With any room, copies of every layer go on while the one in front of it is computed. The host waits for
// nothing but the end. Copies take a third longer than the launches here.
TEST(ExpertCache, TheDmaEngineIsBusyWhileLongPassesAreComputed) {
  for (const int64_t slots : {40, 56, 72, 96}) {
    const ops::Backend backend = Take(backend::MakeCudaBackend({.graphs = false}));
    const auto model = Take(LoadTiny(backend, {.cached = 16, .slots = slots}));
    kv::SequenceState sequence = Take(model->NewSequence());
    Took took;
    for (int pass = 0; pass < 3; ++pass) {
      const std::vector<int32_t> tokens(64, 1);
      const model::SequenceChunk chunk = {.state = &sequence, .tokens = tokens};
      null_runtime::WatchStreams();
      EXPECT_TRUE(model->Step({&chunk, 1}).has_value());
      const std::vector<null_runtime::StreamCall> calls = null_runtime::TakeStreamCalls();
      const Took alone = TimeOf(calls, 1);
      took = TimeOf(calls, 0.75 * alone.copies / alone.launches);
    }
    EXPECT_LE(took.all, 1.1 * took.copies) << slots << " slots";
    EXPECT_EQ(took.waits_of_host, 1) << slots << " slots";
  }
}

}  // namespace
}  // namespace dsv4::testing
