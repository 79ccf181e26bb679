// V4.1 on several ranks against one: shared rows, n-gram tables, weights of streams that travel, and a drafter.
#include <gtest/gtest.h>

#include "model/arch/architecture.h"
#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

struct Placed {
  int num_ranks;
  const char* placement;
};

RanksRun RunOf(const std::string& golden, model::Numerics numerics) {
  const std::string directory = ModelDirectory("../v41/" + golden).string();
  RanksRun run{.directory = directory, .options = {.numerics = numerics, .max_chunk_tokens = 64}};
  const Json info = ReadJson(directory + "/golden.json");
  if (info.contains("classes")) run.options.token_classes = info.at("classes").get<std::vector<int32_t>>();
  return run;
}

// A prompt in uneven chunks; then a batch of a state and its fork, and one that was taken back.
std::vector<float> RunText(model::Model& model, const std::string& golden) {
  const std::vector<int32_t> tokens = GoldenTokens("../v41/" + golden);
  std::vector<float> logits = RunPieces(model, tokens, {23, 1, 1, 7, 12, 1});
  const std::span<const int32_t> all(tokens);
  auto first = *model.NewSequence();
  const auto step = [&](std::vector<model::SequenceChunk> chunks) {
    const auto output = model.Step(chunks);
    EXPECT_TRUE(output.has_value()) << output.error().ToString();
    if (output) logits.insert(logits.end(), output->logits.begin(), output->logits.end());
  };
  step({{.state = &first, .tokens = all.first(31)}});
  auto second = *first.Fork();
  step({{.state = &first, .tokens = all.subspan(31, 3), .logits = model::LogitsRows::kAll},
        {.state = &second, .tokens = all.subspan(40, 1)}});
  EXPECT_TRUE(first.Rewind(2).ok());
  step({{.state = &second, .tokens = all.subspan(41, 9)}, {.state = &first, .tokens = all.subspan(32, 1)}});
  return logits;
}

std::vector<float> Logits(const RanksRun& run, const std::string& golden) {
  std::vector<float> logits;
  RunModel(run, [&](model::Model& model) { logits = RunText(model, golden); });
  EXPECT_FALSE(logits.empty());
  return logits;
}

class V41Ranks : public ::testing::TestWithParam<const char*> {};

// "deep" has three sources and tables in layers 1 and 5; "plain16" has no candidates, so that its entries can be divided.
TEST_P(V41Ranks, SameBitsWithoutCutSums) {
  for (const model::Numerics numerics : {model::Numerics::kRelease, model::Numerics::kPlain}) {
    RanksRun run = RunOf(GetParam(), numerics);
    const std::vector<float> alone = Logits(run, GetParam());
    const auto config = model::LoadModelConfig(run.directory);
    for (const Placed& placed :
         {Placed{2, "pipeline"}, Placed{3, "pipeline"}, Placed{2, "expert"}, Placed{3, "expert"},
          Placed{2, "expert,sequences"}, Placed{4, "pipeline=2,expert"}}) {
      run.num_ranks = placed.num_ranks;
      run.placement = placed.placement;
      if (model::ParsePlacement(placed.placement, placed.num_ranks)->num_stages >
          model::MostStages(config->layers))
        continue;
      EXPECT_EQ(Logits(run, GetParam()), alone) << placed.num_ranks << " ranks, " << placed.placement;
    }
  }
}

TEST_P(V41Ranks, NearlySameWithCutSums) {
  RanksRun run = RunOf(GetParam(), model::Numerics::kPlain);
  const std::vector<float> alone = Logits(run, GetParam());
  const bool divides = model::LoadModelConfig(run.directory)->candidate_topk_blocks == 0;
  for (const Placed& placed : {Placed{2, "tensor"}, Placed{3, "tensor"}, Placed{4, "pipeline=2,tensor"},
                               Placed{2, "tensor,entries"}, Placed{3, "expert,entries"}}) {
    run.num_ranks = placed.num_ranks;
    run.placement = placed.placement;
    if (run.placement.ends_with("entries") && !divides) continue;
    EXPECT_LT(RelativeError(Logits(run, GetParam()), alone), kCutSums)
        << placed.num_ranks << " ranks, " << placed.placement;
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, V41Ranks, ::testing::Values("shared", "engram", "deep", "plain16"),
                         [](const auto& golden) { return std::string(golden.param); });

struct PromptsRun {
  std::vector<float> logits;
  std::vector<int64_t> whole_from;  // By state, behind each step.
  model::LayerRows rows;
};

// Two long prompts in pieces, of whose front no row is wanted, beside a sequence that is decoded; then all three.
PromptsRun RunPrompts(model::Model& model) {
  PromptsRun run;
  std::vector<int32_t> tokens(500);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>((i * i + 7 * i) % static_cast<size_t>(model.config().vocab_size));
  const std::span<const int32_t> all(tokens);
  std::vector<kv::SequenceState> states;
  for (int i = 0; i < 3; ++i) states.push_back(*model.NewSequence());
  const auto step = [&](std::vector<model::SequenceChunk> chunks) {
    const auto output = model.Step(chunks);
    EXPECT_TRUE(output.has_value()) << output.error().ToString();
    if (output) run.logits.insert(run.logits.end(), output->logits.begin(), output->logits.end());
    for (const kv::SequenceState& state : states) run.whole_from.push_back(state.whole_from());
  };
  constexpr auto kNone = model::LogitsRows::kNone;
  step({{.state = &states[0], .tokens = all.first(9)},
        {.state = &states[1], .tokens = all.first(50), .logits = kNone, .num_following = 250}});
  step({{.state = &states[1], .tokens = all.subspan(50, 130), .logits = kNone, .num_following = 120},
        {.state = &states[2], .tokens = all.subspan(100, 300), .logits = kNone, .num_following = 1}});
  step({{.state = &states[0], .tokens = all.subspan(9, 1)},
        {.state = &states[1], .tokens = all.subspan(180, 120)},
        {.state = &states[2], .tokens = all.subspan(400, 1)}});
  for (size_t i = 0; i < 3; ++i) {
    step({{.state = &states[0], .tokens = all.subspan(10 + i, 1)},
          {.state = &states[1], .tokens = all.subspan(300 + i, 1)},
          {.state = &states[2], .tokens = all.subspan(401 + i, 1)}});
  }
  run.rows = model.layer_rows();
  return run;
}

PromptsRun Prompts(const RanksRun& run) {
  PromptsRun prompts;
  RunModel(run, [&](model::Model& model) { prompts = RunPrompts(model); });
  EXPECT_FALSE(prompts.logits.empty());
  return prompts;
}

// Rows in front of a prompt's tail are left out on all ranks, with the bits of one.
TEST_P(V41Ranks, RunsTheTailAlone) {
  RanksRun run = RunOf(GetParam(), model::Numerics::kPlain);
  const PromptsRun alone = Prompts(run);
  const auto config = model::LoadModelConfig(run.directory);
  const auto share = [](const model::LayerRows& rows) {
    return static_cast<double>(rows.run) / static_cast<double>(rows.all);
  };
  for (const Placed& placed : {Placed{2, "expert"}, Placed{3, "expert,sequences"}, Placed{2, "pipeline"},
                               Placed{4, "pipeline=2,expert"}, Placed{2, "tensor"}, Placed{3, "tensor"},
                               Placed{4, "pipeline=2,tensor"}}) {
    run.num_ranks = placed.num_ranks;
    run.placement = placed.placement;
    const model::Placement placement = *model::ParsePlacement(placed.placement, placed.num_ranks);
    if (placement.num_stages > model::MostStages(config->layers)) continue;
    const bool cuts_sums = placement.experts == model::ExpertPlacement::kByColumns;
    for (const int64_t min_stream_tokens : {0, 20}) {
      if (!cuts_sums && min_stream_tokens > 0) continue;
      run.min_stream_tokens = min_stream_tokens;
      const PromptsRun got = Prompts(run);
      const std::string what = placed.placement + std::to_string(placed.num_ranks);
      EXPECT_EQ(got.whole_from, alone.whole_from) << what;
      if (cuts_sums) {
        EXPECT_LT(RelativeError(got.logits, alone.logits), kCutSums) << what << ", " << min_stream_tokens;
      } else {
        EXPECT_EQ(got.logits, alone.logits) << what;
      }
      // Rank 0 of a pipeline has the layers in front.
      if (placement.num_stages == 1 && !placement.divide_sequences) {
        EXPECT_EQ(share(got.rows), share(alone.rows)) << what;
      }
    }
  }
}

TEST(V41Ranks, CandidatesWantAllEntries) {
  RanksRun run = RunOf("shared", model::Numerics::kPlain);
  comm::testing::RunRanks(
      2,
      [&](comm::Communicator& group) {
        model::ModelOptions options = run.options;
        options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
        for (const std::string placement : {"expert,entries", "tensor,entries"}) {
          options.placement = model::ParsePlacement(placement, 2).value();
          const auto model = LoadRank(run, MakeGoldenBackend("reference", 1), options);
          ASSERT_FALSE(model.has_value());
          EXPECT_EQ(model.error().code(), StatusCode::kInvalidArgument);
          EXPECT_NE(
              model.error().message().find("placement " + placement + ": this model's candidate blocks"),
              std::string::npos)
              << model.error().message();
        }
      },
      std::chrono::minutes(2), comm::testing::Network::kSharedMemory);
}

std::vector<int32_t> QueuedTokens(model::Model& model) {
  kv::SequenceState state = *model.NewSequence();
  model::DecodeChunk chunk{.state = &state, .token = 5, .choice = {.temperature = 0}};
  std::vector<int32_t> tokens;
  std::unique_ptr<model::QueuedStep> now;
  for (int i = 0; i < 12; ++i) {
    auto next = model.QueueDecode({&chunk, 1}, {});
    EXPECT_TRUE(next.has_value()) << next.error().ToString();
    if (!next) return {};
    if (now != nullptr) tokens.push_back((*now->Wait())[0].id);
    now = std::move(*next);
    chunk.follows = 0;
  }
  tokens.push_back((*now->Wait())[0].id);
  return tokens;
}

// All ranks find the rows of a token that rank 0 has waited for.
TEST(V41Ranks, QueuedStepsReadTheTokenThatWasChosen) {
  RanksRun run = RunOf("deep", model::Numerics::kRelease);
  std::vector<int32_t> alone;
  RunModel(run, [&](model::Model& model) { alone = QueuedTokens(model); });
  ASSERT_EQ(alone.size(), 12U);
  run.num_ranks = 2;
  for (const char* placement : {"expert", "expert,sequences"}) {
    run.placement = placement;
    RunModel(run, [&](model::Model& model) { EXPECT_EQ(QueuedTokens(model), alone) << placement; });
  }
}

// Chosen tokens of a decoded sequence and of a prompt that comes in two pieces beside it.
std::vector<int32_t> QueuedPrompt(model::Model& model) {
  std::vector<int32_t> tokens(150);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((5 * i + i * i / 3) % 90);
  const std::span<const int32_t> prompt(tokens);
  std::vector<kv::SequenceState> states;
  for (int i = 0; i < 2; ++i) states.push_back(*model.NewSequence());
  std::vector<int32_t> chosen;
  const auto step = [&](const std::vector<model::DecodeChunk>& chunks) {
    auto queued = model.QueueDecode(chunks, {});
    EXPECT_TRUE(queued.has_value()) << queued.error().ToString();
    if (!queued) return;
    const auto got = (*queued)->Wait();
    EXPECT_TRUE(got.has_value()) << got.error().ToString();
    if (!got) return;
    for (const auto& token : *got) chosen.push_back(token.id);
    chosen.push_back(static_cast<int32_t>(states[1].whole_from()));
  };
  const sampling::ChoiceParams greedy{.temperature = 0};
  step({{.state = &states[0], .token = 5, .choice = greedy},
        {.state = &states[1], .prompt = prompt.first(60), .chooses = false, .num_following = 90}});
  step({{.state = &states[0], .token = 6, .choice = greedy},
        {.state = &states[1], .prompt = prompt.subspan(60, 60), .chooses = false, .num_following = 30}});
  step({{.state = &states[0], .token = 7, .choice = greedy},
        {.state = &states[1], .prompt = prompt.subspan(120, 30), .choice = greedy}});
  step({{.state = &states[0], .token = 8, .choice = greedy},
        {.state = &states[1], .token = 9, .choice = greedy}});
  return chosen;
}

TEST(V41Ranks, QueuedPromptsRunTheTailAlone) {
  RanksRun run = RunOf("shared", model::Numerics::kRelease);
  std::vector<int32_t> alone;
  RunModel(run, [&](model::Model& model) { alone = QueuedPrompt(model); });
  ASSERT_FALSE(alone.empty());
  run.num_ranks = 2;
  for (const char* placement : {"expert", "expert,sequences"}) {
    run.placement = placement;
    RunModel(run, [&](model::Model& model) { EXPECT_EQ(QueuedPrompt(model), alone) << placement; });
  }
}

// Drafts are rank 0's, from taps that stages send.
TEST(V41Ranks, DraftsAreThoseOfOneRank) {
  RanksRun run = RunOf("dspark", model::Numerics::kRelease);
  run.options.dspark = true;
  const std::vector<int32_t> tokens = GoldenTokens("../v41/dspark");
  std::vector<float> alone;
  RunModel(run, [&](model::Model& model) { alone = RunDrafts(model, tokens, 5); });
  ASSERT_FALSE(alone.empty());
  for (const Placed& placed : {Placed{2, "pipeline"}, Placed{2, "expert"}}) {
    run.num_ranks = placed.num_ranks;
    run.placement = placed.placement;
    std::vector<float> got;
    RunModel(run, [&](model::Model& model) { got = RunDrafts(model, tokens, 5); });
    EXPECT_EQ(got, alone) << placed.placement;
  }
}

}  // namespace
}  // namespace dsv4::testing
