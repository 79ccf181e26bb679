// Group of a command's ranks: joined or started, and the loop of followers.
#include "apps/shared/rank_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/shared/expert_flags.h"
#include "apps/shared/model_source.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_variables.h"
#include "backend/cuda/gpu_survey.h"
#include "backend/cuda/groups/cuda_group.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/bootstrap.h"
#include "comm/machine.h"
#include "model/checkpoint/stages.h"

namespace dsv4::apps {

namespace {

// Each rank may name its own split, but all or none measure.
std::string ExpertsAgreed(const ModelFlags& flags) {
  if (flags.experts.empty()) return "all experts resident";
  return flags.experts == kExpertsByRates ? "--experts auto" : "--experts with a split";
}

// One rank of each machine says how it reaches the others.
void WarnOfNetwork(const ModelFlags& flags, int rank, int size) {
  if (flags.ranks_here.size() == static_cast<size_t>(size) || flags.ranks_here.front() != rank) return;
  const char* const disabled = std::getenv("NCCL_IB_DISABLE");
  const bool without_rdma = disabled != nullptr && std::string_view(disabled) != "0";
  const std::string text = comm::SlowNetwork(flags.backend == "cuda", without_rdma, comm::RdmaDevices());
  if (!text.empty()) LogWarning(fmt::format("{}: {}", comm::HostName(), text));
}

// Placements that the model refuses, before a rank is started. What is wrong with the model itself is for its load to say.
Status CheckPlacementOf(const ModelFlags& flags) {
  const Result<ModelSource> source = ModelSource::Find(flags);
  if (!source) return {};
  const Result<model::ModelConfig> config = source->Config();
  if (!config) return {};
  return model::CheckPlacement(*config, flags.placed, flags.max_layers);
}

}  // namespace

Result<std::unique_ptr<RankGroup>> RankGroup::Enter(ModelFlags& flags, std::vector<std::string> arguments,
                                                    const std::string& version) {
  std::unique_ptr<RankGroup> ranks(new RankGroup());
  DSV4_ASSIGN_OR_RETURN(std::optional<comm::RankEnvironment> environment, comm::ReadRankEnvironment());
  if (environment && flags.num_ranks > 0 && flags.num_ranks != environment->size) {
    return Error(InvalidArgument(
        fmt::format("--ranks: got {}, WORLD_SIZE is {}", flags.num_ranks, environment->size)));
  }
  const int size = environment ? environment->size : std::max(flags.num_ranks, 1);
  if (!flags.placed_for.empty() && !flags.experts.empty()) {
    return Error(InvalidArgument(fmt::format(
        "--for {}: got --experts too, whose ranks have whole layers, as pipeline", flags.placed_for)));
  }
  DSV4_ASSIGN_OR_RETURN(flags.placed, model::ParsePlacement(PlacementOf(flags), size));
  if (size == 1) return ranks;
  DSV4_TRY(CheckExpertsOfRanks(flags));
  DSV4_TRY(CheckPlacementOf(flags));
  size_t shared_devices = 0;  // Devices that ranks take in turn; 0: each its own.
  if (flags.backend == "cuda") {
    if (backend::MachineCodeOfBuild().empty()) {
      return Error(InvalidArgument("ranks on GPUs (--gpus, --backend cuda): " + backend::WhyNoGpu({})));
    }
    const size_t wanted = static_cast<size_t>(environment ? environment->local_rank + 1 : size);
    const size_t devices = backend::CudaDevices().size();
    if (devices < wanted && backend::DevicesAreShared()) shared_devices = devices;
    if (devices < wanted && shared_devices == 0) {
      return Error(InvalidArgument(fmt::format("--backend cuda: {} on this machine, which shows {}{}",
                                               Counted(wanted, "rank"), Counted(devices, "device"),
                                               environment ? " (LOCAL_RANK counts a machine's ranks)" : "")));
    }
  }

  comm::JoinOptions options{
      .timeout = std::chrono::milliseconds(static_cast<int64_t>(flags.rank_timeout_seconds * 1000)),
      .agreement =
          fmt::format("dsv4 {}, --backend {}, --numerics {}, --cache-rows {}, --placement {}, {}, model {}{}",
                      version, flags.backend, flags.numerics, flags.cache_rows, model::ToString(flags.placed),
                      ExpertsAgreed(flags), flags.model, flags.weights),
      .always_tcp = flags.rank_network == "tcp",
      .still_wanted = {}};
  std::optional<comm::RankListener> listener;
  if (!environment) {
    DSV4_ASSIGN_OR_RETURN(listener, comm::RankListener::Open("127.0.0.1", 0));
    environment = comm::RankEnvironment{.rank = 0, .size = size, .port = listener->port()};
    DSV4_ASSIGN_OR_RETURN(ranks->started_, comm::LocalRanks::Start(size, listener->port(), arguments));
    options.still_wanted = [&] { return ranks->started_->Check(); };
  }
  DSV4_ASSIGN_OR_RETURN(ranks->group_, comm::JoinRanks(*environment, std::move(listener), options));
  DSV4_ASSIGN_OR_RETURN(flags.ranks_here, comm::RanksHere(*ranks->group_));
  WarnOfNetwork(flags, ranks->group_->rank(), size);
  flags.group = ranks->group_;
  flags.device = environment->local_rank;
  if (shared_devices > 0) {
    flags.device %= static_cast<int>(shared_devices);
    LogWarning("DSV4_CUDA_SHARE_DEVICES: ranks take this machine's devices in turn, and each other's time");
  }
  return ranks;
}

RankGroup::~RankGroup() {
  if (group_ != nullptr) group_->Fail(Cancelled("has ended"));
}

std::string PlacementOf(const ModelFlags& flags) {
  if (flags.placement != "auto") return flags.placement;
  // Layers with experts that are not on a device are on one rank.
  if (!flags.experts.empty()) return "pipeline";
  const bool said = !flags.placed_for.empty();
  const std::string& purpose = said || flags.backend != "cuda" ? flags.placed_for : flags.usually_for;
  return purpose == "latency" ? "tensor" : purpose == "throughput" ? "expert,sequences" : "expert";
}

std::string RanksText(const ModelFlags& flags) {
  if (flags.group == nullptr) return "";
  return fmt::format(", {} in {}", Counted(flags.group->size(), "rank"), model::ToString(flags.placed));
}

int RunFollower(const ModelFlags& flags) {
  // Signals from a terminal or a supervisor to all ranks are for rank 0 to answer; we end when it does.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) (void)std::signal(signal, SIG_IGN);
  const auto follow = [&]() -> Status {
    DSV4_ASSIGN_OR_RETURN_STATUS(const ModelSource source, ModelSource::Find(flags));
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::unique_ptr<model::Model> model, LoadModel(flags, source, {}));
    return model->Follow();
  };
  const Status status = follow();
  if (status.ok()) return kExitOk;
  LogInfo(fmt::format("rank {}: {}", flags.group->rank(), status.message()));
  return kExitRunFailed;
}

}  // namespace dsv4::apps
