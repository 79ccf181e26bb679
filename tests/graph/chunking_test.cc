// Logits do not depend on how tokens are cut into chunks, on neighbours in the batch, or on a sequence's
// history: rewinds, forks, snapshots, restores. Every op computes a row from that row and its own sequence
// alone. So on the reference backend the logits are equal bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/graph/runs.h"

namespace dsv4::test {
namespace {

using model::LogitsRows;
using model::Model;
using model::Numerics;
using model::SequenceChunk;

struct Variant {
  const char* name;
  ToyFormat format;
  Numerics numerics;
};

constexpr Variant kVariants[] = {
    {"F32Plain", ToyFormat::kF32, Numerics::kPlain},
    {"Bf16Release", ToyFormat::kBf16, Numerics::kRelease},
    {"ReleaseRelease", ToyFormat::kRelease, Numerics::kRelease},
    {"ReleasePlain", ToyFormat::kRelease, Numerics::kPlain},
    {"NvFp4ExpertsRelease", ToyFormat::kNvFp4Experts, Numerics::kRelease},
    {"NvFp4Release", ToyFormat::kNvFp4, Numerics::kRelease},
};

class ChunkingTest : public ::testing::TestWithParam<Variant> {
 protected:
  std::unique_ptr<Model> model_ =
      MakeToyModel({.format = GetParam().format}, ToyModelOptions(GetParam().numerics));
  // Past two blocks of the largest ratio, at no special length.
  std::vector<int32_t> tokens_ = RandomTokens(275, 5);
  std::vector<float> straight_ = RunInChunks(*model_, tokens_, tokens_.size());
};

INSTANTIATE_TEST_SUITE_P(Formats, ChunkingTest, ::testing::ValuesIn(kVariants),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST_P(ChunkingTest, EveryChunkSizeGivesTheSameLogits) {
  ASSERT_EQ(straight_.size(), tokens_.size() * kToyVocab);
  for (const float value : straight_) ASSERT_TRUE(std::isfinite(value));
  for (const size_t chunk : {1, 7, 37, 128}) {
    EXPECT_EQ(FirstDifference(RunInChunks(*model_, tokens_, chunk), straight_), -1) << "chunks of " << chunk;
  }
  // So far the step cut chunks to max_chunk_tokens itself; here the whole text is one pass.
  model::ModelOptions wide = ToyModelOptions(GetParam().numerics);
  wide.max_chunk_tokens = 512;
  const auto one_pass = MakeToyModel({.format = GetParam().format}, wide);
  EXPECT_EQ(FirstDifference(RunInChunks(*one_pass, tokens_, tokens_.size()), straight_), -1);
}

// The model is not so dull that equality would mean nothing: every earlier token within reach changes the
// logits.
TEST_P(ChunkingTest, LogitsDependOnEarlierTokens) {
  for (const size_t changed : {0, 3, 100, 140, 270}) {
    std::vector<int32_t> other = tokens_;
    other[changed] = (other[changed] + 1) % static_cast<int32_t>(kToyVocab);
    const auto logits = RunInChunks(*model_, other, 64);
    EXPECT_EQ(FirstDifference(logits, straight_), static_cast<int64_t>(changed));
    EXPECT_NE(LogitsRowsOf(logits, 274, 275), LogitsRowsOf(straight_, 274, 275)) << changed;
  }
}

// At every length, so at every residue mod 4, 8 and 128. A rejected draft is taken back, a fork goes its own
// way, a snapshot travels through bytes. The next token's logits stay the same.
TEST_P(ChunkingTest, ExcursionsAtEveryLengthLeaveNoTrace) {
  std::mt19937 random(11);
  kv::SequenceState state = NewSequence(*model_);
  for (size_t length = 0; length < tokens_.size(); ++length) {
    SCOPED_TRACE(length);
    const auto want = LogitsRowsOf(straight_, static_cast<int64_t>(length), static_cast<int64_t>(length) + 1);
    const auto next = std::span(tokens_).subspan(length, 1);
    const std::vector<int32_t> junk =
        RandomTokens(static_cast<int64_t>(1 + random() % 9), static_cast<uint32_t>(random()));
    const auto snapshot = state.Snapshot();
    ASSERT_TRUE(snapshot.has_value());
    RunTokens(*model_, state, junk);
    ASSERT_TRUE(state.Rewind(static_cast<int64_t>(junk.size())).ok());

    auto fork = state.Fork();
    ASSERT_TRUE(fork.has_value());
    RunTokens(*model_, *fork, junk);

    if (length % 3 == 0) {
      constexpr uint64_t kOrigin = 7;
      const auto bytes = snapshot->Serialize(kOrigin);
      ASSERT_TRUE(bytes.has_value());
      const auto read = model_->DeserializeSnapshot(*bytes, kOrigin);
      ASSERT_TRUE(read.has_value()) << read.error().ToString();
      ASSERT_TRUE(fork->Restore(*read).ok());
    } else {
      ASSERT_TRUE(fork->Restore(*snapshot).ok());
    }
    ASSERT_EQ(RunTokens(*model_, *fork, next), want) << "restored";
    ASSERT_EQ(RunTokens(*model_, state, next), want) << "rewound";
  }
}

// Several sequences, each a prefix of its own text, go through random operations. Every logit of a true token
// must be that of the straight run.
TEST_P(ChunkingTest, RandomInterleavingsGiveTheLogitsOfAStraightRun) {
  constexpr size_t kNumTexts = 3;
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::vector<float>> straight;
  for (size_t i = 0; i < kNumTexts; ++i) {
    texts.push_back(RandomTokens(200, static_cast<uint32_t>(100 + i)));
    straight.push_back(RunInChunks(*model_, texts[i], 200));
  }
  for (uint32_t seed = 0; seed < 4; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    struct Live {
      size_t text;
      kv::SequenceState state;
    };
    std::vector<Live> live;
    for (size_t i = 0; i < kNumTexts; ++i) live.push_back({i, NewSequence(*model_)});
    std::vector<std::pair<size_t, kv::Snapshot>> snapshots;
    for (int round = 0; round < 30; ++round) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
      // A ragged step over all of them: one token, a few, or many.
      std::vector<SequenceChunk> chunks;
      std::vector<size_t> who;
      for (size_t i = 0; i < live.size(); ++i) {
        const auto& text = texts[live[i].text];
        const auto length = static_cast<size_t>(live[i].state.length());
        const size_t want = below(3) == 0 ? 1 : 1 + below(below(4) == 0 ? 90 : 9);
        const size_t count = std::min(want, text.size() - length);
        if (count == 0 || below(5) == 0) continue;
        chunks.push_back({&live[i].state, std::span(text).subspan(length, count), LogitsRows::kAll});
        who.push_back(i);
      }
      if (!chunks.empty()) {
        std::vector<int64_t> begins;
        for (const auto& chunk : chunks) begins.push_back(chunk.state->length());
        const auto output = model_->Step(chunks);
        ASSERT_TRUE(output.has_value()) << output.error().ToString();
        for (size_t c = 0; c < chunks.size(); ++c) {
          const auto count = static_cast<int64_t>(chunks[c].tokens.size());
          const auto want = LogitsRowsOf(straight[live[who[c]].text], begins[c], begins[c] + count);
          const std::span<const float> got =
              std::span(output->logits)
                  .subspan(static_cast<size_t>(output->row_begin[c] * kToyVocab),
                           static_cast<size_t>(count * kToyVocab));
          ASSERT_EQ(FirstDifference(got, want), -1) << "sequence " << who[c] << " from " << begins[c];
        }
      }
      Live& one = live[below(live.size())];
      switch (below(6)) {
        case 0: {  // A draft that is rejected.
          const auto junk = RandomTokens(static_cast<int64_t>(1 + below(9)), static_cast<uint32_t>(random()));
          RunTokens(*model_, one.state, junk);
          ASSERT_TRUE(one.state.Rewind(static_cast<int64_t>(junk.size())).ok());
          break;
        }
        case 1: {  // True tokens taken back; they come again.
          const auto count = std::min<int64_t>(one.state.length(), static_cast<int64_t>(below(10)));
          const auto status = one.state.Rewind(count);
          ASSERT_TRUE(status.ok() || status.code() == StatusCode::kFailedPrecondition) << status.ToString();
          break;
        }
        case 2:
          snapshots.emplace_back(one.text, one.state.Snapshot().value());
          break;
        case 3: {
          if (snapshots.empty()) break;
          const auto& [text, snapshot] = snapshots[below(snapshots.size())];
          ASSERT_TRUE(one.state.Restore(snapshot).ok());
          one.text = text;
          break;
        }
        case 4: {
          if (live.size() > 5) break;
          auto fork = one.state.Fork();
          ASSERT_TRUE(fork.has_value());
          live.push_back({one.text, std::move(*fork)});
          break;
        }
        default:
          if (below(6) == 0) {
            one.state.Reset();
            one.text = below(kNumTexts);
          }
      }
    }
  }
}

// A short second prompt in a reused state must not see the first one's unfinished or previous blocks.
TEST_P(ChunkingTest, ResetForgetsTheFirstPrompt) {
  kv::SequenceState state = NewSequence(*model_);
  const auto second = RandomTokens(9, 77);
  const auto want = RunInChunks(*model_, second, second.size());
  for (const size_t first : {1, 3, 4, 6, 130}) {
    state.Reset();
    RunTokens(*model_, state, std::span(tokens_).first(first));
    state.Reset();
    EXPECT_EQ(RunTokens(*model_, state, second), want) << "after a prompt of " << first;
  }
}

}  // namespace
}  // namespace dsv4::test
