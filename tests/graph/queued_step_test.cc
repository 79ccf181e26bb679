// Steps that choose their tokens on the backend, each queued before the tokens of the one in front were
// looked at.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/graph/runs.h"

namespace dsv4::test {
namespace {

using model::DecodeChunk;
using model::QueuedStep;
using ::testing::HasSubstr;

constexpr sampling::ChoiceParams kGreedy{.temperature = 0.0F};

std::unique_ptr<QueuedStep> Queue(model::Model& model, const std::vector<DecodeChunk>& chunks,
                                  const Buffer& allowed = {}) {
  auto step = model.QueueDecode(chunks, allowed);
  EXPECT_TRUE(step.has_value()) << step.error().ToString();
  return std::move(*step);
}

std::vector<int32_t> Ids(QueuedStep& step) {
  std::vector<int32_t> ids;
  const auto tokens = step.Wait();
  EXPECT_TRUE(tokens.has_value()) << tokens.error().ToString();
  for (const model::ChosenToken& token : *tokens) {
    EXPECT_EQ(token.fault, ops::kNoFault);
    ids.push_back(token.id);
  }
  return ids;
}

// The tokens behind `first`, the highest logits one by one.
std::vector<int32_t> GreedyTokens(model::Model& model, int32_t first, int count) {
  kv::SequenceState state = NewSequence(model);
  std::vector<int32_t> tokens = {first};
  for (int i = 0; i < count; ++i) {
    const std::vector<float> logits = RunTokens(model, state, {&tokens.back(), 1});
    tokens.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
  }
  return {tokens.begin() + 1, tokens.end()};
}

class QueuedStepTest : public ::testing::Test {
 protected:
  QueuedStepTest() {
    for (int i = 0; i < 3; ++i) states_.push_back(NewSequence(*model_));
  }
  const std::unique_ptr<model::Model> model_ = MakeToyModel({}, ToyModelOptions(model::Numerics::kRelease));
  std::vector<kv::SequenceState> states_;
};

TEST_F(QueuedStepTest, TokensAreThoseOfStepsOneByOne) {
  constexpr int kSteps = 30;
  std::vector<std::unique_ptr<QueuedStep>> steps;
  steps.push_back(Queue(*model_, {{.state = &states_[0], .token = 5, .choice = kGreedy},
                                  {.state = &states_[1], .token = 6, .choice = kGreedy}}));
  for (int i = 1; i < kSteps; ++i) {
    steps.push_back(Queue(*model_, {{.state = &states_[0], .follows = 0, .choice = kGreedy},
                                    {.state = &states_[1], .follows = 1, .choice = kGreedy}}));
  }
  EXPECT_EQ(states_[0].length(), kSteps);
  std::vector<int32_t> first;
  std::vector<int32_t> second;
  for (const auto& step : steps) {
    const std::vector<int32_t> ids = Ids(*step);
    first.push_back(ids[0]);
    second.push_back(ids[1]);
  }
  EXPECT_EQ(first, GreedyTokens(*model_, 5, kSteps));
  EXPECT_EQ(second, GreedyTokens(*model_, 6, kSteps));
}

// Sequences leave the batch, change places and come with tokens that the host knows.
TEST_F(QueuedStepTest, AChunkFollowsAnyOfTheStepInFront) {
  const std::vector<int32_t> of_5 = GreedyTokens(*model_, 5, 3);
  const std::vector<int32_t> of_6 = GreedyTokens(*model_, 6, 3);
  const std::vector<int32_t> of_7 = GreedyTokens(*model_, 7, 3);
  const auto one = Queue(*model_, {{.state = &states_[0], .token = 5, .choice = kGreedy},
                                   {.state = &states_[1], .token = 6, .choice = kGreedy},
                                   {.state = &states_[2], .token = 7, .choice = kGreedy}});
  const auto two = Queue(*model_, {{.state = &states_[2], .follows = 2, .choice = kGreedy},
                                   {.state = &states_[1], .token = of_6[0], .choice = kGreedy},
                                   {.state = &states_[0], .follows = 0, .choice = kGreedy}});
  const auto three = Queue(*model_, {{.state = &states_[1], .follows = 1, .choice = kGreedy},
                                     {.state = &states_[0], .follows = 2, .choice = kGreedy}});
  EXPECT_EQ(Ids(*one), (std::vector<int32_t>{of_5[0], of_6[0], of_7[0]}));
  EXPECT_EQ(Ids(*two), (std::vector<int32_t>{of_7[1], of_6[1], of_5[1]}));
  EXPECT_EQ(Ids(*three), (std::vector<int32_t>{of_6[2], of_5[2]}));
}

TEST_F(QueuedStepTest, OnlyAllowedTokensAreChosen) {
  const int32_t free = GreedyTokens(*model_, 5, 1)[0];
  std::vector<uint8_t> allowed(kToyVocab, 1);
  allowed[static_cast<size_t>(free)] = 0;
  const Result<Buffer> uploaded = model_->UploadAllowedTokens(allowed);
  ASSERT_TRUE(uploaded.has_value());
  const auto step = Queue(*model_, {{.state = &states_[0], .token = 5, .choice = kGreedy}}, *uploaded);
  EXPECT_NE(Ids(*step)[0], free);
  EXPECT_THAT(model_->UploadAllowedTokens({allowed.data(), 3}).error().message(),
              HasSubstr("got 3, want 61"));
}

// Rows of a draft choose what steps of their own would, whatever the draft is right about, beside others of
// their own lengths.
TEST_F(QueuedStepTest, DraftsAreVerifiedInOneStep) {
  constexpr int kTokens = 14;
  const std::vector<int32_t> of_5 = GreedyTokens(*model_, 5, kTokens);
  const std::vector<int32_t> of_6 = GreedyTokens(*model_, 6, kTokens);
  std::vector<int32_t> known_5 = {5};
  std::vector<int32_t> known_6 = {6};
  const std::vector<sampling::ChoiceParams> choices(8, kGreedy);
  for (size_t turn = 0; known_5.size() + 4 < kTokens && known_6.size() + 4 < kTokens; ++turn) {
    std::vector<int32_t> draft(of_5.begin() + static_cast<std::ptrdiff_t>(known_5.size()) - 1,
                               of_5.begin() + static_cast<std::ptrdiff_t>(known_5.size()) + 2);
    const size_t wrong = turn % 4;  // 3: none is.
    if (wrong < draft.size()) draft[wrong] = static_cast<int32_t>((draft[wrong] + 1) % kToyVocab);
    const auto step = Queue(*model_, {{.state = &states_[1], .token = known_6.back(), .choice = kGreedy},
                                      {.state = &states_[0],
                                       .token = known_5.back(),
                                       .choice = kGreedy,
                                       .draft = draft,
                                       .draft_choices = std::span(choices).first(draft.size())}});
    const std::vector<int32_t> ids = Ids(*step);
    ASSERT_EQ(ids.size(), 2 + draft.size());
    known_6.push_back(ids[0]);
    size_t right = 0;
    while (right < draft.size() && ids[1 + right] == draft[right]) ++right;
    EXPECT_EQ(right, std::min(wrong, draft.size()));
    known_5.insert(known_5.end(), ids.begin() + 1, ids.begin() + static_cast<std::ptrdiff_t>(right) + 2);
    EXPECT_TRUE(states_[0].Rewind(static_cast<int64_t>(draft.size() - right)).ok());
    EXPECT_EQ(states_[0].length(), static_cast<int64_t>(known_5.size()) - 1);
  }
  EXPECT_GT(known_5.size(), known_6.size());
  EXPECT_TRUE(std::equal(known_5.begin() + 1, known_5.end(), of_5.begin()));
  EXPECT_TRUE(std::equal(known_6.begin() + 1, known_6.end(), of_6.begin()));
  // None can follow a step of several rows.
  EXPECT_THAT(model_->QueueDecode(std::vector<DecodeChunk>{{.state = &states_[0], .follows = 0}}, {})
                  .error()
                  .message(),
              HasSubstr("the step before had 0"));
}

// A prompt in pieces beside an answer, and the answer to it behind.
TEST_F(QueuedStepTest, PromptsAreReadBesideAnswers) {
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9};
  kv::SequenceState alone = NewSequence(*model_);
  const std::vector<float> logits = RunTokens(*model_, alone, prompt);
  const auto last = logits.end() - kToyVocab;
  const auto behind = static_cast<int32_t>(std::max_element(last, logits.end()) - last);
  const std::vector<int32_t> of_5 = GreedyTokens(*model_, 5, 3);
  const auto one =
      Queue(*model_, {{.state = &states_[1], .prompt = std::span(prompt).first(9), .chooses = false},
                      {.state = &states_[0], .token = 5, .choice = kGreedy}});
  EXPECT_EQ(Ids(*one), (std::vector<int32_t>{of_5[0]}));
  EXPECT_THAT(model_->QueueDecode(std::vector<DecodeChunk>{{.state = &states_[0], .follows = 0}}, {})
                  .error()
                  .message(),
              HasSubstr("the step before had 0"));
  const auto two =
      Queue(*model_, {{.state = &states_[0], .token = of_5[0], .choice = kGreedy},
                      {.state = &states_[1], .prompt = std::span(prompt).subspan(9), .choice = kGreedy}});
  // Every chunk has chosen one token, so the next may follow.
  const auto three = Queue(*model_, {{.state = &states_[1], .follows = 1, .choice = kGreedy},
                                     {.state = &states_[0], .follows = 0, .choice = kGreedy}});
  EXPECT_EQ(Ids(*two), (std::vector<int32_t>{of_5[1], behind}));
  const std::vector<float> next = RunTokens(*model_, alone, {&behind, 1});
  const auto best = static_cast<int32_t>(std::ranges::max_element(next) - next.begin());
  EXPECT_EQ(Ids(*three), (std::vector<int32_t>{best, of_5[2]}));
  EXPECT_EQ(states_[1].length(), static_cast<int64_t>(prompt.size()) + 1);
}

TEST_F(QueuedStepTest, WrongChunksChangeNothing) {
  const auto message = [&](const std::vector<DecodeChunk>& chunks) {
    return model_->QueueDecode(chunks, {}).error().message();
  };
  EXPECT_THAT(message({}), HasSubstr("no chunks"));
  EXPECT_THAT(message({{.state = &states_[0], .follows = 0}}),
              HasSubstr("follows chunk 0, the step before had 0"));
  EXPECT_THAT(message({{.state = &states_[0], .token = -1}}), HasSubstr("got id -1"));
  EXPECT_THAT(message({{.state = &states_[0]}, {.state = &states_[0]}}), HasSubstr("already in chunk 0"));
  EXPECT_THAT(message({{.state = &states_[0], .choice = {.temperature = -1.0F}}}),
              HasSubstr("sample: op sample: choices[0].temperature"));
  const std::vector<int32_t> draft = {1, 2};
  EXPECT_THAT(message({{.state = &states_[0], .draft = draft}}),
              HasSubstr("a draft of 2 tokens with 0 choices"));
  EXPECT_THAT(message({{.state = &states_[0], .prompt = draft, .draft = draft, .draft_choices = {}}}),
              HasSubstr("a draft of 2 tokens with 0 choices"));
  const std::vector<sampling::ChoiceParams> choices(2, kGreedy);
  EXPECT_THAT(message({{.state = &states_[0], .prompt = draft, .draft = draft, .draft_choices = choices}}),
              HasSubstr("got a prompt of 2 tokens with a draft"));
  EXPECT_THAT(message({{.state = &states_[0], .chooses = false, .draft = draft, .draft_choices = choices}}),
              HasSubstr("got a draft where nothing is chosen"));
  EXPECT_THAT(message({{.state = &states_[0], .prompt = draft, .chooses = false}}),
              HasSubstr("got no chunk that chooses"));
  for (const kv::SequenceState& state : states_) {
    EXPECT_EQ(state.length(), 0);
    EXPECT_FALSE(state.appending());
  }
  const auto step = Queue(*model_, {{.state = &states_[0], .token = 5, .choice = kGreedy}});
  EXPECT_THAT(message({{.state = &states_[0], .follows = 1}}),
              HasSubstr("follows chunk 1, the step before had 1"));
  EXPECT_EQ(Ids(*step), GreedyTokens(*model_, 5, 1));
}

}  // namespace
}  // namespace dsv4::test
