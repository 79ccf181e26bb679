// Models of the release's shape without numbers, for tests and benchmarks of what the host does
// (null_runtime.cc).
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/groups/peer_group.h"
#include "base/check.h"
#include "comm/ranks_testing.h"
#include "model/arch/architecture.h"
#include "model/runtime/model.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::testing {

template <typename T>
T Take(Result<T> result) {
  DSV4_CHECK(result.has_value()) << result.error().ToString();
  return std::move(*result);
}

// A model of four layers, two of the window alone and one of each ratio, and the drafter that the options
// load.
inline std::unique_ptr<model::Model> MakeFlash(const ops::Backend& backend,
                                               model::ModelOptions model_options = {}, int num_layers = 4) {
  model::SyntheticOptions options = Take(model::ParseSyntheticName("synthetic:flash,nvfp4-experts"));
  options.num_layers = num_layers;
  options.mtp = model_options.mtp;
  options.dspark = model_options.dspark;
  model_options.sizes_only = true;
  auto config = Take(model::ParseModelConfig(Take(model::SyntheticConfig(options)), "flash"));
  return Take(model::Model::FromCheckpoint(
      std::move(config), Take(model::MakeSyntheticCheckpoint("flash", options, 1)), backend, model_options));
}

// The model on four ranks, each a thread with a device. Rank 0, whose backend is made with `cuda_options`,
// calls work(backend, model), while the others follow.
constexpr int kRanks = 4;
inline void RunFlashOnRanks(const char* placement, const model::ModelOptions& model_options,
                            const std::function<void(const ops::Backend&, model::Model&)>& work,
                            const backend::CudaOptions& cuda_options = {}) {
  comm::testing::RunRanks(kRanks, [&](comm::Communicator& group) {
    backend::CudaOptions own = group.rank() == 0 ? cuda_options : backend::CudaOptions();
    own.device = group.rank();
    const ops::Backend backend = Take(backend::MakeCudaBackend(own));
    model::ModelOptions options = model_options;
    options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
    options.placement = Take(model::ParsePlacement(placement, kRanks));
    options.make_device_group = [&](comm::Communicator& hosts, model::DeviceGroupOf) {
      return backend::cuda::JoinPeers(
          hosts, std::static_pointer_cast<backend::cuda::CudaContext>(backend.context), {});
    };
    const auto model = MakeFlash(backend, options);
    if (group.rank() == 0) {
      work(backend, *model);
    } else {
      const Status end = model->Follow();
      DSV4_CHECK(end.ok()) << end.ToString();
    }
  });
}

// Gives a sequence so many tokens, whose rows are whatever the memory holds.
inline void Lengthen(kv::SequenceState& state, int64_t length) {
  while (state.length() < length) {
    const Status begun =
        state.BeginAppend(std::min(state.layout().max_chunk_tokens, length - state.length()));
    DSV4_CHECK(begun.ok()) << begun.ToString();
    state.CommitAppend();
  }
}

}  // namespace dsv4::testing
