// The page: nothing hostile gets into it, every number of a plot is in its table, every measure has a place
// in the drawing.
#include "diag/report/html_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "diag/report/html_text.h"
#include "diag/report/logit_plots.h"
#include "diag/report/svg_axis.h"
#include "diag/report/svg_plot.h"
#include "diag/report/visible_map.h"

namespace dsv4::diag {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t Count(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size()))
    ++count;
  return count;
}

TEST(EscapeHtmlTest, MarkupAndInvisibleCharactersAreSpeltOut) {
  EXPECT_EQ(EscapeHtml("<b a=\"1\" c='2'>&"), "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;");
  EXPECT_EQ(EscapeHtml("line\n\ttab"), "line\n\ttab");
  EXPECT_EQ(EscapeHtml(std::string("nul\0esc\x1b", 8)), "nul\\u{0}esc\\u{1b}");
  EXPECT_EQ(EscapeHtml("｜é😀"), "｜é😀");
  EXPECT_EQ(EscapeHtml("a\u202eb\u2066"), "a\\u{202e}b\\u{2066}");
}

TEST(EscapeHtmlTest, BytesThatAreNoUtf8AreSpeltOut) {
  EXPECT_EQ(EscapeHtml("a\xff"
                       "b"),
            "a\\x{ff}b");
  EXPECT_EQ(EscapeHtml("\xc3"), "\\x{c3}");                                   // Cut short.
  EXPECT_EQ(EscapeHtml("\xc0\xbc"), "\\x{c0}\\x{bc}");                        // '<' overlong.
  EXPECT_EQ(EscapeHtml("\xe0\x80\xbc"), "\\x{e0}\\x{80}\\x{bc}");             // The same in three bytes.
  EXPECT_EQ(EscapeHtml("\xed\xa0\x80"), "\\x{ed}\\x{a0}\\x{80}");             // A surrogate.
  EXPECT_EQ(EscapeHtml("\xf4\x90\x80\x80"), "\\x{f4}\\x{90}\\x{80}\\x{80}");  // Past the last code point.
}

std::vector<std::string> Labels(const Axis& axis) {
  std::vector<std::string> labels;
  for (const Tick& tick : axis.ticks()) labels.push_back(tick.label);
  return labels;
}

TEST(AxisTest, RoundNumbersCoverTheValues) {
  const Axis linear = Axis::Linear(std::vector{0.0, 299.0}, 7);
  EXPECT_EQ(Labels(linear), (std::vector<std::string>{"0", "50", "100", "150", "200", "250"}));
  EXPECT_DOUBLE_EQ(linear.At(0), 0);
  EXPECT_DOUBLE_EQ(linear.At(299), 1);
  const Axis log = Axis::Log(std::vector{0.02, 300.0}, 7);
  EXPECT_EQ(Labels(log), (std::vector<std::string>{"0.01", "0.1", "1", "10", "100", "1000"}));
  EXPECT_DOUBLE_EQ(log.At(0.01), 0);
  EXPECT_DOUBLE_EQ(log.At(1000), 1);
  EXPECT_LE(Axis::Log(std::vector{1e-300, 1e300}, 7).ticks().size(), 8U);
  EXPECT_LE(Axis::Linear(std::vector{-1e308, 1e307}, 6).ticks().size(), 7U);
}

TEST(AxisTest, OddValuesHaveAnEdgeOfTheirOwn) {
  const Axis log = Axis::Log(std::vector{0.0, 1.0, 10.0, kInfinity, std::nan("")}, 7);
  EXPECT_EQ(Labels(log), (std::vector<std::string>{"0", "∞, NaN", "1", "10"}));
  EXPECT_DOUBLE_EQ(log.At(0), 0);
  EXPECT_DOUBLE_EQ(log.At(std::nan("")), 1);
  EXPECT_GT(log.At(1), 0.05);
  EXPECT_LT(log.At(10), 0.95);
  for (const Axis& axis : {Axis::Linear({}, 5), Axis::Log({}, 5), Axis::Linear(std::vector{3.0}, 5),
                           Axis::Log(std::vector{0.0, kInfinity}, 5)}) {
    EXPECT_FALSE(axis.ticks().empty());
    for (const Tick& tick : axis.ticks()) {
      EXPECT_GE(tick.place, -1e-9);
      EXPECT_LE(tick.place, 1 + 1e-9);
    }
  }
}

Plot Example() {
  Series errors{.name = "errors", .style = SeriesStyle::kPoints};
  errors.Add(0, 1e-6, "layer 0, <script>alert(1)</script>");
  errors.Add(1, 0.5, "layer 1, attn.o");
  errors.Add(2, kInfinity, "layer 1, attn.out");
  Plot plot{.title = "T & T", .reading = "r", .x_label = "x", .y_label = "y", .log_y = true};
  plot.series = {errors};
  plot.bound = 0.1;
  plot.bound_name = "bound 0.1";
  return plot;
}

TEST(PlotTest, PointsPastTheBoundAreMarkedAndEveryNumberIsInTheTable) {
  const std::string html = PlotFigure(Example(), "id");
  EXPECT_EQ(Count(html, "<circle"), 3U);
  EXPECT_EQ(Count(html, "p s0 past"), 2U);
  EXPECT_EQ(Count(html, "<path class=\"bound\""), 1U);
  EXPECT_THAT(html, HasSubstr("<td>0.5, past the bound</td>"));
  EXPECT_THAT(html, HasSubstr("<td>1e-06</td>"));
  EXPECT_THAT(html, HasSubstr("<td>infinity, past the bound</td>"));
  EXPECT_THAT(html, HasSubstr("T &amp; T"));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("nan ")));
}

TEST(PlotTest, LinesShareATableByX) {
  Plot plot{.title = "t", .x_label = "layer", .y_label = "y"};
  plot.series = {{.name = "a"}, {.name = "b", .style = SeriesStyle::kDashedLine, .color = 3}};
  plot.series[0].Add(0, 1);
  plot.series[0].Add(1, 2);
  plot.series[1].Add(1, 4);
  const std::string html = PlotFigure(plot, "id");
  EXPECT_THAT(html, HasSubstr("<tr><th>layer</th><th>a</th><th>b</th></tr>"));
  EXPECT_THAT(html, HasSubstr("<tr><td>0</td><td>1</td><td></td></tr>"));
  EXPECT_THAT(html, HasSubstr("<tr><td>1</td><td>2</td><td>4</td></tr>"));
}

TEST(KeyMapTest, KeysAgainstTheRuleAreShownWhateverIsLeftOut) {
  LayerKeys layer{.layer = 3, .kind = "csa"};
  for (int64_t p = 0; p < 500; ++p) {
    QueryKeys query{.position = p, .window = {p}, .window_rule = {p}};
    query.num_visible_entries = p / 100;
    for (int64_t entry = 0; entry + 1 < query.num_visible_entries; ++entry) query.entries.push_back(entry);
    query.entries_rule = query.entries;
    layer.queries.push_back(query);
  }
  layer.queries[401].window = {400};  // One missing, one extra, in a row that thinning out would drop.
  const VisibleMaps made = MapVisibleKeys({layer});
  ASSERT_EQ(made.maps.size(), 1U);
  const KeyMap& map = made.maps[0];
  EXPECT_LT(map.positions.size(), 210U);
  const auto row =
      static_cast<size_t>(std::find(map.positions.begin(), map.positions.end(), 401) - map.positions.begin());
  ASSERT_LT(row, map.positions.size());
  const std::vector<KeyRun>& window = map.panels[0].rows[row];
  ASSERT_EQ(window.size(), 2U);
  EXPECT_EQ(window[0].state, KeyState::kExtra);
  EXPECT_EQ(window[1].state, KeyState::kMissing);
  const std::vector<KeyRun>& entries = map.panels[1].rows[row];
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].end, 3);
  EXPECT_EQ(entries[1].state, KeyState::kNotChosen);
  const std::string html = KeyMapFigure(map, "id");
  EXPECT_EQ(Count(html, "<path class=\"seen\""), 2U);  // In both panels.
  for (const char* state : {"notchosen", "missing", "extra"})
    EXPECT_EQ(Count(html, std::string("<path class=\"") + state + "\""), 1U) << state;
}

TEST(KeyMapTest, LayersThatAgreeShareAMapAndFaultyOnesComeFirst) {
  const LayerKeys healthy{
      .layer = 0, .kind = "swa", .queries = {{.position = 0, .window = {0}, .window_rule = {0}}}};
  LayerKeys twin = healthy;
  twin.layer = 1;
  LayerKeys faulty{.layer = 2, .kind = "swa", .queries = {{.position = 0, .window = {}, .window_rule = {0}}}};
  const VisibleMaps made = MapVisibleKeys({healthy, twin, faulty});
  ASSERT_EQ(made.maps.size(), 2U);
  EXPECT_EQ(made.maps[0].title, "Keys attended to, layer 2 (swa)");
  EXPECT_EQ(made.maps[1].title, "Keys attended to, layers 0, 1 (swa)");
}

TEST(LogitPlotsTest, WorkedByHand) {
  const std::vector<float> a = {0, 0, std::log(2.0F), 1, 3, 1};
  const std::vector<float> b = {0, 0, std::log(2.0F), 1, 1, 1.5F};
  const PositionLogits measured = MeasureLogits(a, 3);
  ASSERT_EQ(measured.margin.size(), 2U);
  EXPECT_NEAR(measured.margin[0], std::log(2.0), 1e-6);
  EXPECT_NEAR(measured.top1[0], 0.5, 1e-6);
  EXPECT_NEAR(measured.top5[0], 1, 1e-6);
  EXPECT_EQ(LargestChanges(a, b, 3), (std::vector<double>{0, 2}));
  const std::vector<float> odd = {0, std::nanf(""), 1};
  EXPECT_TRUE(std::isnan(MeasureLogits(odd, 3).top1[0]));
  EXPECT_EQ(LargestChanges(odd, std::vector<float>{0, 0, 1}, 3)[0], kInfinity);
}

TEST(PageTest, SaysWhatTheReportsSay) {
  CheckReport report{.check = "visible",
                     .verdict = Verdict::kFinding,
                     .headline = "one key <too> many",
                     .evidence = {"first line"},
                     .tables = {{.title = "keys", .columns = {"id"}, .rows = {{"</td><script>"}}}},
                     .rules_out = {"nothing"},
                     .next_step = "count",
                     .location = Location{3, "attn.o", "attention", 17},
                     .ends_run = true};
  report.plots = {Example()};
  const std::string html =
      ToHtml({.title = "dsv4 diagnose", .facts = {{"model", "<img src=x>"}}, .stopped = true}, {report});
  for (const char* part :
       {"1 finding, 0 passed", "one key &lt;too&gt; many", "layer 3, attn.o (op attention), position 17",
        "first line", "<li>nothing</li>", "count", "Stopped: the checks after visible", "&lt;img src=x&gt;",
        "id=\"visible-plot-0-t\"", "default-src 'none'"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("<img")));
}

TEST(PageTest, AMeasurementIsNeitherGoodNorBadWithoutABound) {
  CheckReport report{.check = "perplexity", .verdict = Verdict::kPass, .headline = "6 texts"};
  const std::string plain = ToHtml({.title = "dsv4 eval", .result = "perplexity <12>"}, {report});
  EXPECT_THAT(plain, HasSubstr("<p class=\"verdict none\">perplexity &lt;12&gt;</p>"));
  EXPECT_THAT(plain, Not(HasSubstr("class=\"badge")));
  EXPECT_THAT(plain, Not(HasSubstr("passed")));
  const std::string kept =
      ToHtml({.title = "dsv4 eval", .result = "perplexity 12", .bounded = true}, {report});
  EXPECT_THAT(kept, HasSubstr("<p class=\"verdict pass\">perplexity 12: within the bounds</p>"));
  EXPECT_THAT(kept, HasSubstr("class=\"badge pass\""));
  report.verdict = Verdict::kFinding;
  const std::string beyond =
      ToHtml({.title = "dsv4 eval", .result = "perplexity 12", .bounded = true}, {report});
  EXPECT_THAT(beyond, HasSubstr("<p class=\"verdict finding\">perplexity 12: not within the bounds</p>"));
}

}  // namespace
}  // namespace dsv4::diag
