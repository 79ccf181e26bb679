// Expert split from --experts and memory flags: checks, plans, measurement and refusals.
#include "apps/shared/expert_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "apps/shared/choose_backend.h"
#include "apps/shared/expert_rates.h"
#include "apps/shared/model_source.h"
#include "base/log.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/checkpoint/stages.h"
#include "model/placement/expert_choice.h"
#include "model/planning/forecast.h"

namespace dsv4::apps {

Status CheckExpertFlags(const ModelFlags& flags) {
  if (flags.backend == "cuda") {
    if (flags.experts != kExpertsOnDisk) return {};
    return InvalidArgument(
        "--experts disk: got --backend cuda, want cpu; a GPU's experts of the host are read from disk where "
        "memory has no room for them");
  }
  if (!flags.experts.empty() && flags.experts != kExpertsOnDisk)
    return WantsGpu(fmt::format("--experts {}", flags.experts), flags);
  if (flags.experts == kExpertsOnDisk && !flags.weights.empty())
    return InvalidArgument(fmt::format("--experts disk: {} is in no file", flags.weights));
  if (flags.gpu_memory > 0) return WantsGpu(fmt::format("--gpu-memory {}", flags.gpu_memory), flags);
  if (flags.host_memory > 0) return WantsGpu(fmt::format("--host-memory {}", flags.host_memory), flags);
  return {};
}

Status CheckExpertsOfRanks(const ModelFlags& flags) {
  if (flags.experts == kExpertsOnDisk) return InvalidArgument("--experts disk: with several ranks");
  if (!flags.experts.empty() && flags.placed.num_shards > 1) {
    return InvalidArgument(fmt::format(
        "--experts {}: got --placement {}, want pipeline: experts that are not all on a GPU are with whole "
        "layers",
        flags.experts, model::ToString(flags.placed)));
  }
  return {};
}

namespace {

// Measured of 94 GB in an H200's machine (bench/expert_tiers/HISTORY.md).
constexpr double kDriverShareOfPinned = 0.037;
constexpr int64_t kProcessWithContext = int64_t{800} << 20;
// Four blocks (backend/cuda/tiers/pinned_store.cc).
constexpr int64_t kPinnedAhead = int64_t{1} << 30;

std::string Gigabytes(double bytes) { return fmt::format("{:.2f} GB", bytes / 1e9); }

// Memory that the host has for experts; nothing where neither the kernel nor a flag tells.
std::optional<int64_t> HostMemoryFor(const ModelFlags& flags) {
  std::optional<int64_t> available;
  if (const Result<MachineMemory> machine = ReadMachineMemory(); machine.has_value())
    available = machine->available;
  const auto share = [&](double bytes) { return static_cast<int64_t>(bytes * flags.host_share); };
  if (available.has_value()) available = share(static_cast<double>(*available));
  if (flags.host_memory == 0) return available;
  return std::min(available.value_or(INT64_MAX), share(flags.host_memory * 1e9));
}

int64_t LayersOf(const model::ModelConfig& config, const model::ModelOptions& options) {
  return options.max_layers > 0 ? options.max_layers : config.num_hidden_layers;
}

// By rank.
Result<std::vector<int64_t>> LayersOfRanks(const model::ModelConfig& config,
                                           const std::shared_ptr<const io::Checkpoint>& checkpoint,
                                           const model::ModelOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const model::ResolvedCheckpoint resolved,
                        model::ResolveCheckpoint(*checkpoint, config));
  const model::Placement& placement = options.placement;
  DSV4_TRY(model::CheckPlacement(config, placement, options.max_layers));
  const std::vector<Range> stages =
      model::StageLayers(resolved, config, LayersOf(config, options), placement.num_stages);
  std::vector<int64_t> layers;
  for (int rank = 0; rank < placement.num_ranks(); ++rank)
    layers.push_back(stages[static_cast<size_t>(rank / placement.num_shards)].size());
  return layers;
}

// Time that a layer takes beside reading: launches, and what its kernels wait for each other. An H200 takes
// it with all experts resident (docs/expert-tiers.md, "Where a step goes").
constexpr double kLatencyOfLayer = 75e-6;

// ExpertCosts::rest of `here` layers: all that a token reads there, at the device's rate. That the host reads
// some of it is less than rates are sure of.
Result<double> RestOfStep(const model::ResolvedCheckpoint& resolved, const model::ModelConfig& config,
                          const model::ModelOptions& options, int64_t here, const ops::Backend& device) {
  DSV4_ASSIGN_OR_RETURN(const double rate, MeasureDeviceRate(device));
  const int64_t num_layers = LayersOf(config, options);
  const model::Forecast forecast = model::MakeForecast(
      resolved, config, model::Placement{},
      {.num_layers = num_layers, .numerics = options.numerics, .cache_rows = options.cache_rows});
  const double read = forecast.read * static_cast<double>(here) / static_cast<double>(num_layers);
  const double rest = read / rate + static_cast<double>(here) * kLatencyOfLayer;
  LogInfo(fmt::format("experts: the GPU reads {}/s, so all else of a step takes {:.1f} ms", Gigabytes(rate),
                      rest * 1e3));
  return rest;
}

Result<model::ExpertSplit> AutoSplit(const ModelFlags& flags, const model::ModelConfig& config,
                                     const std::shared_ptr<const io::Checkpoint>& checkpoint,
                                     const model::ModelOptions& options, const model::MemoryRequest& request,
                                     const model::DeviceRoom& room, int64_t numbers,
                                     const ops::Backend& device, std::optional<model::StagePlan>* wanted) {
  DSV4_ASSIGN_OR_RETURN(const model::ExpertSplit beside_host,
                        model::FitExperts(config, checkpoint, options, request, room));
  // Other ranks may want to know what this one's step takes.
  const bool fits = beside_host.all_resident();
  if (fits && (options.group == nullptr || wanted == nullptr)) return beside_host;
  model::ModelOptions planned = options;
  planned.experts = {.cached = config.n_routed_experts};
  DSV4_ASSIGN_OR_RETURN(const model::MemoryPlan plan,
                        model::PlanMemory(config, checkpoint, planned, request));
  DSV4_ASSIGN_OR_RETURN(const model::ResolvedCheckpoint resolved,
                        model::ResolveCheckpoint(*checkpoint, config));
  const model::ExpertSplit measured =
      fits ? model::ExpertSplit() : model::ExpertSplit{.host = 1, .cached = 1};
  DSV4_ASSIGN_OR_RETURN(const ExpertRates rates,
                        MeasureExpertRates(flags, device, resolved.layers[0].experts[0].w1.format,
                                           config.hidden_size, measured));
  const int64_t num_layers = plan.place.layers.size();
  const int64_t all = config.n_routed_experts * num_layers;
  // Other wants grow with what is pinned, but for some of it.
  const HostPlan all_cached = HostPlanOf(plan, numbers);
  const auto beside = static_cast<double>(all_cached.total() - all_cached.pinned - all_cached.driver);
  const double available = static_cast<double>(HostMemoryFor(flags).value_or(all_cached.total()));
  const auto pinnable = static_cast<int64_t>(std::max(0.0, available - beside) / (1 + kDriverShareOfPinned) /
                                             static_cast<double>(plan.slot));
  model::ExpertCosts costs{
      .num_layers = num_layers,
      .num_experts = config.n_routed_experts,
      .top_k = config.num_experts_per_tok,
      .expert_bytes = static_cast<double>(plan.slot),
      .room =
          fits ? all : std::clamp<int64_t>((room.free - room.reserved - plan.total()) / plan.slot, 0, all),
      .pinnable = std::min(pinnable, all),
      .host = rates.host,
      .link = rates.link,
      .host_beside = rates.host_beside,
      .link_beside = rates.link_beside,
      .host_prompt = rates.host_prompt,
      .chunk_tokens = options.max_chunk_tokens,
      .streamed_choices = backend::kStreamedChoicesOfExpert};
  if (wanted != nullptr) {
    DSV4_ASSIGN_OR_RETURN(costs.rest, RestOfStep(resolved, config, options, num_layers, device));
    *wanted = model::StagePlan{.costs = costs, .without_cache = beside_host};
  }
  if (fits) return beside_host;
  const model::ExpertChoice choice = model::ChooseExperts(costs);
  LogInfo(
      fmt::format("experts: the host's kernels read {}/s ({}/s while the link is busy), {}/s with prompts; "
                  "the link brings {}/s ({}/s "
                  "while the host reads); the GPU has room for {} of {}",
                  Gigabytes(rates.host), Gigabytes(rates.host_beside), Gigabytes(rates.host_prompt),
                  Gigabytes(rates.link), Gigabytes(rates.link_beside), costs.room, Counted(all, "expert")));
  LogInfo(fmt::format(
      "experts: {} of a layer: for a token the host takes {:.1f} ms and the link {:.1f} ms, side by side "
      "{:.1f} ms; {}",
      model::ToString(choice.split), choice.times.host * 1e3, choice.times.link * 1e3,
      choice.times.both * 1e3, model::Advice(choice)));
  LogInfo("experts: prompts: " + model::PromptText(choice.split, costs));
  // The plan counts residents to the byte.
  return choice.split.cached > 0 ? choice.split : beside_host;
}

}  // namespace

std::string PinnedText(const backend::PinnedLoad& pinned) {
  const double gigabytes = static_cast<double>(pinned.bytes) / 1e9;
  const auto rate = [&](double seconds) { return gigabytes / std::max(seconds, 1e-9); };
  return fmt::format(
      "{:.2f} GB of experts in pinned memory: loading waited {:.2f} s for memory and {:.2f} s for copies; "
      "each of {} copied {:.1f} GB/s, each of {} pinned {:.1f} GB/s",
      gigabytes, pinned.waited_for_memory, pinned.waited_for_copies, Counted(pinned.threads, "thread"),
      rate(pinned.copying), pinned.makers, rate(pinned.pinning));
}

bool TradesSlots(const ModelFlags& flags) {
  return flags.backend == "cuda" && flags.experts.find("slots=") == std::string::npos;
}

HostPlan HostPlanOf(const model::MemoryPlan& plan, int64_t numbers) {
  if (plan.pinned == 0) return {};
  return {.pinned = plan.pinned,
          .driver = static_cast<int64_t>(kDriverShareOfPinned * static_cast<double>(plan.pinned)),
          .ahead = kPinnedAhead,
          .numbers = numbers,
          .process = kProcessWithContext};
}

std::string HostMemoryTable(const HostPlan& plan) {
  std::string table;
  const auto line = [&](std::string_view name, int64_t bytes) {
    if (bytes > 0) table += fmt::format("  {:<44}{:>12}\n", name, Gigabytes(static_cast<double>(bytes)));
  };
  line("cached experts, pinned", plan.pinned);
  line("the driver's notes about their pages", plan.driver);
  line("pinned ahead while loading", plan.ahead);
  line("numbers of a layer while loading", plan.numbers);
  line("the process and its CUDA context", plan.process);
  line("together", plan.total());
  return table;
}

int64_t NumbersOfLayer(const io::Checkpoint& checkpoint, bool synthetic, int64_t num_layers) {
  return synthetic ? checkpoint.num_bytes() / std::max<int64_t>(num_layers, 1) : 0;
}

Status CheckHostMemory(const ModelFlags& flags, const model::MemoryPlan& plan, int64_t numbers,
                       bool synthetic) {
  const std::optional<int64_t> available = HostMemoryFor(flags);
  const HostPlan host = HostPlanOf(plan, numbers);
  if (plan.pinned > 0) LogInfo("memory plan of the host\n" + HostMemoryTable(host));
  if (plan.pinned + plan.on_host == 0 || !available.has_value()) return {};
  if (host.total() > *available) {
    return ResourceExhausted(fmt::format(
        "cached experts: {} of the host's memory are wanted, {} are available{}; more resident or "
        "host experts want less\n{}",
        Gigabytes(static_cast<double>(host.total())), Gigabytes(static_cast<double>(*available)),
        flags.host_memory > 0 ? fmt::format(" with --host-memory {}", flags.host_memory) : "",
        HostMemoryTable(host)));
  }
  if (host.total() + plan.on_host > *available) {
    if (synthetic) {
      return ResourceExhausted(fmt::format(
          "experts of the host: synthetic weights are in no file that they could be read from again: {} are "
          "wanted, {} of memory are left for them{}; more resident experts or fewer layers (--max-layers) "
          "want less",
          Gigabytes(static_cast<double>(plan.on_host)),
          Gigabytes(static_cast<double>(*available - host.total())),
          flags.host_memory > 0 ? fmt::format(" with --host-memory {}", flags.host_memory) : ""));
    }
    LogWarning(
        fmt::format("experts of the host: {} are wanted, {} of memory are left for them; the others are read "
                    "from disk each "
                    "time they are chosen",
                    Gigabytes(static_cast<double>(plan.on_host)),
                    Gigabytes(static_cast<double>(*available - host.total()))));
    flags.chosen_reads->Start();
  }
  return {};
}

int64_t ScratchOf(const ModelFlags& flags, int64_t scratch) {
  constexpr int64_t kTokens = 8192;
  return scratch * std::max(kTokens, PassTokens(flags)) / kTokens;
}

Result<model::DeviceRoom> DeviceRoomOf(const ModelFlags& flags, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const backend::CudaRoom room, backend::RoomOf(flags.device));
  model::DeviceRoom device{.name = name, .free = room.free, .reserved = ScratchOf(flags, room.scratch)};
  if (flags.gpu_memory > 0) device.free = std::min(device.free, static_cast<int64_t>(flags.gpu_memory * 1e9));
  return device;
}

Result<model::ExpertSplit> SplitOf(const ModelFlags& flags, const model::ModelConfig& config,
                                   const std::shared_ptr<const io::Checkpoint>& checkpoint,
                                   const model::ModelOptions& options, const model::MemoryRequest& request,
                                   const model::DeviceRoom& room, bool synthetic, const ops::Backend* device,
                                   std::optional<model::StagePlan>* plan) {
  if (flags.experts.empty()) return model::ExpertSplit{.resident = config.n_routed_experts};
  if (flags.experts != kExpertsByRates) {
    int64_t num_layers = LayersOf(config, options);
    if (options.group != nullptr) {
      DSV4_ASSIGN_OR_RETURN(const std::vector<int64_t> of_ranks, LayersOfRanks(config, checkpoint, options));
      num_layers = of_ranks[static_cast<size_t>(options.group->rank())];
    }
    DSV4_ASSIGN_OR_RETURN(const model::ExpertSplit split,
                          model::ParseExpertSplit(flags.experts, config.n_routed_experts, num_layers));
    if (split.cached == 0 || split.slots > 0) return split;
    return model::FitSlots(config, checkpoint, options, split, request, room);
  }
  if (device == nullptr) return model::FitExperts(config, checkpoint, options, request, room);
  return AutoSplit(flags, config, checkpoint, options, request, room,
                   NumbersOfLayer(*checkpoint, synthetic, LayersOf(config, options)), *device, plan);
}

Result<double> ShareOfHost(const ModelFlags& flags, const model::ModelConfig& config,
                           const std::shared_ptr<const io::Checkpoint>& checkpoint,
                           const model::ModelOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int64_t> layers, LayersOfRanks(config, checkpoint, options));
  int64_t here = 0;
  for (const int rank : flags.ranks_here) here += layers[static_cast<size_t>(rank)];
  return static_cast<double>(layers[static_cast<size_t>(flags.group->rank())]) / static_cast<double>(here);
}

Status CheckSyntheticFits(const ModelFlags& flags, const ModelSource& source,
                          const model::MemoryRequest& request) {
  if (!source.synthetic() || flags.group != nullptr) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(const model::ModelConfig config, source.Config());
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::shared_ptr<const io::Checkpoint> checkpoint, source.Checkpoint());
  const std::optional<int64_t> available = HostMemoryFor(flags);
  // Far from any limit: no plan is wanted.
  constexpr int64_t kNear = 2;
  if (!available.has_value() || checkpoint->num_bytes() < *available / kNear) return {};
  model::ModelOptions options = MakeModelOptions(flags);
  options.max_layers = 0;  // As many are made as are wanted.
  if (flags.backend == "cuda") {
    DSV4_ASSIGN_OR_RETURN_STATUS(const model::DeviceRoom room, DeviceRoomOf(flags, flags.backend));
    DSV4_ASSIGN_OR_RETURN_STATUS(options.experts, SplitOf(flags, config, checkpoint, options, request, room,
                                                          /*synthetic=*/true, /*device=*/nullptr));
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const model::MemoryPlan plan,
                               model::PlanMemory(config, checkpoint, options, request));
  if (flags.backend == "cuda") {
    return CheckHostMemory(flags, plan, NumbersOfLayer(*checkpoint, true, plan.num_layers), true)
        .WithContext(source.name());
  }
  const int64_t beside = plan.step + plan.num_sequences * plan.sequence;
  if (plan.weights + beside <= *available) return {};
  return ResourceExhausted(fmt::format(
      "{}: weights that are made stay in memory: {} of them and {} of states and a step are wanted, {} are "
      "available; fewer layers (--max-layers) want less",
      source.name(), Gigabytes(static_cast<double>(plan.weights)), Gigabytes(static_cast<double>(beside)),
      Gigabytes(static_cast<double>(*available))));
}

}  // namespace dsv4::apps
