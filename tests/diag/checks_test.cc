// Healthy models give no finding, and what a check reports is what the model did.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "diag/checks/decode_prefill_check.h"
#include "diag/checks/residual_check.h"
#include "diag/checks/scale_invariance_check.h"
#include "diag/checks/statistics.h"
#include "diag/checks/visible_check.h"
#include "tests/diag/subjects.h"

namespace dsv4::testing {
namespace {

using diag::CheckReport;
using diag::Verdict;

void ExpectPass(const Result<CheckReport>& report) {
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_EQ(report->verdict, Verdict::kPass) << ToText(*report);
}

void ExpectHealthy(const DiagnosedModel& model) {
  ExpectPass(diag::CheckScaleInvariance(model.subject(), model.tokens));
  ExpectPass(diag::CheckResidual(model.subject(), model.tokens));
  ExpectPass(diag::CheckVisible(model.subject(), model.tokens, {}));
  ExpectPass(diag::CheckDecodePrefill(model.subject(), model.tokens, {}));
}

struct Healthy {
  std::string golden;
  model::Numerics numerics;
};

class HealthyModels : public ::testing::TestWithParam<Healthy> {};

TEST_P(HealthyModels, HaveNoFinding) {
  DiagnosedModel model = DiagnoseGolden(GetParam().golden, GetParam().numerics);
  model.tokens.resize(std::min<size_t>(model.tokens.size(), 150));
  ExpectHealthy(model);
}

std::vector<Healthy> AllHealthy() {
  std::vector<Healthy> all;
  for (const std::string& golden : GoldenModels()) {
    if (golden == "ordinary") continue;  // Has short prompts only.
    all.push_back({golden, model::Numerics::kPlain});
  }
  for (const std::string& golden : ReleaseGoldens()) all.push_back({golden, model::Numerics::kRelease});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Goldens, HealthyModels, ::testing::ValuesIn(AllHealthy()), [](const auto& test) {
  return test.param.golden + (test.param.numerics == model::Numerics::kPlain ? "_plain" : "_release");
});

TEST(TinyModelTest, HasNoFinding) { ExpectHealthy(DiagnoseTiny(model::Numerics::kRelease, 300)); }

TEST(VisibleTest, ShowsTheRuleAtTheAskedPlace) {
  const DiagnosedModel model = DiagnoseTiny(model::Numerics::kRelease, 200);
  const Result<CheckReport> report =
      diag::CheckVisible(model.subject(), model.tokens, {.layer = 3, .position = 140});
  ASSERT_TRUE(report.has_value()) << report.error().message();
  ASSERT_EQ(report->tables[0].rows.size(), 1U);
  const std::vector<std::string>& row = report->tables[0].rows[0];
  EXPECT_EQ(row[0], "3");
  EXPECT_EQ(row[1], "hca");
  EXPECT_EQ(row[2], "13..140");
  EXPECT_EQ(row[3], "0");
  EXPECT_EQ(row[5], "129");
}

TEST(VisibleTest, RefusesPlacesThatDoNotExist) {
  const DiagnosedModel model = DiagnoseTiny(model::Numerics::kRelease, 10);
  EXPECT_FALSE(diag::CheckVisible(model.subject(), model.tokens, {.layer = 7}).has_value());
  EXPECT_FALSE(diag::CheckVisible(model.subject(), model.tokens, {.layer = -1}).has_value());
  EXPECT_FALSE(diag::CheckVisible(model.subject(), model.tokens, {.position = 10}).has_value());
  EXPECT_FALSE(diag::CheckVisible(model.subject(), {}, {}).has_value());
}

TEST(SingleTokenTest, HasNoDecode) {
  const DiagnosedModel model = DiagnoseTiny(model::Numerics::kRelease, 1);
  EXPECT_EQ(diag::CheckResidual(model.subject(), model.tokens)->verdict, Verdict::kNotApplicable);
  EXPECT_EQ(diag::CheckDecodePrefill(model.subject(), model.tokens, {})->verdict, Verdict::kNotApplicable);
}

TEST(HookedBackendTest, HooksChangeNothingWhenTheyEnd) {
  const DiagnosedModel model = DiagnoseTiny(model::Numerics::kRelease, 20);
  const auto run = [&] {
    return *diag::RunTokens(model.subject(), model.tokens, {}, model::LogitsRows::kLast);
  };
  const std::vector<float> bare = run();
  std::vector<float> hooked;
  int calls = 0;
  {
    diag::OpHooks hooks;
    hooks.rms_norm = [&](const auto& inner, const ops::RmsNormArgs& args) {
      ++calls;
      ops::RmsNormArgs wrong = args;
      wrong.eps = 1.0F;
      return inner(wrong);
    };
    const diag::HookedBackend::Scope scope(*model.backend, std::move(hooks));
    hooked = run();
  }
  EXPECT_GT(calls, 0);
  EXPECT_NE(hooked, bare);
  EXPECT_EQ(run(), bare);
}

TEST(RecordingTest, RowsArePositionsHoweverTheTokensAreCut) {
  const DiagnosedModel model = DiagnoseTiny(model::Numerics::kRelease, 150);
  const auto record = [&](std::vector<int64_t> pieces) {
    return *diag::Record(model.subject(), model.tokens, pieces, model::LogitsRows::kLast);
  };
  const diag::Recording whole = record({});
  const diag::Recording cut = record({40, 3});
  for (const diag::RecordedTensor& tensor : whole.tensors()) {
    const diag::RecordedTensor* other = cut.Find(tensor.layer, tensor.name);
    ASSERT_NE(other, nullptr);
    if (tensor.layer < 0) continue;
    EXPECT_EQ(other->num_rows, tensor.num_rows) << tensor.name;
    EXPECT_FALSE(diag::OpBehind(tensor.name).empty()) << tensor.name;
  }
  EXPECT_EQ(whole.Find(0, "attn.q")->num_rows, 150);
  EXPECT_EQ(whole.Find(2, "attn.compressed")->num_rows, 37);
  EXPECT_EQ(whole.Find(3, "attn.compressed")->num_rows, 1);
  EXPECT_EQ(whole.Find(0, "attn.compressed"), nullptr);
}

TEST(StatisticsTest, WorkedByHand) {
  const std::vector<float> a = {3, -4};
  const std::vector<float> b = {3, -4.5F};
  EXPECT_NEAR(diag::Rms(a), std::sqrt(12.5), 1e-12);
  EXPECT_EQ(diag::MaxAbs(a), 4);
  EXPECT_EQ(diag::RelativeError(a, a), 0);
  EXPECT_NEAR(diag::RelativeError(a, b), 0.5 / diag::Rms(b), 1e-6);
  EXPECT_EQ(diag::ArgMax(a), 0);
  EXPECT_EQ(diag::Margin(a), 7);
  EXPECT_NEAR(diag::Cosine(a, std::vector<float>{4, 3}), 0, 1e-12);
  EXPECT_EQ(diag::Cosine(a, std::vector<float>{0, 0}), 0);
  // Two classes with probabilities 1/2, 1/2 against 3/4, 1/4.
  const std::vector<float> even = {0, 0};
  const std::vector<float> odd = {std::log(3.0F), 0};
  EXPECT_NEAR(diag::SoftmaxKl(even, odd), 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25), 1e-6);
  const std::vector<float> nan = {std::nanf(""), 0};
  EXPECT_TRUE(std::isinf(diag::RelativeError(a, nan)));
}

}  // namespace
}  // namespace dsv4::testing
