// The choice of a backend where none is named.
#include "apps/shared/choose_backend.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "apps/shared/expert_flags.h"
#include "apps/shared/model_source.h"
#include "apps/terminal/readable.h"
#include "backend/cuda/cuda_variables.h"
#include "base/machine_memory.h"
#include "comm/bootstrap.h"
#include "model/planning/memory_plan.h"

namespace dsv4::apps {
namespace {

// Ranks of this machine; 0: none but this process.
int RanksOfFlags(const ModelFlags& flags) {
  const Result<std::optional<comm::RankEnvironment>> environment = comm::ReadRankEnvironment();
  // Wrong variables are for the group to refuse.
  if (!environment.has_value()) return 0;
  if (!environment->has_value()) return flags.num_ranks > 1 ? flags.num_ranks : 0;
  const comm::RankEnvironment& found = **environment;
  return found.local_size > 0 ? found.local_size : found.local_rank + 1;
}

std::string Idle(const backend::GpuSurvey& survey, const std::string& why) {
  const std::string names = backend::NameGpus(survey);
  return names.empty() ? std::string() : fmt::format("{}: idle, {}", names, why);
}

std::string Idle(std::vector<std::string> seen, const std::string& why) {
  backend::GpuSurvey survey;
  survey.seen = std::move(seen);
  return Idle(survey, why);
}

// The option that only a host's backend has; empty without one.
std::string WantsHost(const ModelFlags& flags) {
  return flags.experts == kExpertsOnDisk ? "--experts disk" : flags.host_option;
}

}  // namespace

GpuFit FitOnGpu(const ModelFlags& flags) {
  const Result<ModelSource> source = ModelSource::Find(flags);
  if (!source || source->synthetic()) return {};
  const Result<model::ModelConfig> config = source->Config();
  const auto checkpoint = source->Checkpoint();
  const Result<model::DeviceRoom> room = DeviceRoomOf(flags, "the GPU");
  if (!config || !checkpoint || !room) return {};
  const model::ModelOptions options = MakeModelOptions(flags);
  const int64_t usable = room->free - room->reserved;
  // The device's part with so many of a layer's experts there; nothing where it is not known.
  const auto wanted = [&](int64_t resident) -> std::optional<int64_t> {
    model::ModelOptions planned = options;
    planned.experts = {.resident = resident, .host = config->n_routed_experts - resident};
    const Result<model::MemoryPlan> plan = model::PlanMemory(*config, *checkpoint, planned, {});
    if (!plan) return std::nullopt;
    return plan->total();
  };
  const std::optional<int64_t> whole = wanted(config->n_routed_experts);
  if (!whole || *whole <= usable) return {};
  const std::optional<int64_t> least = wanted(0);
  const bool without_experts = least && *least <= usable;
  const auto gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  return {.room = without_experts ? GpuFit::Room::kWithoutExperts : GpuFit::Room::kNone,
          .text = fmt::format("{:.2f} GB are free and {:.2f} GB are wanted{}", gigabytes(room->free),
                              gigabytes(room->reserved + (without_experts ? *whole : least.value_or(*whole))),
                              without_experts ? "" : " without any routed expert")};
}

std::string ChooseBackend(ModelFlags& flags, const BackendProbe& probe) {
  if (flags.backend == "cpu") return Idle(probe.seen(), "as --backend cpu was named");
  if (flags.backend != kBackendAuto) return {};
  const std::string host_option = WantsHost(flags);
  if (!host_option.empty()) {
    flags.backend = "cpu";
    return Idle(probe.seen(), fmt::format("as {} is for --backend cpu", host_option));
  }
  const backend::GpuSurvey survey = probe.survey();
  const int ranks = RanksOfFlags(flags);
  const std::optional<int> device = backend::FirstUsable(survey);
  const bool usable =
      ranks > 0 ? backend::UsableByRanks(survey, ranks, backend::DevicesAreShared()) : device.has_value();
  if (!usable) {
    flags.backend = "cpu";
    flags.no_gpu = backend::WhyNoGpu(survey, ranks);
    return Idle(survey, flags.no_gpu);
  }
  flags.backend = "cuda";
  if (ranks > 0) return {};  // Their own plans say what has no room.
  flags.device = *device;
  if (!flags.experts.empty()) return {};
  const GpuFit fit = probe.fit(flags);
  if (fit.room == GpuFit::Room::kWhole) return {};
  if (fit.room == GpuFit::Room::kWithoutExperts) {
    flags.experts = kExpertsByRates;
    return fmt::format("{}: {}, so --experts auto: experts of the host take part", backend::NameGpus(survey),
                       fit.text);
  }
  flags.backend = "cpu";
  flags.device = 0;
  flags.no_gpu = fit.text;
  return Idle(survey, fit.text + ": the model runs on the CPU");
}

std::string ChoosePlannedBackend(ModelFlags& flags, const BackendProbe& probe) {
  const bool for_gpu = flags.gpu_memory > 0 || (!flags.experts.empty() && flags.experts != kExpertsOnDisk);
  if (flags.backend == kBackendAuto && for_gpu) flags.backend = "cuda";
  return ChooseBackend(flags, probe);
}

ModelFlags WithBackend(ModelFlags flags, const std::string& backend) {
  flags.backend = backend;
  if (backend != "cuda") {
    if (flags.experts != kExpertsOnDisk) flags.experts.clear();
    flags.gpu_memory = 0;
    flags.host_memory = 0;
  }
  return flags;
}

Status WantsGpu(const std::string& option, const ModelFlags& flags) {
  if (!flags.no_gpu.empty()) return InvalidArgument(fmt::format("{}: wants a GPU: {}", option, flags.no_gpu));
  return InvalidArgument(fmt::format("{}: got --backend {}, want cuda", option, flags.backend));
}

BackendName SplitBackendName(const std::string& name) {
  const size_t open = name.find(" (");
  std::string kind = name.substr(0, open);
  std::string inner =
      open == std::string::npos ? std::string() : name.substr(open + 2, name.size() - open - 3);
  if (kind == "cuda") return {std::move(kind), std::move(inner)};
  return {std::move(kind), inner.empty() ? "CPU" : fmt::format("CPU ({})", inner)};
}

std::string WhereItRuns(int64_t weights, const backend::GpuSurvey& survey) {
  const Result<MachineMemory> memory = ReadMachineMemory();
  const int64_t available = memory ? memory->available : 0;
  // States, activations and the KV cache stand beside the weights.
  const auto wanted = static_cast<int64_t>(1.05 * static_cast<double>(weights));
  if (const auto usable = backend::FirstUsable(survey); usable.has_value()) {
    const auto& gpu = survey.gpus[static_cast<size_t>(*usable)].info;
    const auto total = static_cast<int64_t>(gpu.total_bytes);
    if (wanted <= total) return fmt::format("it fits {} with {}", gpu.name, ReadableBytes(total));
    const auto count = static_cast<int64_t>(survey.gpus.size());
    if (count > 1 && wanted <= count * total)
      return fmt::format("it wants several GPUs: --gpus {}", (wanted + total - 1) / total);
    if (wanted <= total + available)
      return fmt::format("larger than {}'s {}: with --experts auto a part of it is in the host's memory",
                         gpu.name, ReadableBytes(total));
  }
  if (!memory) return memory.error().message();
  if (wanted <= available)
    return fmt::format("it fits the {} of memory that are available, and runs on the CPU",
                       ReadableBytes(available));
  // Weights alone are read again, so never more than there are.
  const int64_t from_disk = weights > available ? weights - available : wanted - available;
  return fmt::format(
      "more than the {} of memory that are available: it would run, and read about {} from the disk again "
      "and again, many seconds a token",
      ReadableBytes(available), ReadableBytes(from_disk));
}

}  // namespace dsv4::apps
