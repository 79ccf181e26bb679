#include "apps/shared/expert_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "backend/cuda/cuda_backend.h"

namespace dsv4::apps {

Status CheckExpertFlags(const ModelFlags& flags) {
  if (flags.backend == "cuda") return {};
  if (!flags.experts.empty()) {
    return InvalidArgument(fmt::format("--experts {}: got --backend {}, want cuda: the host has one memory",
                                       flags.experts, flags.backend));
  }
  if (flags.gpu_memory > 0) {
    return InvalidArgument(
        fmt::format("--gpu-memory {}: got --backend {}, want cuda", flags.gpu_memory, flags.backend));
  }
  return {};
}

Result<model::DeviceRoom> DeviceRoomOf(const ModelFlags& flags, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const backend::CudaRoom room, backend::RoomOf(flags.device));
  model::DeviceRoom device{.name = name, .free = room.free, .reserved = room.scratch};
  if (flags.gpu_memory > 0) device.free = std::min(device.free, static_cast<int64_t>(flags.gpu_memory * 1e9));
  return device;
}

Result<model::ExpertSplit> SplitOf(const ModelFlags& flags, const model::ModelConfig& config,
                                   const std::shared_ptr<const io::Checkpoint>& checkpoint,
                                   const model::ModelOptions& options, const model::MemoryRequest& request,
                                   const model::DeviceRoom& room) {
  if (flags.experts.empty()) return model::ExpertSplit{.resident = config.n_routed_experts, .host = 0};
  if (flags.experts != "auto") return model::ParseExpertSplit(flags.experts, config.n_routed_experts);
  if (options.group != nullptr) {
    return Error(
        Unimplemented("--experts auto: with several ranks, want the split that all take, such as host=75%"));
  }
  return model::FitExperts(config, checkpoint, options, request, room);
}

}  // namespace dsv4::apps
