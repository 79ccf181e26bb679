// An engine leaves the rows of a prompt's front out behind the last layer that makes entries
// (model/graph/pass_tail.h), over steps, branches and kept states. It gives what an engine gives that leaves
// none out: one with an observer, for which all rows are wanted.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/json.h"
#include "engine/engine.h"
#include "tests/engine/outcomes.h"

namespace dsv4::engine {
namespace {

class Blind final : public model::Observer {
 public:
  void OnTensor(int, std::string_view, const TensorView&) override {}
};

// Four layers behind the last source, or three.
class Tail : public ::testing::TestWithParam<std::string> {
 protected:
  Tail()
      : backend_(GetParam() == "cpu" ? *backend::MakeCpuBackend({.num_threads = 1})
                                     : backend::MakeReferenceBackend(1)) {
    auto model = model::Model::Load("tests/golden/v41/shared", backend_, {.max_rewind_tokens = 8});
    EXPECT_TRUE(model.has_value()) << model.error().ToString();
    model_ = std::move(*model);
  }

  std::vector<int32_t> RandomTokens(size_t count, std::mt19937& random) const {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(random() % static_cast<uint64_t>(model_->config().vocab_size));
    return tokens;
  }

  // Prompts of two families with common beginnings, at some of which their states are kept.
  Request RandomRequest(std::mt19937& random) const {
    Request request;
    std::mt19937 family(random() % 2);
    request.prompt = RandomTokens(100 + random() % 400, family);
    const std::vector<int32_t> rest = RandomTokens(1 + random() % 200, random);
    if (random() % 2 == 0) request.branch_points.push_back(std::ssize(request.prompt));
    request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
    request.max_tokens = random() % 6;
    request.sampling.seed = random();
    request.num_logprobs = random() % 3 == 0 ? 5 : -1;
    return request;
  }

  std::vector<Outcome> Run(uint32_t seed, EngineOptions options, EngineStats* stats) {
    std::mt19937 random(seed);
    options.prefix_cache_bytes = int64_t{1} << 30;
    options.max_step_tokens = 16 + static_cast<int64_t>(seed % 3) * 50;
    Engine engine(*model_, options, {});
    return RunMix(
        engine, random, [&](std::mt19937& draws) { return RandomRequest(draws); }, stats);
  }

  ops::Backend backend_;
  std::unique_ptr<model::Model> model_;
};

TEST_P(Tail, GivesWhatAnEngineGivesThatRunsAllRows) {
  Blind blind;
  int64_t num_cached = 0;
  int64_t num_cached_of_all = 0;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    EngineStats stats;
    const model::LayerRows before = model_->layer_rows();
    const std::vector<Outcome> want = Run(seed, {.observer = &blind}, &stats);
    const model::LayerRows all = model_->layer_rows();
    EXPECT_EQ(all.run - before.run, all.all - before.all) << "an observer wants all rows";
    for (const bool ahead : {false, true}) {
      const model::LayerRows begin = model_->layer_rows();
      const std::vector<Outcome> got = Run(seed, {.async_scheduling = ahead}, &stats);
      const model::LayerRows end = model_->layer_rows();
      EXPECT_LT(static_cast<double>(end.run - begin.run), 0.95 * static_cast<double>(end.all - begin.all));
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].tokens, want[i].tokens) << seed << ", " << i;
        EXPECT_EQ(got[i].chosen_logprobs, want[i].chosen_logprobs) << seed << ", " << i;
        EXPECT_EQ(got[i].logprobs, want[i].logprobs) << seed << ", " << i;
        num_cached += got[i].num_cached_tokens;
        num_cached_of_all += want[i].num_cached_tokens;
      }
    }
  }
  // A state in the midst of a prompt that another request waits for may not be whole.
  EXPECT_GT(num_cached, num_cached_of_all * 9 / 10);
}

// A prompt that is cancelled in the middle leaves no state. No checkpoint comes where it would cost more than
// it saves.
TEST_P(Tail, HalfAPromptIsNotKept) {
  std::mt19937 random(1);
  Engine engine(*model_,
                {.max_step_tokens = 50, .prefix_cache_bytes = int64_t{1} << 30, .checkpoint_tokens = 64}, {});
  Request request;
  request.prompt = RandomTokens(600, random);
  request.max_tokens = 1;
  const std::vector<int32_t> prompt = request.prompt;
  const RequestId id = *engine.Submit(std::move(request));
  for (int i = 0; i < 5; ++i) engine.Step();
  engine.Cancel(id);
  RunToEnd(engine);
  EXPECT_EQ(engine.stats().cache_states, 0);
  for (const int64_t cached : {int64_t{0}, int64_t{599}}) {
    Request again;
    again.prompt = prompt;
    again.max_tokens = 1;
    const RequestId next = *engine.Submit(std::move(again));
    EXPECT_EQ(RunToEnd(engine)[next].num_cached_tokens, cached);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Tail, ::testing::Values("reference", "cpu"));

}  // namespace
}  // namespace dsv4::engine
