// Outcomes of requests, and mixes of them that come while others run. For tests that compare an engine with
// another.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <vector>

#include "engine/engine.h"

namespace dsv4::engine {

struct Outcome {
  std::vector<int32_t> prompt;  // For RunMix.
  std::vector<int32_t> tokens;
  std::vector<float> chosen_logprobs;  // Log-probabilities of the tokens,
  std::vector<float> logprobs;         // and of the likeliest ones, as many as were asked for.
  FinishReason reason = FinishReason::kError;
  int32_t stop_token = -1;
  Status status;
  int64_t num_cached_tokens = -1;
  int num_finishes = 0;
};

inline void Collect(const std::vector<Event>& events, std::map<RequestId, Outcome>& outcomes) {
  for (const Event& event : events) {
    Outcome& outcome = outcomes[event.request];
    EXPECT_EQ(outcome.num_finishes, 0) << "nothing comes behind the end";
    if (event.kind == Event::Kind::kAdmitted) outcome.num_cached_tokens = event.num_cached_tokens;
    if (event.kind == Event::Kind::kToken) {
      outcome.tokens.push_back(event.token.id);
      outcome.chosen_logprobs.push_back(event.token.logprob);
      for (const auto& top : event.token.top) outcome.logprobs.push_back(top.logprob);
    }
    if (event.kind != Event::Kind::kFinished) continue;
    outcome.reason = event.finish_reason;
    outcome.stop_token = event.stop_token;
    outcome.status = event.status;
    ++outcome.num_finishes;
  }
}

inline std::map<RequestId, Outcome> RunToEnd(Engine& engine) {
  std::map<RequestId, Outcome> outcomes;
  while (!engine.idle()) Collect(engine.Step(), outcomes);
  return outcomes;
}

// Runs a mix, some of it submitted while the rest runs. Then runs every conversation once more with a token
// behind it, which shows its kept state. The odd outcomes are those of the second run.
inline std::vector<Outcome> RunMix(Engine& engine, std::mt19937& random,
                                   const std::function<Request(std::mt19937&)>& next_request,
                                   EngineStats* stats) {
  std::map<RequestId, Outcome> outcomes;
  std::vector<RequestId> ids;
  std::vector<std::vector<int32_t>> prompts;
  for (int group = 0; group < 3; ++group) {
    for (size_t i = 0; i < 1 + random() % 4; ++i) {
      Request request = next_request(random);
      prompts.push_back(request.prompt);
      ids.push_back(*engine.Submit(std::move(request)));
    }
    for (size_t i = random() % 12; i > 0 && !engine.idle(); --i) Collect(engine.Step(), outcomes);
  }
  while (!engine.idle()) Collect(engine.Step(), outcomes);
  *stats = engine.stats();
  std::vector<Outcome> all;
  for (size_t i = 0; i < ids.size(); ++i) {
    Outcome& outcome = outcomes.at(ids[i]);
    outcome.prompt = prompts[i];
    Request again;
    again.prompt = prompts[i];
    again.prompt.insert(again.prompt.end(), outcome.tokens.begin(), outcome.tokens.end());
    again.prompt.push_back(1);
    again.max_tokens = 2;
    again.num_logprobs = 20;
    const RequestId id = *engine.Submit(std::move(again));
    all.push_back(std::move(outcome));
    all.push_back(std::move(RunToEnd(engine)[id]));
  }
  return all;
}

// Outcomes of two runs of one mix.
inline void ExpectSame(const std::vector<Outcome>& got, const std::vector<Outcome>& want, uint32_t seed) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "mix " << seed << ", " << i);
    EXPECT_EQ(got[i].tokens, want[i].tokens);
    EXPECT_EQ(got[i].reason, want[i].reason);
    EXPECT_EQ(got[i].stop_token, want[i].stop_token);
    EXPECT_EQ(got[i].chosen_logprobs, want[i].chosen_logprobs);
    EXPECT_EQ(got[i].logprobs, want[i].logprobs);
    EXPECT_EQ(got[i].num_finishes, 1);
    // Requests that follow up a conversation: as much of it was kept.
    if (i % 2 == 1) {
      EXPECT_EQ(got[i].num_cached_tokens, want[i].num_cached_tokens);
    }
  }
}

}  // namespace dsv4::engine
