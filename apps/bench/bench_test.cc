// Tests of what `dsv4 bench` relies on: its checks find faults, and its random rows make sequences that a
// model can go on with.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "apps/bench/bench_check.h"
#include "apps/bench/bench_command.h"
#include "apps/bench/bench_experts.h"
#include "apps/bench/bench_report.h"
#include "apps/bench/bench_runs.h"
#include "apps/bench/event_stream.h"
#include "apps/bench/load_report.h"
#include "apps/bench/workload.h"
#include "apps/shared/model_source.h"
#include "backend/cpu/cpu_backend.h"
#include "kv/random_rows.h"

namespace dsv4::apps {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kDepth = 700;  // Beyond the window; all entries are still chosen.

class BenchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    flags_.model = "models/tiny";
    flags_.num_threads = 2;
    Result<ModelSource> source = ModelSource::Find(flags_);
    ASSERT_TRUE(source.has_value()) << source.error().message();
    source_ = std::move(*source);
    Result<ops::Backend> backend = MakeBackend(flags_);
    ASSERT_TRUE(backend.has_value());
    backend_ = std::make_unique<diag::HookedBackend>(std::move(*backend));
  }
  Result<BenchCheck> Check(diag::OpHooks hooks) {
    const diag::HookedBackend::Scope scope(*backend_, std::move(hooks));
    return CheckAgainstReference(*source_, flags_, backend_->backend(), kDepth);
  }
  std::unique_ptr<model::Model> Load() {
    auto model = LoadModel(flags_, *source_, backend_->backend(), {});
    EXPECT_TRUE(model.has_value());
    return std::move(*model);
  }

  ModelFlags flags_;
  std::optional<ModelSource> source_;
  std::unique_ptr<diag::HookedBackend> backend_;
};

uint16_t& FirstElement(const TensorView& bf16) { return *static_cast<uint16_t*>(bf16.data); }

TEST_F(BenchTest, AHealthyBackendPasses) {
  const Result<BenchCheck> check = Check({});
  ASSERT_TRUE(check.has_value()) << check.error().message();
  EXPECT_GT(check->worst_cosine, 0.999);
  EXPECT_EQ(check->depth, kDepth);
}

TEST_F(BenchTest, AWrongOpIsNamed) {
  diag::OpHooks hooks;
  hooks.swiglu = [](const auto& inner, const ops::SwigluArgs& args) {
    Status status = inner(args);
    std::ranges::fill(std::span(&FirstElement(args.y), 64), uint16_t{0x3F80});
    return status;
  };
  const Result<BenchCheck> check = Check(std::move(hooks));
  ASSERT_FALSE(check.has_value());
  EXPECT_THAT(check.error().message(), HasSubstr("swiglu"));
}

// The prefill is too short to see it.
TEST_F(BenchTest, AFaultThatShowsAtDepthIsFound) {
  diag::OpHooks hooks;
  hooks.attention = [](const auto& inner, const ops::AttentionArgs& args) {
    ops::AttentionArgs shorter = args;
    shorter.window_size = std::min<int64_t>(args.window_size, 16);
    return inner(shorter);
  };
  const Result<BenchCheck> check = Check(std::move(hooks));
  ASSERT_FALSE(check.has_value()) << check->worst_cosine;
  EXPECT_THAT(check.error().message(), HasSubstr("at depth 700"));
}

TEST_F(BenchTest, ABatchWhoseRowsDependOnTheirNeighboursIsFound) {
  const auto model = Load();
  const BenchMeter meter;
  BenchRuns runs(*model, *backend_, meter, {.repeat = 1});
  ASSERT_TRUE(runs.SetDepth(40, 3).ok());
  const Result<BenchRow> healthy = runs.Decode(3);
  ASSERT_TRUE(healthy.has_value()) << healthy.error().message();
  EXPECT_FALSE(healthy->busy);

  diag::OpHooks hooks;
  hooks.rms_norm = [](const auto& inner, const ops::RmsNormArgs& args) {
    Status status = inner(args);
    if (args.x.shape[0] == 3 && args.y.dtype == DType::kBF16) FirstElement(args.y) ^= 0x100;
    return status;
  };
  const diag::HookedBackend::Scope scope(*backend_, std::move(hooks));
  const Result<BenchRow> row = runs.Decode(3);
  ASSERT_FALSE(row.has_value());
  EXPECT_THAT(row.error().message(), HasSubstr("row 0 of a batch of 3 differs from the same sequence alone"));
}

BenchRow Measured(double seconds, double multiply_adds, bool busy) {
  BenchRow row;
  row.seconds = {seconds, seconds};
  row.machines = {{.read_bandwidth = 10, .multiply_adds = multiply_adds}};
  row.busy = busy;
  row.cost.weight_bytes = seconds;
  row.profiled_steps = 2;
  row.ops = {{.op = "linear", .calls = 2, .seconds = seconds}};
  return row;
}

TEST(BenchMerge, LeavesBusyRoundsOutWhileThereAreOthers) {
  const BenchRow merged = Merge({Measured(9, 5, true), Measured(1, 10, false), Measured(3, 10, false)});
  EXPECT_EQ(merged.seconds, (std::vector<double>{1, 1, 3, 3}));
  EXPECT_EQ(merged.Median(), 2);
  EXPECT_EQ(merged.Machine().multiply_adds, 10);
  EXPECT_EQ(merged.cost.weight_bytes, 2);
  EXPECT_EQ(merged.profiled_steps, 4);
  EXPECT_EQ(merged.ops[0].calls, 4);
  EXPECT_EQ(merged.ops[0].seconds, 4);
  EXPECT_FALSE(merged.busy);

  const BenchRow busy = Merge({Measured(9, 5, true), Measured(7, 5, true)});
  EXPECT_EQ(busy.Median(), 8);
  EXPECT_TRUE(busy.busy);
}

TEST(BenchSummary, RanksAreComparedWithABoundWithoutReplication) {
  BenchReport report = {.num_layers = 4, .backends = {"cuda"}};
  BenchRow row = Measured(1, 0, false);
  row.backend = "cuda";
  report.rows = {row};
  const auto lines = [&] {
    std::vector<std::string> text;
    for (const BenchSummary& line : Summarize(report))
      text.push_back(fmt::format("{} {} {}", line.what, line.value, line.unit));
    return text;
  };
  // One byte a second of ten, and no multiply-adds to compare with.
  EXPECT_THAT(lines(), testing::ElementsAre("decode, depth 0, batch 1 10 % of the read bandwidth",
                                            "decode, depth 0, batch 1 / layer 250000 us"));
  report.rows[0].bytes_without_replication = 4;
  EXPECT_THAT(lines(), testing::Contains("decode, depth 0, batch 1 40 % of the bound without replication"));
}

std::vector<float> LogitsAfter(model::Model& model, int64_t length, uint64_t seed) {
  Result<kv::SequenceState> state = model.NewSequence();
  EXPECT_TRUE(state.has_value());
  const Status filled = kv::FillWithRandomRows(*state, length, seed);
  EXPECT_TRUE(filled.ok()) << filled.message();
  EXPECT_EQ(state->length(), length);
  const std::vector<int32_t> token = {5};
  const model::SequenceChunk chunk = {.state = &*state, .tokens = token};
  const Result<model::StepOutput> output = model.Step(std::span(&chunk, 1));
  EXPECT_TRUE(output.has_value());
  return {output->logits.begin(), output->logits.end()};
}

TEST_F(BenchTest, RandomRowsAreOfTheSeedAndTheModelReadsThem) {
  const auto model = Load();
  for (const int64_t length : {1, 127, 700, 1500}) {  // More than one append in the last.
    const std::vector<float> logits = LogitsAfter(*model, length, 1);
    EXPECT_TRUE(std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }));
    EXPECT_EQ(logits, LogitsAfter(*model, length, 1));
    EXPECT_NE(logits, LogitsAfter(*model, length, 2));
  }
}

TEST_F(BenchTest, RandomRowsEndWhereTheModelEnds) {
  const auto model = Load();
  Result<kv::SequenceState> state = model->NewSequence();
  ASSERT_TRUE(state.has_value());
  const Status filled = kv::FillWithRandomRows(*state, model->cache_layout().max_positions + 1, 0);
  EXPECT_EQ(filled.code(), StatusCode::kOutOfRange) << filled.message();
}

TEST(BenchExperts, ALayerWaitsForTheSlowestAsChoicesFallOnIt) {
  BenchExperts experts{
      .split = {.host = 256}, .top_k = 6, .num_layers = 10, .layers_here = 10, .expert_bytes = 14e6};
  experts.rates = {.host_beside = 50e9, .link_beside = 50e9};
  const double expert = 14e6 / 50e9;
  EXPECT_NEAR(experts.LayerSeconds(1, 3e12, 0), 6 * expert, 1e-9);
  // Half on the host, half brought: three each on average, but the larger part is more than that.
  experts.split = {.host = 128, .cached = 128, .slots = 256};
  EXPECT_NEAR(experts.LayerSeconds(1, 3e12, 1.0), 3.90 * expert, 0.05 * expert);
  EXPECT_NEAR(experts.LayerSeconds(1, 3e12, 0.0), 3.0 * expert, 0.05 * expert);
  // Parts for the 44 experts of eight tokens differ by less.
  EXPECT_NEAR(experts.LayerSeconds(8, 3e12, 1.0), 24.5 * expert, 0.4 * expert);
  EXPECT_NEAR(experts.BoundSeconds(experts.AllBytes(1) + 3e9, 1, 3e12, 1.0),
              1e-3 + 10 * experts.LayerSeconds(1, 3e12, 1.0), 1e-9);
}

TEST(BenchExperts, OneStageStandsForAll) {
  BenchExperts experts{
      .split = {.cached = 256, .slots = 640}, .top_k = 6, .num_layers = 10, .layers_here = 10};
  EXPECT_EQ(experts.Stages(), 1);
  EXPECT_EQ(experts.MissShare(), 0.75);
  EXPECT_EQ(ExpertsText(experts).find("all stages"), std::string::npos);
  experts.layers_here = 5;
  EXPECT_EQ(experts.Stages(), 2);
  EXPECT_EQ(experts.MissShare(), 0.5);
  EXPECT_NE(ExpertsText(experts).find("on rank 0, which stands for all stages"), std::string::npos);
}

TEST(BenchList, Numbers) {
  EXPECT_EQ(ParseBenchList("0,2k,8k", 0), (std::vector<int64_t>{0, 2048, 8192}));
  EXPECT_EQ(ParseBenchList("none", 1), std::vector<int64_t>());
  for (const std::string bad :
       {"", "1,", ",1", "0", "1,1", "1k,1024", "-1", "k", "1 ", "2000000", "2000k", "1kk"}) {
    const auto list = ParseBenchList(bad, 1);
    ASSERT_FALSE(list.has_value()) << bad;
    EXPECT_EQ(list.error().code(), StatusCode::kInvalidArgument);
  }
}

Result<std::vector<LoadPrompt>> Dataset(const std::string& text) {
  return ParseDataset(text, "data", [](const std::string& answer) -> Result<int64_t> {
    return static_cast<int64_t>(answer.size());
  });
}

TEST(Dataset, ReadsArraysAndLinesOfAllShapes) {
  const auto shared = Dataset(R"([{"id": "a", "conversations": [{"from": "human", "value": "How?"},
      {"from": "gpt", "value": "By us."}, {"from": "human", "value": "Why?"}]},
      {"conversations": [{"from": "human", "value": "One turn"}]}, {"conversations": [{"from": "human"}, 3]}, 7])");
  ASSERT_TRUE(shared.has_value()) << shared.error().message();
  ASSERT_EQ(shared->size(), 1U);  // Without an answer there is no length.
  EXPECT_EQ((*shared)[0].messages[0]["content"], "How?");
  EXPECT_EQ((*shared)[0].output_tokens, 6);
  const auto lines = Dataset(R"({"prompt": "A", "output_tokens": 9}

{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "B"}], "max_tokens": 5}
{"prompt": "C"}
{"other": 1})");
  ASSERT_TRUE(lines.has_value()) << lines.error().message();
  ASSERT_EQ(lines->size(), 3U);
  EXPECT_EQ((*lines)[0].output_tokens, 9);
  EXPECT_EQ((*lines)[1].messages.size(), 2U);
  EXPECT_EQ((*lines)[1].output_tokens, 5);
  EXPECT_EQ((*lines)[2].output_tokens, 0);
}

TEST(Dataset, NamesWhatCannotBeRead) {
  for (const std::string text : {"", "[]", R"({"question": "A"})", "[1, 2]"}) {
    const auto read = Dataset(text);
    ASSERT_FALSE(read.has_value()) << text;
    EXPECT_THAT(read.error().message(), HasSubstr("data: got "));
  }
  EXPECT_THAT(Dataset("{\"prompt\": \"A\"}\n{oops").error().message(), HasSubstr("data, line 2"));
  for (const std::string length : {"\"7\"", "-3", "0", "2.5", "1e30", "99999999999"}) {
    const auto read = Dataset("{\"prompt\": \"A\"}\n{\"prompt\": \"B\", \"output_tokens\": " + length + "}");
    ASSERT_FALSE(read.has_value()) << length;
    EXPECT_THAT(read.error().message(), HasSubstr("data, object 2: output_tokens: got "));
  }
  EXPECT_TRUE(Dataset("\xEF\xBB\xBF[{\"prompt\": \"A\"}]").has_value()) << "a byte order mark";
}

TEST(EventStream, PiecesEndAnywhere) {
  const std::string text =
      "\xEF\xBB\xBF: hi\ndata: a\n\n: on\r\ndata:b\r\ndata: c\r\n\r\nid: 1\n\ndata: \xE6\x97\xA5\n\ndata: "
      "rest";
  for (const size_t size : {size_t{1}, size_t{2}, size_t{7}, text.size()}) {
    EventStream stream;
    std::vector<std::string> events;
    for (size_t at = 0; at < text.size(); at += size) {
      for (std::string& data : stream.Take(std::string_view(text).substr(at, size)))
        events.push_back(std::move(data));
    }
    EXPECT_THAT(events, testing::ElementsAre("a", "b\nc", "\xE6\x97\xA5")) << size;
  }
}

TEST(Features, ARequestAsksForItsOwn) {
  const auto body = [](Feature feature) { return Json::parse(Workload::BodyOf(Json::array(), 50, feature)); };
  const Json plain = body(Feature::kNone);
  EXPECT_EQ(plain["ignore_eos"], true);
  const Json schema = body(Feature::kSchema);
  EXPECT_FALSE(schema.contains("ignore_eos")) << "a grammar says where an answer ends";
  const auto items = [](const Json& list) { return list["properties"]["events"]["minItems"]; };
  EXPECT_EQ(items(schema["response_format"]["json_schema"]["schema"]), 50) << "no answer ends early";
  const Json tool = body(Feature::kTool);
  EXPECT_EQ(tool["tools"][0]["function"]["strict"], true);
  EXPECT_EQ(items(tool["tools"][0]["function"]["parameters"]), 50);
  EXPECT_EQ(tool["tool_choice"], "required");
  EXPECT_EQ(body(Feature::kPenalties)["repetition_penalty"], 1.1);
  EXPECT_EQ(body(Feature::kLogprobs)["top_logprobs"], 5);
}

TEST(LoadReport, HasTheFieldsNamesOfTheField) {
  ServerBenchOptions options;
  options.agents = true;
  options.seconds = 4.0;
  std::vector<LoadSample> samples(2);
  samples[0] = {.first = 0.1,
                .seconds = 1.1,
                .gaps = {0.5, 0.5},
                .num_prompt = 100,
                .num_cached = 90,
                .num_output = 101};
  samples[1] = {.first = 0.3,
                .seconds = 1.5,
                .gaps = {0.4, 0.6},
                .num_prompt = 300,
                .num_cached = 270,
                .num_output = 101};
  const Json report = LoadReport(options, samples, {.seconds = 2.0, .steady_tokens = 8.0});
  EXPECT_NEAR(report["mean_ttft_ms"].get<double>(), 200, 1e-9);
  EXPECT_NEAR(report["std_ttft_ms"].get<double>(), 100, 1e-9);
  EXPECT_NEAR(report["p99_ttft_ms"].get<double>(), 300, 1e-9);
  EXPECT_NEAR(report["median_tpot_ms"].get<double>(), 10, 1e-9);
  EXPECT_NEAR(report["mean_itl_ms"].get<double>(), 500, 1e-9);
  EXPECT_NEAR(report["p99_e2el_ms"].get<double>(), 1500, 1e-9);
  EXPECT_NEAR(report["output_throughput"].get<double>(), 101, 1e-9);
  EXPECT_NEAR(report["steady_output_tokens_per_second"].get<double>(), 2, 1e-9);
  EXPECT_NEAR(report["total_token_throughput"].get<double>(), 301, 1e-9);
  EXPECT_EQ(report["total_input_tokens"], 400);
  EXPECT_NEAR(report["share_of_prompt_reused"].get<double>(), 0.9, 1e-9);
  EXPECT_NEAR(report["agents"]["output_tokens_per_second_per_user"].get<double>(), 100, 1e-6);
  EXPECT_TRUE(report["agents"]["counts"].get<bool>());
  samples[0].first = samples[1].first = 6.0;
  EXPECT_FALSE(LoadReport(options, samples, {.seconds = 2.0})["agents"]["counts"].get<bool>());
  EXPECT_FALSE(LoadReport(options, {}, {.seconds = 2.0})["agents"]["counts"].get<bool>());
}

}  // namespace
}  // namespace dsv4::apps
