// Model from flags: backend, options, drafter, loading and exit codes.
#include "apps/shared/model_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "apps/shared/disk_tier.h"
#include "apps/shared/expert_flags.h"
#include "apps/shared/expert_profile.h"
#include "apps/shared/model_source.h"
#include "apps/shared/numa_placement.h"
#include "apps/terminal/printable.h"
#include "apps/terminal/readable.h"
#include "apps/tiers/stage_trial.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/groups/cuda_group.h"
#include "backend/reference/reference_backend.h"
#include "base/error_output.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "comm/collectives.h"
#include "comm/null_group.h"
#include "comm/observed_group.h"

namespace dsv4::apps {
namespace {

// This rank's part; what it counts is not exchanged.
model::ModelOptions PlannedOptions(model::ModelOptions options) {
  if (options.group == nullptr) return options;
  options.group =
      comm::ImagineGroup(options.group->rank(), options.group->size(), options.placement.num_shards);
  return options;
}

// Before anything is copied to a device: does it fit? Host memory needs no such check, since weights stay in
// their file.
Status CheckMemory(const ModelFlags& flags, const model::ModelConfig& config,
                   const std::shared_ptr<const io::Checkpoint>& checkpoint,
                   const model::ModelOptions& options, const model::MemoryRequest& request,
                   const model::DeviceRoom& device, int64_t numbers, bool synthetic, RoomLeft* left) {
  const model::ModelOptions planned = PlannedOptions(options);
  DSV4_ASSIGN_OR_RETURN_STATUS(const model::MemoryPlan plan,
                               model::PlanMemory(config, checkpoint, planned, request));
  LogInfo("memory plan\n" + model::MemoryTable(plan, device));
  DSV4_RETURN_IF_ERROR(CheckHostMemory(flags, plan, numbers, synthetic));
  if (options.group == nullptr && left != nullptr) {
    if (TradesSlots(flags)) left->trade = TradeOf(plan, options.experts, device, options.max_chunk_tokens);
    left->states = device.free - device.reserved - (plan.total() - plan.num_sequences * plan.sequence);
    left->context = model::LongestContext(config, planned, WithLeastSlots(plan, left->trade),
                                          device.free - device.reserved);
  }
  return model::CheckRoom(config, checkpoint, planned, plan, device);
}

}  // namespace

namespace {

// Does nothing until a model is found to be larger than memory.
std::function<bool(io::ChosenReads::Ranges)> AskerOf(const ModelFlags& flags) {
  return [reads = flags.chosen_reads](io::ChosenReads::Ranges ranges) {
    if (!ranges.empty()) reads->Ask(ranges);
    return reads->started();
  };
}

}  // namespace

Status CheckModelFlags(const ModelFlags& flags) {
  DSV4_RETURN_IF_ERROR(CheckExpertFlags(flags));
  const bool split =
      !flags.experts.empty() && flags.experts != kExpertsOnDisk && flags.experts != kExpertsByRates;
  if (!split && flags.max_layers == 0) return {};
  ModelFlags whole = flags;
  whole.max_layers = 0;
  const Result<ModelSource> source = ModelSource::Find(whole);
  if (!source) return {};
  const Result<model::ModelConfig> config = source->Config();
  if (!config) return {};
  if (flags.max_layers > config->num_hidden_layers) {
    return InvalidArgument(fmt::format("--max-layers: got {}, wanted 1 to {}, the model's, or 0 for all",
                                       flags.max_layers, config->num_hidden_layers));
  }
  if (!split) return {};
  const int64_t num_layers = flags.max_layers > 0 ? flags.max_layers : config->num_hidden_layers;
  const Result<model::ExpertSplit> parsed =
      model::ParseExpertSplit(flags.experts, config->n_routed_experts, num_layers);
  return parsed ? Status() : parsed.error().WithContext("--experts");
}

int NumThreads(const ModelFlags& flags) {
  if (flags.num_threads > 0) return flags.num_threads;
  return std::max(
      1, static_cast<int>(std::thread::hardware_concurrency()) / static_cast<int>(flags.ranks_here.size()));
}

int64_t PassTokens(const ModelFlags& flags) {
  if (flags.pass_tokens > 0) return flags.pass_tokens;
  return flags.backend == "cuda" ? 8192 : model::ModelOptions{}.max_chunk_tokens;
}

Result<ops::Backend> MakeBackend(const ModelFlags& flags) {
  const int num_threads = NumThreads(flags);
  DSV4_TRY(CheckExpertFlags(flags));
  if (flags.backend == "cuda") {
    backend::CudaOptions options{.device = flags.device, .explain = flags.explain};
    if (!flags.experts.empty()) {
      DSV4_ASSIGN_OR_RETURN(options.host, MakeExpertBackend(flags));
    }
    return backend::MakeCudaBackend(options);
  }
  DSV4_ASSIGN_OR_RETURN(const auto cpus_of_nodes, PlaceOnNodes(flags));
  if (flags.backend == "reference") return backend::MakeReferenceBackend(num_threads);
  return backend::MakeCpuBackend(
      {.num_threads = num_threads, .isa = {}, .cpus_of_nodes = cpus_of_nodes, .will_read = AskerOf(flags)});
}

Result<ops::Backend> MakeExpertBackend(const ModelFlags& flags) {
  // Threads spin through the device's part of a layer.
  constexpr std::chrono::milliseconds kSpin(2);
  const int num_threads = flags.num_threads > 0 ? flags.num_threads : std::max(1, NumThreads(flags) - 1);
  // Before memory is pinned: pages of cached experts are placed so too.
  DSV4_ASSIGN_OR_RETURN(const auto cpus_of_nodes, PlaceOnNodes(flags));
  return backend::MakeCpuBackend({.num_threads = num_threads,
                                  .cpus_of_nodes = cpus_of_nodes,
                                  .spin = kSpin,
                                  .will_read = AskerOf(flags)});
}

model::CacheRows CacheRowsOf(const ModelFlags& flags) {
  const bool can = flags.backend != "cuda" || backend::kCudaPacksRows;
  return can && flags.cache_rows == "packed" ? model::CacheRows::kPacked : model::CacheRows::kWide;
}

model::DraftHead DraftHeadOf(const ModelFlags& flags) {
  if (flags.draft_head == "auto")
    return flags.backend == "cuda" ? model::DraftHead::kNvFp4 : model::DraftHead::kStored;
  return model::ParseDraftHead(flags.draft_head).value_or(model::DraftHead::kStored);
}

model::ModelOptions MakeModelOptions(const ModelFlags& flags) {
  model::ModelOptions options;
  options.numerics = flags.numerics == "plain" ? model::Numerics::kPlain : model::Numerics::kRelease;
  options.cache_rows = CacheRowsOf(flags);
  options.max_layers = flags.max_layers;
  options.mtp = flags.mtp;
  options.hash_weights = flags.hash_weights;
  options.draft_head = DraftHeadOf(flags);
  options.dspark = flags.dspark;
  options.max_chunk_tokens = PassTokens(flags);
  options.clamp_shared_expert = flags.shared_expert_clamp != "off";
  return options;
}

namespace {

// Room for which sequences there is to be is rank 0's to say, as is which drafter.
Status AgreeOnRequest(comm::Communicator& group, model::MemoryRequest& request) {
  std::vector<std::byte> bytes(sizeof(request));
  std::memcpy(bytes.data(), &request, sizeof(request));
  DSV4_RETURN_IF_ERROR(comm::BroadcastBytes(group, bytes, 0, comm::Wait::kForever));
  if (bytes.size() != sizeof(request)) return DataLoss("rank 0 asks for memory in words of another version");
  std::memcpy(&request, bytes.data(), sizeof(request));
  return {};
}

// Which drafter the model is to have, and with which head, is rank 0's to say: the others run no command of
// their own.
Status AgreeOnDrafter(comm::Communicator& group, ModelFlags& flags) {
  const auto bytes_of = [](bool flag) { return flag ? std::byte{1} : std::byte{0}; };
  std::vector<std::byte> wanted = {bytes_of(flags.mtp), bytes_of(flags.dspark),
                                   bytes_of(flags.drafter_if_it_fits)};
  for (const char c : flags.draft_head) wanted.push_back(static_cast<std::byte>(c));
  DSV4_RETURN_IF_ERROR(comm::BroadcastBytes(group, wanted, 0, comm::Wait::kForever));
  if (wanted.size() < 3) return DataLoss("rank 0 says of no drafter that this version knows");
  flags.mtp = wanted[0] != std::byte{0};
  flags.dspark = wanted[1] != std::byte{0};
  flags.drafter_if_it_fits = wanted[2] != std::byte{0};
  flags.draft_head.clear();
  for (size_t i = 3; i < wanted.size(); ++i) flags.draft_head.push_back(static_cast<char>(wanted[i]));
  return {};
}

// Whether a device of the group has no room for its part of a drafter, which then none has.
Result<bool> NoRoomOnAny(comm::Communicator& group, bool mine) {
  DSV4_TRY(group.Barrier(comm::Wait::kForever));
  const int32_t none = mine ? 1 : 0;
  DSV4_ASSIGN_OR_RETURN(const auto ranks, comm::GatherLists(group, std::span(&none, 1)));
  return std::ranges::any_of(ranks, [](const auto& of_rank) { return of_rank == std::vector{1}; });
}

// CheckMemory; where a drafter that need not be there has no room the options are without one.
Status FitDrafter(const ModelFlags& flags, const model::ModelConfig& config,
                  const std::shared_ptr<const io::Checkpoint>& checkpoint, model::ModelOptions& options,
                  const model::MemoryRequest& memory, const model::DeviceRoom& room, bool synthetic,
                  RoomLeft* left) {
  const int64_t numbers = NumbersOfLayer(
      *checkpoint, synthetic, options.max_layers > 0 ? options.max_layers : config.num_hidden_layers);
  Status fits = CheckMemory(flags, config, checkpoint, options, memory, room, numbers, synthetic, left);
  const bool may_do_without = (options.mtp || options.dspark) && flags.drafter_if_it_fits;
  bool does_without = may_do_without && fits.code() == StatusCode::kResourceExhausted;
  if (may_do_without && flags.group != nullptr) {
    DSV4_ASSIGN_OR_RETURN_STATUS(does_without, NoRoomOnAny(*flags.group, does_without));
  }
  if (!does_without) return fits;
  options.mtp = options.dspark = false;
  return CheckMemory(flags, config, checkpoint, options, memory, room, numbers, synthetic, left);
}

void LogLoaded(const ModelFlags& flags, const ModelSource& source, const model::Model& model,
               const std::string& backend_name, int64_t bytes_placed, double seconds) {
  const std::string layers = flags.max_layers == 0 ? Counted(model.num_layers(), "layer")
                             : source.synthetic()
                                 ? fmt::format("first {} (--max-layers)", Counted(flags.max_layers, "layer"))
                                 : fmt::format("first {} of {} (--max-layers)", flags.max_layers,
                                               Counted(model.config().num_hidden_layers, "layer"));
  std::string line = fmt::format("model {}: {}, backend {}, numerics {}", source.name(), layers, backend_name,
                                 flags.numerics);
  const model::RankPlace& place = model.place();
  if (flags.group != nullptr) {
    line +=
        fmt::format(", rank {} of {}: placement {}, layers {} to {}", place.rank, place.placement.num_ranks(),
                    model::ToString(place.placement), place.layers.begin, place.layers.end - 1);
  }
  const model::ExpertSplit& split = model.options().experts;
  if (!split.all_resident()) line += fmt::format(", experts of a layer {}", model::ToString(split));
  if (bytes_placed > 0) line += ", " + LoadSpeed(bytes_placed, seconds);
  // A truncated model answers differently, so the run says so even when logs are quiet.
  if (flags.max_layers > 0 && place.rank == 0) {
    LogWarning(line);
  } else {
    LogInfo(line);
  }
}

}  // namespace

Result<std::unique_ptr<model::Model>> LoadModel(const ModelFlags& flags, const ModelSource& source,
                                                const LoadCallback& progress,
                                                const model::MemoryRequest& memory) {
  DSV4_ASSIGN_OR_RETURN(const ops::Backend backend, MakeBackend(flags));
  return LoadModel(flags, source, backend, progress, memory);
}

Result<std::unique_ptr<model::Model>> LoadModel(const ModelFlags& given, const ModelSource& source,
                                                const ops::Backend& backend, const LoadCallback& progress,
                                                const model::MemoryRequest& request,
                                                const ops::Backend* wrapped, RoomLeft* left,
                                                std::optional<model::VerifiedSplit>* verified) {
  DSV4_ASSIGN_OR_RETURN(const model::ModelConfig config, source.Config());
  DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const io::Checkpoint> checkpoint, source.Checkpoint());
  if (left != nullptr) left->context = config.max_position_embeddings;
  ModelFlags flags = given;
  model::MemoryRequest memory = request;
  if (flags.group != nullptr) {
    DSV4_TRY(AgreeOnDrafter(*flags.group, flags));
    DSV4_TRY(AgreeOnRequest(*flags.group, memory));
  }
  model::ModelOptions options = MakeModelOptions(flags);
  // Random weights were made for the first layers only.
  if (source.synthetic()) options.max_layers = 0;
  int64_t bytes_placed = 0;
  options.progress = [&](const model::LoadProgress& so_far) {
    bytes_placed = so_far.bytes_placed;
    if (progress) progress(so_far);
    return Status();
  };
  DSV4_ASSIGN_OR_RETURN(options.token_classes, source.TokenClasses(config));
  options.group = flags.group;
  if (flags.group != nullptr && flags.exchange_hooks != nullptr)
    options.group = comm::Observe(flags.group, flags.exchange_hooks);
  options.placement = flags.placed;
  const ops::Backend& device = wrapped != nullptr ? *wrapped : backend;
  model::DeviceRoom room;
  model::SplitPlan plan;
  if (flags.backend == "cuda") {
    DSV4_ASSIGN_OR_RETURN(room, DeviceRoomOf(flags, backend.name));
    if (flags.group != nullptr && !flags.experts.empty()) {
      DSV4_ASSIGN_OR_RETURN(flags.host_share, ShareOfHost(flags, config, checkpoint, options));
      // All measure at once, as they will read the host's memory at once.
      DSV4_TRY(flags.group->Barrier(comm::Wait::kForever));
    }
    std::optional<model::StagePlan> mine;
    DSV4_ASSIGN_OR_RETURN(options.experts, SplitOf(flags, config, checkpoint, PlannedOptions(options), memory,
                                                   room, source.synthetic(), &device, &mine));
    if (mine.has_value()) plan = {*mine};
    if (mine.has_value() && flags.group != nullptr) {
      DSV4_ASSIGN_OR_RETURN(plan, GatherPlans(*flags.group, *mine));
      if (std::ranges::all_of(plan,
                              [](const model::StagePlan& of) { return of.without_cache.all_resident(); }))
        plan.clear();
    }
    if (!options.experts.all_resident()) {
      DSV4_ASSIGN_OR_RETURN(options.expert_order, ExpertOrderOf(flags, source, config));
    }
    if (flags.group != nullptr) {
      const backend::CudaGroupOptions common{
          .timeout = std::chrono::milliseconds(static_cast<int64_t>(flags.rank_timeout_seconds * 1000)),
          .peers = flags.peers,
          .without_peers = [](const std::string& why) {
            LogWarning("exchanges between GPUs go by NCCL, which takes longer: " + why);
          }};
      options.make_device_group =
          [device, common, hooks = flags.exchange_hooks](
              comm::Communicator& hosts,
              model::DeviceGroupOf of) -> Result<std::unique_ptr<comm::Communicator>> {
        backend::CudaGroupOptions of_group = common;
        of_group.sends = of == model::DeviceGroupOf::kStages;
        DSV4_ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> group,
                              backend::MakeCudaGroup(device, hosts, of_group));
        return hooks == nullptr ? std::move(group) : comm::Observe(std::move(group), hooks);
      };
    }
  } else {
    DSV4_TRY(CheckPlacement(flags, *checkpoint));
    DSV4_TRY(CheckSyntheticFits(flags, source, memory));
    DSV4_ASSIGN_OR_RETURN(options.experts_from_disk,
                          ReadsFromDisk(flags, source, config, checkpoint, options, memory, left));
  }
  std::unique_ptr<model::Model> model;
  int num_loads = 0;
  const auto load = [&](const model::ExpertSplit& split) -> Status {
    if (num_loads++ > 0) {
      model.reset();
      Status forgotten = backend::ForgetWeights(device);
      if (flags.group != nullptr) forgotten = comm::Agree(*flags.group, forgotten);
      DSV4_RETURN_IF_ERROR(forgotten);
    }
    model::ModelOptions fitted = options;
    fitted.experts = split;
    if (flags.backend == "cuda") {
      Status fits = FitDrafter(flags, config, checkpoint, fitted, memory, room, source.synthetic(), left);
      // All look at the memory before one takes of it.
      if (flags.group != nullptr) {
        DSV4_RETURN_IF_ERROR(flags.group->Barrier(comm::Wait::kForever));
        const Status all_fit = comm::Agree(*flags.group, fits);
        if (fits.ok()) fits = all_fit;  // This rank's own error has its whole table.
      }
      DSV4_RETURN_IF_ERROR(fits);
    }
    const Stopwatch loading;
    DSV4_ASSIGN_OR_RETURN_STATUS(model, model::Model::FromCheckpoint(config, checkpoint, backend, fitted));
    const double seconds = loading.seconds();
    if (flags.backend == "cuda") {
      const backend::PinnedLoad pinned = backend::PinnedLoadOf(device);
      if (pinned.bytes > 0) LogInfo("load: " + PinnedText(pinned));
    }
    LogLoaded(flags, source, *model, backend.name, bytes_placed, seconds);
    return {};
  };
  if (plan.empty()) {
    DSV4_TRY(load(options.experts));
    return model;
  }
  const StageActions actions = {.load = load,
                                .model = [&]() -> model::Model& { return *model; },
                                .counts = [&] { return CountsOf(device); }};
  if (flags.group != nullptr && flags.group->rank() != 0) {
    DSV4_TRY(FollowVerification(*flags.group, actions));
    return model;
  }
  const auto say = [](bool warning, const std::string& text) { warning ? LogWarning(text) : LogInfo(text); };
  DSV4_ASSIGN_OR_RETURN(const model::VerifiedSplit found,
                        flags.group != nullptr ? LeadVerification(*flags.group, plan, actions, say)
                                               : VerifyAlone(plan, actions, say));
  if (verified != nullptr) *verified = found;
  return model;
}

int Fail(const Status& status, int exit_code) {
  PrintError("dsv4: {}\n", Printable(status.message()));
  return status.code() == StatusCode::kCancelled ? kExitInterrupted : exit_code;
}

int LoadExitCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInternal:
    case StatusCode::kFailedPrecondition:  // This build or machine lacks the backend.
    case StatusCode::kResourceExhausted:
    case StatusCode::kCancelled:
    case StatusCode::kUnavailable:       // Another rank is gone,
    case StatusCode::kDeadlineExceeded:  // or late.
      return kExitRunFailed;
    default:
      return kExitBadInput;
  }
}

}  // namespace dsv4::apps
