// Tests of the memory plan: what a load and a step really hold, against what was planned.
#include "model/planning/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "comm/null_group.h"
#include "model/arch/architecture.h"
#include "model/config/cache_geometry.h"
#include "model/synthetic/synthetic.h"
#include "tensor/host_memory_testing.h"

namespace dsv4::model {
namespace {

using ::testing::HasSubstr;

// The host's memory, with what is held of it counted.
class WatchedMemory final : public ForwardingHostMemory {
 public:
  Result<Buffer> Allocate(size_t num_bytes) override {
    DSV4_ASSIGN_OR_RETURN(Buffer buffer, HostMemory().Allocate(num_bytes));
    *held_ += static_cast<int64_t>(num_bytes);
    const auto release = [buffer, held = held_](void*) { *held -= static_cast<int64_t>(buffer.num_bytes()); };
    return Buffer(std::shared_ptr<void>(buffer.data(), release), num_bytes, device());
  }
  int64_t held() const { return *held_; }

 private:
  std::shared_ptr<int64_t> held_ = std::make_shared<int64_t>(0);
};

class WatchedContext final : public ops::OpContext {
 public:
  explicit WatchedContext(std::shared_ptr<ops::OpContext> inner) : inner_(std::move(inner)) {}
  WatchedMemory& memory() override { return memory_; }
  ThreadPool& threads() override { return inner_->threads(); }
  Stream stream() override { return nullptr; }

 private:
  std::shared_ptr<ops::OpContext> inner_;
  WatchedMemory memory_;
};

class MemoryPlanTest : public ::testing::Test {
 protected:
  MemoryPlanTest() {
    SyntheticOptions synthetic{.num_layers = {}, .vocab_size = {}, .format = SyntheticFormat::kRelease};
    config_ = *ParseModelConfig(*SyntheticConfig(synthetic), "test");
    checkpoint_ = *MakeSyntheticCheckpoint("test", synthetic, 1);
    options_.max_chunk_tokens = 96;
  }

  MemoryPlan Plan(const MemoryRequest& request = {}) const {
    const Result<MemoryPlan> plan = PlanMemory(config_, checkpoint_, options_, request);
    EXPECT_TRUE(plan.has_value()) << plan.error().message();
    return plan.value_or(MemoryPlan());
  }

  ModelConfig config_;
  std::shared_ptr<const io::Checkpoint> checkpoint_;
  ModelOptions options_;
};

TEST_F(MemoryPlanTest, IsWhatAModelReallyTakes) {
  ops::Backend backend = backend::MakeReferenceBackend(1);
  const auto context = std::make_shared<WatchedContext>(backend.context);
  backend.context = context;
  const auto model = Model::FromCheckpoint(config_, checkpoint_, backend, options_);
  ASSERT_TRUE(model.has_value()) << model.error().message();
  const int64_t loaded = context->memory().held();  // Weights stay in the checkpoint here.
  auto state = (*model)->NewSequence();
  ASSERT_TRUE(state.has_value());
  const std::vector<int32_t> tokens(96, 3);
  for (const int64_t length : {96, 192}) {
    const SequenceChunk chunk{.state = &*state, .tokens = tokens, .logits = LogitsRows::kLast};
    ASSERT_TRUE((*model)->Step({&chunk, 1}).has_value());
    ASSERT_EQ(state->length(), length);
  }
  const MemoryPlan plan = Plan({.num_sequences = 1, .context = 192});
  EXPECT_EQ(context->memory().held() - loaded, plan.step + plan.sequence);
  EXPECT_GT(plan.step, 0);

  int64_t stored = 0;
  for (const io::StoredTensor& tensor : checkpoint_->tensors())
    stored += static_cast<int64_t>(tensor.bytes.size());
  // Norms that are stored as bf16 and used as float grow a little.
  EXPECT_GE(plan.weights, stored + loaded);
  EXPECT_LT(plan.weights, stored + loaded + stored / 1000);
}

// A pass of a quarter more tokens lists its terms and takes less memory than one that gathers them.
TEST_F(MemoryPlanTest, CountsTermsThatShardsGather) {
  constexpr int kRanks = 32;
  options_.placement = *ParsePlacement("expert", kRanks);
  options_.group = comm::ImagineGroup(0, kRanks, kRanks);
  const int64_t terms_of_a_token =
      config_.num_experts_per_tok * config_.hidden_size * ElementBytes(DType::kBF16) * kRanks;
  const auto step = [&](int64_t tokens, int64_t gathered_tokens) {
    options_.max_chunk_tokens = tokens;
    options_.max_gathered_terms = gathered_tokens * terms_of_a_token;
    return Plan().step;
  };
  const int64_t gathered = step(800, 800);
  EXPECT_GT(gathered, step(1000, 0));
  EXPECT_EQ(gathered, step(1000, 800));
}

// Ranks on GPUs plan before they meet there: what a rank counts must not be exchanged.
TEST_F(MemoryPlanTest, MakesNoGroupOnADevice) {
  options_.placement = *ParsePlacement("tensor", 2);
  options_.group = comm::ImagineGroup(0, 2, 2);
  const MemoryPlan plan = Plan();
  options_.make_device_group = [](comm::Communicator&, DeviceGroupOf) {
    ADD_FAILURE() << "a plan has met other ranks on a device";
    return Error(Internal("made by a plan"));
  };
  EXPECT_EQ(Plan().total(), plan.total());
}

TEST_F(MemoryPlanTest, CountsEverySequenceAndEveryToken) {
  const MemoryPlan one = Plan({.num_sequences = 1, .context = 1024});
  const MemoryPlan three = Plan({.num_sequences = 3, .context = 1024});
  EXPECT_EQ(three.total() - one.total(), 2 * one.sequence);
  EXPECT_GT(Plan({.num_sequences = 1, .context = 8192}).sequence, one.sequence);
  EXPECT_EQ(Plan({.num_sequences = 1, .context = config_.max_position_embeddings + 1}).context,
            config_.max_position_embeddings);
  EXPECT_THAT(PlanMemory(config_, checkpoint_, options_, {.num_sequences = 0}).error().message(),
              HasSubstr("0 sequences"));
}

TEST_F(MemoryPlanTest, TheLongestContextIsThatWhosePlanFits) {
  const MemoryPlan plan = Plan({.num_sequences = 3, .context = 1000});
  const int64_t all = config_.max_position_embeddings;
  EXPECT_EQ(LongestContext(config_, options_, plan, INT64_MAX / 2), all);
  EXPECT_EQ(LongestContext(config_, options_, plan, plan.weights), 0);
  const kv::CacheLayout layout =
      CacheGeometry(config_, PlansOfStage(config_.layers, {0, plan.num_layers}), options_.numerics,
                    options_.cache_rows, options_.max_chunk_tokens, options_.max_rewind_tokens);
  const int64_t usable = plan.weights + plan.step + 3 * kv::StateBytes(layout, 70'000);
  const int64_t longest = LongestContext(config_, options_, plan, usable);
  EXPECT_GE(longest, 70'000);
  EXPECT_LT(longest, all);
  EXPECT_LE(plan.weights + plan.step + 3 * kv::StateBytes(layout, longest), usable);
  EXPECT_GT(plan.weights + plan.step + 3 * kv::StateBytes(layout, longest + 1), usable);
}

TEST_F(MemoryPlanTest, RefusesWithATableAndWithWhatWouldFit) {
  const MemoryPlan plan = Plan({.num_sequences = 2, .context = 100'000});
  const auto check = [&](int64_t free) {
    return CheckRoom(config_, checkpoint_, options_, plan, {.name = "card", .free = free, .reserved = 1000});
  };
  EXPECT_TRUE(check(plan.total() + 1000).ok());

  const Status tight = check(plan.total() + 999);
  EXPECT_EQ(tight.code(), StatusCode::kResourceExhausted);
  for (const char* part : {"weights, 4 layers", "one step", "2 sequences of 100000 tokens",
                           "scratch of the ops", "free on card", "tokens fit"}) {
    EXPECT_THAT(tight.message(), HasSubstr(part));
  }
  // The longest sequences that fit are said: one token more does not.
  const kv::CacheLayout layout =
      CacheGeometry(config_, PlansOfStage(config_.layers, {0, plan.num_layers}), options_.numerics,
                    options_.cache_rows, options_.max_chunk_tokens, options_.max_rewind_tokens);
  const int64_t room = 2 * kv::StateBytes(layout, 50'000);
  const std::string message = check(plan.weights + plan.step + room + 1000).message();
  const size_t said = message.rfind("sequences of ");
  ASSERT_NE(said, std::string::npos) << message;
  const int64_t tokens = std::stoll(message.substr(said + std::string_view("sequences of ").size()));
  EXPECT_LE(2 * kv::StateBytes(layout, tokens), room);
  EXPECT_GT(2 * kv::StateBytes(layout, tokens + 1), room);

  // Not even the weights fit: fewer layers do.
  ModelOptions truncated = options_;
  truncated.max_layers = 2;
  const MemoryPlan two =
      *PlanMemory(config_, checkpoint_, truncated, {.num_sequences = 2, .context = 100'000});
  EXPECT_THAT(check(two.total() + 1000).message(), HasSubstr("--max-layers 2 fits"));
  EXPECT_THAT(check(2000).message(), HasSubstr("not even one layer"));
}

TEST_F(MemoryPlanTest, ExpertsThatDoNotFitAreTheHosts) {
  const MemoryRequest request = {.num_sequences = 2, .context = 1000};
  const int64_t num_experts = config_.n_routed_experts;
  const auto total_with = [&](int64_t resident) {
    ModelOptions options = options_;
    options.experts = {resident, num_experts - resident};
    return PlanMemory(config_, checkpoint_, options, request)->total();
  };
  const auto fit = [&](int64_t free) {
    return FitExperts(config_, checkpoint_, options_, request,
                      {.name = "card", .free = free, .reserved = 1000});
  };
  EXPECT_LT(total_with(0), total_with(1));
  EXPECT_EQ(total_with(num_experts), Plan(request).total());
  for (const int64_t resident : {int64_t{0}, int64_t{1}, num_experts / 2, num_experts}) {
    const int64_t room = total_with(resident) + 1000;
    const auto split = fit(room);
    ASSERT_TRUE(split.has_value()) << split.error().message();
    EXPECT_EQ(split->resident, resident);
    EXPECT_EQ(split->total(), num_experts);
    if (resident > 0) {
      EXPECT_EQ(fit(room - 1)->resident, resident - 1);
    }
  }
  const auto none = fit(total_with(0) + 999);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(none.error().message(), HasSubstr("even with all routed experts on the host"));
}

TEST_F(MemoryPlanTest, CachedExpertsHaveTheRoomThatIsLeft) {
  const MemoryRequest request = {.num_sequences = 2, .context = 1000};
  const int64_t num_experts = config_.n_routed_experts;
  const int64_t num_layers = Plan(request).num_layers;
  const ExpertSplit split{.resident = 1, .host = 1, .cached = num_experts - 2};
  ModelOptions options = options_;
  options.experts = split;
  const MemoryPlan without = *PlanMemory(config_, checkpoint_, options, request);
  EXPECT_EQ(without.expert_cache, 0);
  EXPECT_GT(without.slot, 0);
  // All experts are of one size here, and each weight has a gap for its scales at most.
  EXPECT_EQ(without.pinned, split.cached * num_layers * without.slot);
  EXPECT_LT(without.on_host, num_layers * without.slot);
  EXPECT_GT(without.on_host, num_layers * (without.slot - 3 * 512 - 1));
  for (const int64_t slots : {split.cached, split.cached + 1, split.cached * num_layers}) {
    const int64_t room = without.total() + slots * without.slot + 1000;
    const auto fit = [&](int64_t free) {
      return FitSlots(config_, checkpoint_, options_, split, request,
                      {.name = "card", .free = free, .reserved = 1000});
    };
    const auto exact = fit(room);
    ASSERT_TRUE(exact.has_value()) << exact.error().message();
    EXPECT_EQ(exact->slots, slots);
    options.experts = *exact;
    const MemoryPlan plan = *PlanMemory(config_, checkpoint_, options, request);
    EXPECT_EQ(plan.total() + 1000, room);
    EXPECT_THAT(MemoryTable(plan, {}), HasSubstr("room for " + std::to_string(slots) + " cached experts"));
    const auto less = fit(room - 1);
    if (slots == split.cached) {
      ASSERT_FALSE(less.has_value());
      EXPECT_EQ(less.error().code(), StatusCode::kResourceExhausted);
      EXPECT_THAT(less.error().message(), HasSubstr("of one layer at least"));
    } else {
      ASSERT_TRUE(less.has_value()) << less.error().message();
      EXPECT_EQ(less->slots, slots - 1);
    }
  }
  // No more than there are.
  const auto all = FitSlots(config_, checkpoint_, options_, split, request,
                            {.name = "card", .free = int64_t{1} << 50, .reserved = 0});
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->slots, split.cached * num_layers);
}

}  // namespace
}  // namespace dsv4::model
