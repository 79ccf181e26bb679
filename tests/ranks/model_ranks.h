// A golden or the small model on several ranks, each a thread of this process with a backend of its own.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "comm/ranks_testing.h"
#include "model/model.h"
#include "tests/golden/model_runs.h"

namespace dsv4::testing {

struct RanksRun {
  std::string directory;
  model::ModelOptions options;
  std::string backend = "reference";
  int num_ranks = 1;
  std::string placement = "auto";
};

// Loads the model on all ranks, calls work(model) on rank 0 while the others follow, and expects a clean end of all.
inline void RunModel(const RanksRun& run, const std::function<void(model::Model&)>& work) {
  if (run.num_ranks == 1) {
    auto model = model::Model::Load(run.directory, MakeGoldenBackend(run.backend, 1), run.options);
    ASSERT_TRUE(model.has_value()) << model.error().ToString();
    work(**model);
    return;
  }
  comm::testing::RunRanks(run.num_ranks, [&](comm::Communicator& group) {
    model::ModelOptions options = run.options;
    // The group outlives the model here.
    options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
    options.placement = model::ParsePlacement(run.placement, run.num_ranks).value();
    auto model = model::Model::Load(run.directory, MakeGoldenBackend(run.backend, 1), options);
    ASSERT_TRUE(model.has_value()) << model.error().ToString();
    if (group.rank() == 0) {
      work(**model);
    } else {
      const dsv4::Status end = (*model)->Follow();
      EXPECT_TRUE(end.ok()) << end.ToString();
    }
  });
}

}  // namespace dsv4::testing
