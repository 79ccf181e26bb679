// Tests of reports: text, JSON, page, exit codes and summary.
#include "diag/report/report.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace dsv4::diag {
namespace {

CheckReport Example() {
  return {.check = "visible",
          .verdict = Verdict::kFinding,
          .headline = "one key too many",
          .evidence = {"first line"},
          .tables = {{.title = "keys", .columns = {"id", "name"}, .rows = {{"5", "｜x｜"}, {"12", "y"}}}},
          .rules_out = {"nothing"},
          .next_step = "count",
          .location = Location{3, "attn.o", "attention", 17},
          .ends_run = true};
}

TEST(ReportTest, TextSaysEverything) {
  EXPECT_EQ(ToText(Example()),
            "visible: finding: one key too many\n"
            "  where: layer 3, attn.o (op attention), position 17\n"
            "  first line\n"
            "  keys\n"
            "    id name\n"
            "     5 ｜x｜\n"
            "    12 y\n"
            "  rules out: nothing\n"
            "  next: count\n");
}

TEST(ReportTest, JsonHoldsEveryField) {
  const Result<Json> json = ParseJson(ToJson({Example()}), "report");
  ASSERT_TRUE(json.has_value()) << json.error().message();
  const Json& check = (*json)["checks"][0];
  EXPECT_EQ(check["check"], "visible");
  EXPECT_EQ(check["verdict"], "finding");
  EXPECT_EQ(check["place"]["layer"], 3);
  EXPECT_EQ(check["place"]["op"], "attention");
  EXPECT_EQ(check["place"]["position"], 17);
  EXPECT_EQ(check["tables"][0]["rows"][0][1], "｜x｜");
  EXPECT_EQ(check["ends_run"], true);
}

TEST(ReportTest, OnlyFindingsFail) {
  CheckReport report = Example();
  EXPECT_EQ(ExitCode({report}), 1);
  report.verdict = Verdict::kNotApplicable;
  EXPECT_EQ(ExitCode({report}), 0);
  report.verdict = Verdict::kPass;
  EXPECT_EQ(ExitCode({report, Example()}), 1);
  EXPECT_EQ(ExitCode({}), 0);
}

TEST(ReportTest, PlaceOutsideTheLayersHasNoLayer) {
  EXPECT_EQ((Location{-1, "head.norm", "rms_norm", 4}).ToString(), "head.norm (op rms_norm), position 4");
}

}  // namespace
}  // namespace dsv4::diag
