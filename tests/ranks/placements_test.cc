// Every placement of every golden model, and of the small model of the repository, against one rank. They
// agree bit for bit where no sum is cut, and within the goldens' own bounds where one is.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "kv/random_rows.h"
#include "model/arch/architecture.h"
#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

constexpr const char* kTiny = "models/tiny";  // Tests run in the source root.

// Some of a prompt in uneven chunks, then tokens one by one; the logits of all. The first tokens see fewer
// entries than there are ranks.
std::vector<float> Logits(const RanksRun& run, const std::vector<int32_t>& tokens) {
  std::vector<float> logits;
  RunModel(run, [&](model::Model& model) { logits = RunPieces(model, tokens, {7, 13, 3, 1, 1, 24, 1}); });
  return logits;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() &&
         std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
           return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
         });
}

struct Case {
  int num_ranks;
  const char* placement;
};

std::vector<int32_t> Tokens(const std::string& directory, int64_t count) {
  const auto config = model::LoadModelConfig(directory);
  EXPECT_TRUE(config.has_value()) << directory;
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>((i * 7919 + 3) % config->vocab_size));
  return tokens;
}

class Goldens : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Goldens, ::testing::ValuesIn(GoldenModels()),
                         [](const auto& golden) { return golden.param; });

TEST_P(Goldens, SameBitsWithoutCutSums) {
  const std::string directory = ModelDirectory(GetParam()).string();
  const std::vector<int32_t> tokens = Tokens(directory, 60);
  RanksRun run{.directory = directory, .options = {}};
  const auto config = model::LoadModelConfig(directory);
  ASSERT_TRUE(config.has_value());
  // Release numerics where the shape allows them.
  if (config->nope_head_dim() % 64 != 0 || config->index_head_dim % 32 != 0)
    run.options.numerics = model::Numerics::kPlain;
  const std::vector<float> alone = Logits(run, tokens);
  for (const auto& [num_ranks, placement] :
       {Case{2, "expert"}, Case{3, "expert"}, Case{4, "expert"}, Case{2, "expert,sequences"},
        Case{3, "expert,sequences"}, Case{2, "pipeline"}, Case{3, "pipeline"}}) {
    if (std::string(placement) == "pipeline" && config->num_hidden_layers < num_ranks) continue;
    run.num_ranks = num_ranks;
    run.placement = placement;
    EXPECT_TRUE(SameBits(Logits(run, tokens), alone)) << num_ranks << " ranks, " << placement;
  }
  // Terms that hosts list; and in one run those of chunks of up to seven tokens gathered, those of more
  // listed.
  run.num_ranks = 3;
  run.placement = "expert";
  const DType dtype = run.options.numerics == model::Numerics::kRelease ? DType::kBF16 : DType::kF32;
  const int64_t row_bytes = config->num_experts_per_tok * config->hidden_size * ElementBytes(dtype);
  for (const int64_t gathered_tokens : {0, 7}) {
    run.options.max_gathered_terms = gathered_tokens * row_bytes * run.num_ranks;
    EXPECT_TRUE(SameBits(Logits(run, tokens), alone)) << gathered_tokens << " tokens gathered";
  }
}

TEST_P(Goldens, NearlySameWithCutSums) {
  const std::string directory = ModelDirectory(GetParam()).string();
  const std::vector<int32_t> tokens = Tokens(directory, 40);
  // Plain numerics: no rounding that would make much of little differences.
  RanksRun run{.directory = directory, .options = {.numerics = model::Numerics::kPlain}};
  const std::vector<float> alone = Logits(run, tokens);
  for (const auto& [num_ranks, placement] :
       {Case{2, "tensor"}, Case{3, "tensor"}, Case{4, "tensor"}, Case{2, "tensor,entries"},
        Case{3, "tensor,entries"}, Case{4, "tensor,entries"}, Case{2, "expert,entries"},
        Case{3, "expert,entries"}, Case{4, "expert,entries"}}) {
    run.num_ranks = num_ranks;
    run.placement = placement;
    EXPECT_LT(RelativeError(Logits(run, tokens), alone), kCutSums) << num_ranks << " ranks, " << placement;
  }
}

// Every placement, with its cut sums: whether numbers travel through memory or over sockets makes no
// difference to them.
void ExpectSameBitsOverTcp(RanksRun run, const std::vector<int32_t>& tokens, int64_t num_layers) {
  for (const auto& [num_ranks, placement] :
       {Case{2, "expert"}, Case{3, "expert"}, Case{2, "tensor"}, Case{3, "tensor,entries"},
        Case{3, "expert,entries"}, Case{2, "pipeline"}, Case{3, "pipeline"},
        Case{4, "pipeline=2,tensor,entries"}}) {
    if (model::ParsePlacement(placement, num_ranks).value().num_stages > num_layers) continue;
    run.num_ranks = num_ranks;
    run.placement = placement;
    run.network = comm::testing::Network::kSharedMemory;
    const std::vector<float> in_memory = Logits(run, tokens);
    run.network = comm::testing::Network::kTcp;
    EXPECT_TRUE(SameBits(Logits(run, tokens), in_memory)) << num_ranks << " ranks, " << placement;
  }
}

TEST_P(Goldens, SameBitsOverTcp) {
  const std::string directory = ModelDirectory(GetParam()).string();
  const auto config = model::LoadModelConfig(directory);
  ASSERT_TRUE(config.has_value());
  const RanksRun run{.directory = directory, .options = {.numerics = model::Numerics::kPlain}};
  ExpectSameBitsOverTcp(run, Tokens(directory, 40), config->num_hidden_layers);
}

TEST(Tiny, SameBitsOverTcp) {
  const RanksRun run{.directory = kTiny, .options = {}, .backend = GoldenBackends().back()};
  ExpectSameBitsOverTcp(run, Tokens(kTiny, 150), 7);
}

TEST(Tiny, SameBitsOnTheCpuBackend) {
  const std::vector<int32_t> tokens = Tokens(kTiny, 150);
  RanksRun run{.directory = kTiny, .options = {}, .backend = GoldenBackends().back()};
  const std::vector<float> alone = Logits(run, tokens);
  for (const auto& [num_ranks, placement] :
       {Case{2, "expert"}, Case{3, "expert"}, Case{4, "expert"}, Case{2, "pipeline"}, Case{3, "pipeline"},
        Case{4, "pipeline"}, Case{4, "pipeline=2,expert"}, Case{4, "expert,sequences"},
        Case{4, "pipeline=2,expert,sequences"}}) {
    run.num_ranks = num_ranks;
    run.placement = placement;
    EXPECT_TRUE(SameBits(Logits(run, tokens), alone)) << num_ranks << " ranks, " << placement;
  }
}

// Cut sums, too, are the same from run to run, and a row's do not depend on its chunk. There is one
// exception: queries of up to 16 tokens go to divided entries, entries come to more. Where they come, only
// `tensor` cuts sums.
TEST(Tiny, CutSumsDoNotDependOnChunks) {
  const std::vector<int32_t> tokens = Tokens(kTiny, 150);
  RanksRun run{.directory = kTiny, .options = {}, .backend = GoldenBackends().back()};
  const auto logits = [&](const std::vector<int64_t>& pieces) {
    std::vector<float> all;
    RunModel(run, [&](model::Model& model) { all = RunPieces(model, tokens, pieces); });
    return all;
  };
  const std::vector<int64_t> few = {7, 13, 1, 16, 9, 1, 1, 12, 16, 16, 16, 16, 16, 10};
  const std::vector<float> alone = logits({150});
  run.num_ranks = 3;
  for (const char* placement : {"tensor", "tensor,entries", "expert,entries"}) {
    run.placement = placement;
    const std::vector<float> whole = logits({150});
    EXPECT_TRUE(SameBits(logits({40, 17, 93}), whole)) << placement;
    EXPECT_EQ(SameBits(whole, alone), std::string(placement) == "expert,entries") << placement;
    const std::vector<float> pieces = logits(few);
    EXPECT_TRUE(SameBits(logits({15, 5, 13, 3, 1, 1, 12, 16, 1, 15, 16, 16, 4, 12, 10, 10}), pieces))
        << placement;
    EXPECT_TRUE(SameBits(logits(few), pieces)) << placement;
    EXPECT_EQ(SameBits(pieces, whole), std::string(placement) == "tensor") << placement;
  }
}

// A short end behind a long beginning, as with a kept prompt: queries would be fewer bytes than entries, which does not
// count.
TEST(Tiny, AShortEndHasTheBitsOfAWholePrompt) {
  const std::vector<int32_t> tokens = Tokens(kTiny, 2000);
  RanksRun run{.directory = kTiny, .options = {.max_chunk_tokens = 2048}, .backend = GoldenBackends().back()};
  run.num_ranks = 2;
  for (const char* placement : {"tensor", "tensor,entries", "expert,entries"}) {
    run.placement = placement;
    const auto last_row = [&](const std::vector<int64_t>& pieces) {
      std::vector<float> all;
      RunModel(run, [&](model::Model& model) { all = RunPieces(model, tokens, pieces); });
      return std::vector<float>(all.end() - 5120, all.end());
    };
    EXPECT_TRUE(SameBits(last_row({1983, 17}), last_row({2000}))) << placement;
  }
}

// A step of prompts and of single tokens between them has the bits of steps of each sequence alone. Their
// entries go different ways where they are divided. The same holds for more single tokens than entries stay
// for.
TEST(Tiny, DividedEntriesDoNotDependOnNeighbours) {
  constexpr size_t kSequences = 20;
  const std::vector<int32_t> tokens = Tokens(kTiny, 350);
  const auto feed = [&](model::Model& model, bool together) {
    std::vector<kv::SequenceState> states;
    for (size_t i = 0; i < kSequences; ++i) states.push_back(model.NewSequence().value());
    std::vector<float> logits;
    const auto step = [&](const std::vector<size_t>& counts) {
      std::vector<model::SequenceChunk> chunks;
      for (size_t i = 0; i < counts.size(); ++i) {
        const std::span<const int32_t> from = std::span(tokens).subspan(i, counts[i]);
        chunks.push_back({.state = &states[i], .tokens = from});
      }
      const auto run = [&](std::span<const model::SequenceChunk> some) {
        const auto output = model.Step(some);
        ASSERT_TRUE(output.has_value()) << output.error().ToString();
        logits.insert(logits.end(), output->logits.begin(), output->logits.end());
      };
      if (together) return run(chunks);
      for (const model::SequenceChunk& chunk : chunks) run({&chunk, 1});
    };
    step({40, 3, 17, 33});
    step({1, 30, 1, 1, 25, 2});
    step(std::vector<size_t>(kSequences, 1));
    step({300, 3, 17,
          290});  // Streams and the indexer's tokens are divided, sequences alone too short for it.
    return logits;
  };
  RanksRun run{.directory = kTiny, .options = {.max_chunk_tokens = 1024}, .backend = GoldenBackends().back()};
  for (const auto& [num_ranks, placement] :
       {Case{2, "tensor"}, Case{2, "tensor,entries"}, Case{3, "expert,entries"}, Case{3, "tensor,entries"}}) {
    run.num_ranks = num_ranks;
    run.placement = placement;
    std::vector<float> alone;
    std::vector<float> together;
    RunModel(run, [&](model::Model& model) { alone = feed(model, false); });
    RunModel(run, [&](model::Model& model) { together = feed(model, true); });
    EXPECT_TRUE(SameBits(together, alone)) << placement;
  }
}

// The sums of 600 tokens are taken in pieces, a shard some rows, those of 300 by every shard: 256 columns of
// four bytes each.
TEST(Tiny, CutSumsOfManyTokensAreTheSame) {
  constexpr int64_t kTokens = 600;
  const std::vector<int32_t> tokens = Tokens(kTiny, kTokens);
  RanksRun run{.directory = kTiny,
               .options = {.max_chunk_tokens = kTokens},
               .backend = GoldenBackends().back(),
               .placement = ""};
  for (const auto& [num_ranks, placement] :
       {Case{2, "tensor"}, Case{2, "tensor,entries"}, Case{3, "tensor,entries"}}) {
    run.num_ranks = num_ranks;
    run.placement = placement;
    std::vector<float> halves;
    RunModel(run, [&](model::Model& model) { halves = RunPieces(model, tokens, {300, 300}); });
    std::vector<float> whole;
    RunModel(run, [&](model::Model& model) { whole = RunPieces(model, tokens, {kTokens}); });
    EXPECT_TRUE(SameBits(halves, whole)) << num_ranks << " ranks, " << placement;
  }
}

// Divided entries on the CPU backend, where they lie in many pages and are chosen from: 600 tokens have 150
// entries a CSA layer.
TEST(Tiny, NearlySameOnTheCpuBackend) {
  const std::vector<int32_t> tokens = Tokens(kTiny, 600);
  RanksRun run{.directory = kTiny,
               .options = {.numerics = model::Numerics::kPlain},
               .backend = GoldenBackends().back()};
  const auto logits = [&] {
    std::vector<float> all;
    RunModel(run, [&](model::Model& model) { all = RunPieces(model, tokens, {590, 1, 1, 8}); });
    return all;
  };
  const std::vector<float> alone = logits();
  for (const auto& [num_ranks, placement] :
       {Case{2, "tensor,entries"}, Case{3, "tensor"}, Case{3, "expert,entries"},
        Case{4, "pipeline=2,tensor,entries"}}) {
    run.num_ranks = num_ranks;
    run.placement = placement;
    EXPECT_LT(RelativeError(logits(), alone), 1e-4F) << num_ranks << " ranks, " << placement;
  }
}

// Made-up rows are the same whoever keeps them: every shard has its part of one state.
TEST(Tiny, RandomRowsAreOneState) {
  RanksRun run{.directory = kTiny,
               .options = {.numerics = model::Numerics::kPlain},
               .backend = GoldenBackends().back()};
  const auto logits = [&](uint64_t seed) {
    std::vector<float> all;
    RunModel(run, [&](model::Model& model) {
      kv::SequenceState state = model.NewSequence().value();
      ASSERT_TRUE(kv::FillWithRandomRows(state, 700, seed).ok());  // Two appends.
      const std::vector<int32_t> tokens = {3, 1, 4};
      const model::SequenceChunk chunk{.state = &state, .tokens = tokens};
      auto output = model.Step({&chunk, 1});
      ASSERT_TRUE(output.has_value()) << output.error().ToString();
      all.assign(output->logits.begin(), output->logits.end());
    });
    return all;
  };
  const std::vector<float> alone = logits(5);
  EXPECT_GT(RelativeError(logits(6), alone), 1e-2F);
  run.num_ranks = 3;
  run.placement = "expert";
  EXPECT_TRUE(SameBits(logits(5), alone));
  for (const char* placement : {"tensor", "tensor,entries", "expert,entries"}) {
    run.placement = placement;
    EXPECT_LT(RelativeError(logits(5), alone), 1e-4F) << placement;
  }
}

// Its output groups begin inside scale blocks, so that shards have smaller blocks than one rank.
TEST(SmallerScaleBlocks, SameBitsOnTheCpuBackend) {
  RanksRun run{
      .directory = ModelDirectory("fp8_mxfp4").string(), .options = {}, .backend = GoldenBackends().back()};
  const std::vector<int32_t> tokens = Tokens(run.directory, 60);
  const std::vector<float> alone = Logits(run, tokens);
  run.num_ranks = 2;
  run.placement = "expert";
  EXPECT_TRUE(SameBits(Logits(run, tokens), alone));
}

}  // namespace
}  // namespace dsv4::testing
