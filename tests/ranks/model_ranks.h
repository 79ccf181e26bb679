// A golden or the small model on several ranks, each a thread of this process with a backend of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/ranks_testing.h"
#include "io/checkpoint.h"
#include "model/runtime/model.h"
#include "tests/golden/model_runs.h"

namespace dsv4::testing {

struct RanksRun {
  std::string directory;
  model::ModelOptions options;
  std::string backend = "reference";
  int num_ranks = 1;
  std::string placement = "auto";
  comm::testing::Network network = comm::testing::Network::kSharedMemory;
  // Seeds of mistakes: may change a rank's ops, and stand between a rank and its group.
  std::function<void(int rank, ops::OpTable&)> edit_ops;
  // Tokens from which ranks that cut sums divide the streams; 0: the backend's.
  int64_t min_stream_tokens = 0;
  std::function<std::shared_ptr<comm::Communicator>(comm::Communicator&)> wrap_group;
  // The configuration in place of config.json's; may be empty.
  std::function<model::ModelConfig()> config = {};
};

inline Result<std::unique_ptr<model::Model>> LoadRank(const RanksRun& run, const ops::Backend& backend,
                                                      const model::ModelOptions& options) {
  if (!run.config) return model::Model::Load(run.directory, backend, options);
  DSV4_ASSIGN_OR_RETURN(auto checkpoint, io::Checkpoint::Open(run.directory));
  return model::Model::FromCheckpoint(run.config(), std::move(checkpoint), backend, options);
}

// The largest difference as a part of the largest number of `want`; infinity for another size or a NaN.
inline float RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return std::numeric_limits<float>::infinity();
  float largest = 0;
  float worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i])) return std::numeric_limits<float>::infinity();
    largest = std::max(largest, std::abs(want[i]));
    worst = std::max(worst, std::abs(got[i] - want[i]));
  }
  return worst / largest;
}
// The most that placements that cut sums may differ by in plain numerics: a hundred roundings to fp32, of
// some ten a layer. Seen: 4e-7.
inline constexpr float kCutSums = 1e-5F;

// A context with another memory.
class MemoryContext final : public ops::OpContext {
 public:
  MemoryContext(std::shared_ptr<ops::OpContext> inner, Memory& memory)
      : inner_(std::move(inner)), memory_(memory) {}
  Memory& memory() override { return memory_; }
  ThreadPool& threads() override { return inner_->threads(); }
  Stream stream() override { return nullptr; }

 private:
  std::shared_ptr<ops::OpContext> inner_;
  Memory& memory_;
};

// Loads the model on all ranks, calls work(model) on rank 0 while the others follow, and expects a clean end
// of all.
inline void RunModel(const RanksRun& run, const std::function<void(model::Model&)>& work) {
  if (run.num_ranks == 1) {
    auto model = LoadRank(run, MakeGoldenBackend(run.backend, 1), run.options);
    ASSERT_TRUE(model.has_value()) << model.error().ToString();
    work(**model);
    return;
  }
  comm::testing::RunRanks(
      run.num_ranks,
      [&](comm::Communicator& group) {
        model::ModelOptions options = run.options;
        // The group outlives the model here.
        options.group = run.wrap_group
                            ? run.wrap_group(group)
                            : std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
        options.placement = model::ParsePlacement(run.placement, run.num_ranks).value();
        ops::Backend backend = MakeGoldenBackend(run.backend, 1);
        if (run.edit_ops) run.edit_ops(group.rank(), backend.table);
        if (run.min_stream_tokens > 0) backend.policy.min_stream_tokens = run.min_stream_tokens;
        auto model = LoadRank(run, backend, options);
        ASSERT_TRUE(model.has_value()) << model.error().ToString();
        if (group.rank() == 0) {
          work(**model);
        } else {
          const dsv4::Status end = (*model)->Follow();
          EXPECT_TRUE(end.ok()) << end.ToString();
        }
      },
      std::chrono::minutes(10), run.network);
}

}  // namespace dsv4::testing
