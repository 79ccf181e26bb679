// Tests of what a server learns of its requests' choices: on a model of the host, whose steps are watched.
#include "apps/serve/expert_learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#include "model/runtime/model.h"

namespace dsv4::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ExpertLearner, OlderCountsWeighAsMuchAsTheirTokensButNoMoreThanAMillion) {
  const ExpertProfile since{.model = "m", .num_tokens = 10, .counts = {{1, 9}}};
  const Result<ExpertProfile> few = Joined({.model = "m", .num_tokens = 5, .counts = {{5, 0}}}, since);
  ASSERT_TRUE(few.has_value());
  EXPECT_EQ(few->num_tokens, 15);
  EXPECT_THAT(few->counts[0], ElementsAre(6, 9));
  const Result<ExpertProfile> many =
      Joined({.model = "m", .num_tokens = 4 * kMostOlderTokens, .counts = {{4000, 8}}}, since);
  ASSERT_TRUE(many.has_value());
  EXPECT_EQ(many->num_tokens, kMostOlderTokens + 10);
  EXPECT_THAT(many->counts[0], ElementsAre(1001, 11));
  // Counts of other weights do not; an older file does not say.
  ExpertProfile of_weights = since;
  of_weights.weights = "2";
  EXPECT_THAT(
      Joined({.model = "m", .weights = "1", .num_tokens = 5, .counts = {{5, 0}}}, of_weights)->counts[0],
      ElementsAre(1, 9));
  EXPECT_THAT(Joined({.model = "m", .num_tokens = 5, .counts = {{5, 0}}}, of_weights)->counts[0],
              ElementsAre(6, 9));
  EXPECT_EQ(Joined({.model = "m", .num_tokens = 5, .counts = {{5, 0}}}, of_weights)->weights, "2");
  const auto other = Joined({.model = "m", .num_tokens = 4, .counts = {{1, 2, 3}}}, since);
  ASSERT_FALSE(other.has_value());
  EXPECT_THAT(other.error().message(), HasSubstr("1 layer of 3 experts, want 1 of 2"));
}

class Learning : public ::testing::Test {
 protected:
  Learning()
      : folder_(std::filesystem::temp_directory_path() / ("learner-" + std::to_string(::getpid()))),
        backend_(*backend::MakeCpuBackend({.num_threads = 1})) {
    auto loaded = model::Model::Load("models/tiny", backend_.backend(), {});  // Tests run in the source root.
    DSV4_CHECK(loaded.has_value()) << loaded.error().ToString();
    model_ = std::move(*loaded);
    options_ = {.path = (folder_ / "profiles" / "tiny.json").string(),
                .model = "tiny",
                .num_layers = model_->num_layers(),
                .num_experts = model_->config().n_routed_experts,
                .watched_every = 3};
  }
  ~Learning() override { std::filesystem::remove_all(folder_); }

  void Step(ExpertLearner& learner, std::vector<int32_t> tokens) {
    auto state = model_->NewSequence();
    DSV4_CHECK(state.has_value());
    const model::SequenceChunk chunk{.state = &*state, .tokens = tokens};
    ASSERT_TRUE(model_->Step({&chunk, 1}).has_value());
    learner.OnStep();
  }

  const std::filesystem::path folder_;
  diag::HookedBackend backend_;
  std::unique_ptr<model::Model> model_;
  LearnerOptions options_;
};

TEST_F(Learning, StepsThatAreWatchedAreCountedLayerByLayerAndKept) {
  ExpertLearner learner(backend_, options_);
  EXPECT_TRUE(learner.CheckFile().ok());
  EXPECT_TRUE(learner.Keep().ok());
  EXPECT_FALSE(std::filesystem::exists(options_.path)) << "nothing was counted";
  // Steps 1 and 4 of 5.
  for (const int length : {4, 1, 1, 2, 1})
    Step(learner, std::vector<int32_t>(static_cast<size_t>(length), 7));
  EXPECT_EQ(learner.num_tokens(), 6);
  ASSERT_TRUE(learner.Keep().ok());
  const Result<ExpertProfile> kept = ReadExpertProfile(options_.path);
  ASSERT_TRUE(kept.has_value()) << kept.error().ToString();
  EXPECT_EQ(kept->num_tokens, 6);
  ASSERT_EQ(kept->counts.size(), static_cast<size_t>(options_.num_layers));
  for (const std::vector<int64_t>& layer : kept->counts) {
    EXPECT_EQ(std::accumulate(layer.begin(), layer.end(), int64_t{0}),
              6 * model_->config().num_experts_per_tok);
  }
  EXPECT_NE(kept->counts.front(), kept->counts.back());
  // Later counts are added.
  Step(learner, {9});
  Step(learner, {9});
  EXPECT_TRUE(learner.CheckFile().ok());
  ASSERT_TRUE(learner.Keep().ok());
  EXPECT_EQ(ReadExpertProfile(options_.path)->num_tokens, 7);
}

TEST_F(Learning, APlaceThatCannotBeWrittenIsFoundAtTheStart) {
  options_.path = "/proc/profiles/tiny.json";
  const ExpertLearner learner(backend_, options_);
  EXPECT_THAT(learner.CheckFile().message(), HasSubstr("/proc/profiles"));
}

TEST_F(Learning, AProfileOfAnotherModelIsAnErrorAndStays) {
  const ExpertProfile other{.model = "other", .num_tokens = 1, .counts = {{1, 2}}};
  ASSERT_TRUE(WriteExpertProfile(options_.path, other).ok());
  ExpertLearner learner(backend_, options_);
  EXPECT_THAT(learner.CheckFile().message(), HasSubstr("1 layer of 2 experts, want"));
  Step(learner, {1});
  const Status status = learner.Keep();
  EXPECT_THAT(status.message(), HasSubstr(options_.path));
  EXPECT_EQ(ReadExpertProfile(options_.path)->model, "other");
}

}  // namespace
}  // namespace dsv4::apps
