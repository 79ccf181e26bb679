// What the host makes of a step where there is no device (imagined_runtime.cc): which of its lists of launches come again.
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/check.h"
#include "model/model.h"
#include "model/synthetic.h"

namespace dsv4::testing {
namespace {

template <typename T>
T Take(Result<T> result) {
  DSV4_CHECK(result.has_value()) << result.error().ToString();
  return std::move(*result);
}

// The release's shape, without numbers: two layers of the window alone, one of each ratio.
std::unique_ptr<model::Model> MakeFlash(const ops::Backend& backend) {
  model::SyntheticOptions options = Take(model::ParseSyntheticName("synthetic:flash,nvfp4-experts"));
  options.num_layers = 4;
  auto config = Take(model::ParseModelConfig(Take(model::SyntheticConfig(options)), "flash"));
  return Take(model::Model::FromCheckpoint(std::move(config),
                                           Take(model::MakeSyntheticCheckpoint("flash", options, 1)), backend,
                                           {.sizes_only = true}));
}

// A generation of 600 tokens from nothing: its lists are those of a step that completes no entry, one of ratio 4 or one of each
// ratio, before and after there are more keys than a cluster's blocks take in one tile each; a list is replayed from the third time
// on. The second sequence, elsewhere in memory, replays what the first has made.
TEST(CudaLaunches, AGenerationReplaysNearlyAllOfItsLists) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto model = MakeFlash(backend);
  constexpr int kTokens = 600;
  std::vector<kv::SequenceState> sequences;
  for (const int64_t allowed : {24, 0}) {
    sequences.push_back(Take(model->NewSequence()));
    const backend::CudaCounters before = backend::CountersOf(backend);
    for (int32_t token = 0; token < kTokens; ++token) {
      const model::SequenceChunk chunk = {.state = &sequences.back(), .tokens = {&token, 1}};
      ASSERT_TRUE(model->Step({&chunk, 1}).has_value());
    }
    const backend::CudaCounters after = backend::CountersOf(backend);
    const int64_t lists = after.lists - before.lists;
    const int64_t replayed = after.replayed_lists - before.replayed_lists;
    EXPECT_GE(lists, 2 * kTokens);
    EXPECT_LE(lists - replayed, allowed) << "of " << lists << " lists";
  }
}

}  // namespace
}  // namespace dsv4::testing
