#include "apps/shared/expert_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace dsv4::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ExpertProfileTest : public ::testing::Test {
 protected:
  ExpertProfileTest()
      : folder_(std::filesystem::temp_directory_path() / ("profile-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    config_.num_hidden_layers = 2;
    config_.n_routed_experts = 3;
    flags_.model = "models/tiny";  // Tests run in the source root.
    ::unsetenv("DSV4_EXPERT_PROFILES");
    ::setenv("XDG_STATE_HOME", folder_.c_str(), 1);
  }
  ~ExpertProfileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const char* name) const { return (folder_ / name).string(); }
  void Write(const std::string& path, const std::string& text) const { std::ofstream(path) << text; }
  Result<std::vector<std::vector<int32_t>>> Order() const {
    return ExpertOrderOf(flags_, *ModelSource::Find(flags_), config_);
  }

  const std::filesystem::path folder_;
  model::ModelConfig config_;
  ModelFlags flags_;
  const ExpertProfile profile_ = {.model = "m", .num_tokens = 7, .counts = {{1, 5, 1}, {0, 2, 5}}};
};

TEST_F(ExpertProfileTest, IsReadAsItIsWritten) {
  const std::string path = Path("a/b/profile.json");
  ASSERT_TRUE(WriteExpertProfile(path, profile_).ok());
  const Result<ExpertProfile> read = ReadExpertProfile(path);
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(read->model, "m");
  EXPECT_EQ(read->num_tokens, 7);
  EXPECT_EQ(read->counts, profile_.counts);
}

TEST_F(ExpertProfileTest, ThoseChosenMostOftenComeFirst) {
  EXPECT_THAT(OrderByCounts(profile_), ElementsAre(ElementsAre(1, 0, 2), ElementsAre(2, 1, 0)));
}

TEST_F(ExpertProfileTest, AModelsOwnIsFoundWithoutAFlag) {
  EXPECT_TRUE(Order()->empty());
  const std::string path = ExpertProfilePath(*ModelSource::Find(flags_));
  EXPECT_THAT(path, HasSubstr(folder_.string()));
  EXPECT_THAT(path, HasSubstr("tiny-"));
  ASSERT_TRUE(WriteExpertProfile(path, profile_).ok());
  EXPECT_THAT(*Order(), ElementsAre(ElementsAre(1, 0, 2), ElementsAre(2, 1, 0)));
  flags_.expert_profile = "off";
  EXPECT_TRUE(Order()->empty());
  flags_.expert_profile = "";
  ::setenv("DSV4_EXPERT_PROFILES", "", 1);
  EXPECT_TRUE(Order()->empty());
  ::unsetenv("DSV4_EXPERT_PROFILES");
  // The first layers of a model that is cut.
  flags_.expert_profile = path;
  flags_.max_layers = 1;
  EXPECT_THAT(*Order(), ElementsAre(ElementsAre(1, 0, 2)));
}

TEST_F(ExpertProfileTest, WhatDoesNotFitTheModelIsNamed) {
  const std::string path = Path("profile.json");
  flags_.expert_profile = path;
  EXPECT_EQ(Order().error().code(), StatusCode::kNotFound);
  ASSERT_TRUE(WriteExpertProfile(path, profile_).ok());
  config_.num_hidden_layers = 3;
  EXPECT_THAT(Order().error().message(), HasSubstr("2 layers of 3 experts, want 3 of 3"));
  config_.num_hidden_layers = 2;
  config_.n_routed_experts = 4;
  EXPECT_THAT(Order().error().message(), HasSubstr("2 layers of 3 experts, want 2 of 4"));
}

TEST_F(ExpertProfileTest, RefusesWhatIsNoProfile) {
  const std::string path = Path("profile.json");
  const std::string head = R"({"format": "dsv4 expert profile 1", "model": "m", "tokens": 1, "counts": )";
  for (const std::string& text : {std::string("{}"), std::string("[1]"), std::string("x"), head + "3}",
                                  head + "[3]}", head + "[[1, -1]]}", head + "[[1], [1, 2]]}",
                                  head + "[[1.5]]}", std::string(R"({"format": "dsv4 expert profile 2"})")}) {
    Write(path, text);
    const Result<ExpertProfile> profile = ReadExpertProfile(path);
    ASSERT_FALSE(profile.has_value()) << text;
    EXPECT_EQ(profile.error().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(profile.error().message(), HasSubstr(path)) << text;
  }
}

}  // namespace
}  // namespace dsv4::apps
