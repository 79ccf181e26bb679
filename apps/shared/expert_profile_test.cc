// Tests of expert profiles: round trips, several writers, locks, foreign weights, order.
#include "apps/shared/expert_profile.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

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

TEST_F(ExpertProfileTest, WhatSeveralServersAddIsAllThere) {
  const std::string path = Path("shared.json");
  std::filesystem::create_symlink("shared.json", folder_ / "link.json");  // Another name of the same file.
  constexpr int kRounds = 30;
  const auto serve = [&](const std::string& name) {
    for (int i = 0; i < kRounds; ++i) {
      const Status status = ChangeExpertProfile(name, [](const ExpertProfile* kept) -> Result<ExpertProfile> {
        ExpertProfile changed{.model = "m", .num_tokens = 0, .counts = {{0}}};
        if (kept != nullptr) changed = *kept;
        ++changed.num_tokens;
        ++changed.counts[0][0];
        return changed;
      });
      EXPECT_TRUE(status.ok()) << status.ToString();
      // Servers add a sum once in a while. One that took the lock again at once would leave the other no
      // moment.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  std::thread other(serve, Path("link.json"));
  serve(path);
  other.join();
  EXPECT_EQ(ReadExpertProfile(path)->num_tokens, 2 * kRounds);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link.json"));
}

TEST_F(ExpertProfileTest, ALockThatIsNotGivenBackIsAnErrorThatNamesIt) {
  const std::string path = Path("held.json");
  ASSERT_TRUE(WriteExpertProfile(path, profile_).ok());
  const int held = ::open((path + ".lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  const auto change = [](const ExpertProfile* kept) { return Result<ExpertProfile>(*kept); };
  const Status status = ChangeExpertProfile(path, change, std::chrono::milliseconds(50));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr(path + ".lock: another program has held the lock for 0.05 s"));
  ::close(held);
  EXPECT_TRUE(ChangeExpertProfile(path, change).ok());
}

TEST_F(ExpertProfileTest, APlaceThatCannotBeWrittenIsNamedBeforeAnythingIsCounted) {
  Write(Path("file"), "");
  for (const std::string& place : {Path("file/x/profile.json"), Path("."),
                                   std::string("/proc/x/profile.json"), std::string("/dev/null")}) {
    const Status status = CheckExpertProfilePath(place);
    EXPECT_FALSE(status.ok()) << place;
    EXPECT_THAT(status.message(), HasSubstr(place.substr(0, 5))) << place;
  }
  EXPECT_TRUE(CheckExpertProfilePath(Path("new/folder/profile.json")).ok());
  ASSERT_TRUE(WriteExpertProfile(Path("kept.json"), profile_).ok());
  EXPECT_TRUE(CheckExpertProfilePath(Path("kept.json")).ok());
  EXPECT_EQ(ReadExpertProfile(Path("kept.json"))->counts, profile_.counts);
  int files = 0;
  for (const auto& each : std::filesystem::directory_iterator(folder_)) {
    files += each.path().string().find("partial") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(files, 0);
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

TEST_F(ExpertProfileTest, OneOfOtherWeightsIsUsedOnlyWhereAFlagNamesIt) {
  const ModelSource source = *ModelSource::Find(flags_);
  const std::string path = ExpertProfilePath(source);
  ExpertProfile profile = profile_;
  profile.weights = *source.WeightsStamp();
  ASSERT_TRUE(WriteExpertProfile(path, profile).ok());
  EXPECT_EQ(ReadExpertProfile(path)->weights, profile.weights);
  EXPECT_FALSE(Order()->empty());
  profile.weights = "0123456789abcdef";
  ASSERT_TRUE(WriteExpertProfile(path, profile).ok());
  EXPECT_TRUE(Order()->empty());
  flags_.expert_profile = path;
  EXPECT_FALSE(Order()->empty());
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
