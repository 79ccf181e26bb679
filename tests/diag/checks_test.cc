// Healthy models give no finding, and what a check reports is what the model did.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "diag/checks/checkpoint_check.h"
#include "diag/checks/decode_prefill_check.h"
#include "diag/checks/ngram_check.h"
#include "diag/checks/residual_check.h"
#include "diag/checks/scale_invariance_check.h"
#include "diag/checks/visible_check.h"
#include "diag/statistics.h"
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

constexpr const char* kV41Goldens[] = {"../v41/shared", "../v41/engram", "../v41/deep", "../v41/plain16"};

TEST(V41Test, HasNoFinding) {
  for (const std::string golden : kV41Goldens) {
    for (const model::Numerics numerics : {model::Numerics::kPlain, model::Numerics::kRelease}) {
      SCOPED_TRACE(golden);
      const DiagnosedModel model = DiagnoseGolden(golden, numerics);
      ExpectHealthy(model);
      ModelParts parts = LoadParts(golden, numerics);
      parts.config.sliding_window = 128;  // As the family has it, whose only other number is a toy's.
      const auto checkpoint = diag::CheckCheckpoint(parts.config, parts.weights);
      ExpectPass(checkpoint);
      const auto rows = diag::CheckNgramRows(model.subject(), model.tokens, parts.weights);
      ASSERT_TRUE(rows.has_value()) << rows.error().message();
      EXPECT_EQ(rows->verdict, parts.config.engram.has_value() ? Verdict::kPass : Verdict::kNotApplicable)
          << ToText(*rows);
    }
  }
}

std::string Found(const Result<CheckReport>& report) {
  EXPECT_TRUE(report.has_value()) << report.error().message();
  EXPECT_EQ(report->verdict, Verdict::kFinding) << ToText(*report);
  return report->headline;
}

TEST(V41Test, RowsOfAnotherTableAreFound) {
  Mutation mutation;
  mutation.parts = [](ModelParts& parts) {
    parts.weights.layers[1].engram->table = parts.weights.layers[3].engram->table;  // It has more rows.
  };
  const DiagnosedModel model = DiagnoseGolden("../v41/engram", model::Numerics::kRelease, mutation);
  const ModelParts parts = LoadParts("../v41/engram", model::Numerics::kRelease);
  const std::string found = Found(diag::CheckNgramRows(model.subject(), model.tokens, parts.weights));
  EXPECT_NE(found.find("of layers.1.engram.embed, which the formula gives"), std::string::npos) << found;
}

// The plans are changed behind the model's back, so that the graph reads other rows than they say.
TEST(V41Test, RowsOfAnotherLayerAreFound) {
  const DiagnosedModel model = DiagnoseGolden("../v41/plain16", model::Numerics::kPlain);
  auto& config = const_cast<model::ModelConfig&>(model.model->config());
  config.layers[3].entries = 1;
  const std::string found = Found(diag::CheckVisible(model.subject(), model.tokens, {}));
  EXPECT_NE(found.find("reads entries that are not those of layer 1"), std::string::npos) << found;
  config.layers[3].entries = 3;
  config.layers[5].keys = 3;
  const std::string keys = Found(diag::CheckVisible(model.subject(), model.tokens, {}));
  EXPECT_NE(keys.find("reads indexer keys that are not those of layer 3"), std::string::npos) << keys;
}

ops::OpFunction<ops::IndexerSelectArgs> g_select = nullptr;
bool g_of_maker = false;
// The oldest block in place of the newest one, at the layer that makes the list or at one that it binds.
Status WrongBlocks(ops::OpContext& context, const ops::IndexerSelectArgs& args) {
  ops::IndexerSelectArgs free = args;
  if (!g_of_maker) free.within = {};
  DSV4_RETURN_IF_ERROR(g_select(context, free));
  if (!g_of_maker || args.best.is_null()) return {};
  const int64_t room = args.best.shape[1];
  for (int64_t t = 0; t < args.best.shape[0]; ++t) {
    int32_t* const blocks = args.best.as<int32_t>() + t * room;
    const auto newest = std::max_element(blocks, blocks + room);
    int32_t other = *newest - 1;
    while (other >= 0 && std::find(blocks, blocks + room, other) != blocks + room) --other;
    if (other >= 0) *newest = other;
  }
  return {};
}

TEST(V41Test, WrongCandidateBlocksAreFound) {
  Mutation mutation;
  mutation.ops = [](ops::OpTable& table) {
    g_select = table.indexer_select;
    table.indexer_select = WrongBlocks;
  };
  const DiagnosedModel model = DiagnoseGolden("../v41/shared", model::Numerics::kPlain, mutation);
  g_of_maker = true;
  std::string found = Found(diag::CheckVisible(model.subject(), model.tokens, {}));
  EXPECT_NE(found.find("is no candidate"), std::string::npos) << found;
  g_of_maker = false;
  found = Found(diag::CheckVisible(model.subject(), model.tokens, {}));
  EXPECT_NE(found.find("is no candidate"), std::string::npos) << found;
}

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
