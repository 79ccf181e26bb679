// Bytes of a sequence that each rank keeps, as rank 0 counts them for limits.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/engine.h"
#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

// Tokens that are counted without a forward pass.
constexpr int64_t kLong = 700;
// Tokens that the model reads: enough for entries of every layer that compresses, and no more, for all ranks
// compute it side by side.
constexpr int64_t kRead = 130;

int64_t MostOf(const std::vector<kv::CacheLayout>& layouts, int64_t length) {
  int64_t most = 0;
  for (const kv::CacheLayout& layout : layouts) most = std::max(most, kv::StateBytes(layout, length));
  return most;
}

// The store of states kept for reuse counts one of kRead tokens so, and has no room for two where a rank has
// none.
void ExpectStoreCounts(model::Model& model, int64_t num_bytes) {
  engine::Engine engine(model, {.prefix_cache_bytes = 2 * num_bytes - 1}, {});
  for (int32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(engine.Submit({.prompt = std::vector<int32_t>(kRead, 100 + i)}).has_value());
    while (!engine.idle()) engine.Step();
    const engine::EngineStats stats = engine.stats();
    EXPECT_EQ(stats.cache_states, 1) << i;
    EXPECT_EQ(stats.cache_bytes, num_bytes) << i;
    EXPECT_EQ(stats.cache_evictions, i);
  }
}

// Every rank's own layout, and what rank 0 says of them all.
void ExpectFullestRank(const char* placement, int num_ranks, bool mtp) {
  SCOPED_TRACE(std::string(placement) + (mtp ? ", mtp" : ""));
  std::vector<kv::CacheLayout> layouts(static_cast<size_t>(num_ranks));
  comm::testing::RunRanks(num_ranks, [&](comm::Communicator& group) {
    model::ModelOptions options{.mtp = mtp};
    options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
    options.placement = model::ParsePlacement(placement, num_ranks).value();
    auto loaded = model::Model::Load("models/tiny", MakeGoldenBackend(GoldenBackends().back(), 1), options);
    ASSERT_TRUE(loaded.has_value()) << loaded.error().ToString();
    model::Model& model = **loaded;
    layouts[static_cast<size_t>(group.rank())] = model.cache_layout();
    ASSERT_TRUE(group.Barrier().ok());
    if (group.rank() > 0) {
      EXPECT_TRUE(model.Follow().ok());
      return;
    }
    EXPECT_EQ(model.stage_layouts().size(), static_cast<size_t>(options.placement.num_stages));
    for (int64_t length = 0; length <= kLong && !::testing::Test::HasFailure(); ++length)
      EXPECT_EQ(model.MostStateBytes(length), MostOf(layouts, length)) << length;
    // A limit is one of every rank's memory.
    const int64_t budget = MostOf(layouts, kLong);
    const engine::Engine engine(model, {.max_state_bytes = budget}, {});
    EXPECT_LE(MostOf(layouts, engine.context_length()), budget);
    EXPECT_GT(MostOf(layouts, engine.context_length() + 1), budget);
    const engine::EngineStats stats = engine.stats();
    EXPECT_EQ(stats.fixed_state_bytes, MostOf(layouts, 0));
    ExpectStoreCounts(model, MostOf(layouts, kRead));
  });
  // Or this test would see nothing.
  const bool stages = std::string(placement).starts_with("pipeline");
  for (const int64_t length : {kRead, kLong})
    EXPECT_EQ(MostOf(layouts, length) > kv::StateBytes(layouts[0], length), stages);
  EXPECT_GT(MostOf(layouts, kRead), MostOf(layouts, 4));
  EXPECT_GT(MostOf(layouts, 4), MostOf(layouts, 0));
}

TEST(StateBytes, ThoseOfTheFullestRankCount) {
  ExpectFullestRank("pipeline", 2, false);
  ExpectFullestRank("pipeline", 3, false);
  ExpectFullestRank("pipeline=2,expert,entries", 4, false);
  ExpectFullestRank("pipeline", 2, true);
  ExpectFullestRank("tensor", 3, false);
}

}  // namespace
}  // namespace dsv4::testing
