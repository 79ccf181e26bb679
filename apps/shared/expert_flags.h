// --experts and --gpu-memory: which of a layer's routed experts a GPU keeps, which it brings from the host when they are chosen, and which
// the host multiplies (docs/expert-tiers.md).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "apps/shared/model_flags.h"
#include "model/placement/memory_plan.h"

namespace dsv4::apps {

// --experts of a backend of the host: routed experts are read from disk when they are chosen, whatever memory there is.
inline constexpr std::string_view kExpertsOnDisk = "disk";

// InvalidArgument where the backend is none for them.
Status CheckExpertFlags(const ModelFlags& flags);

// What ops take beside a plan, of which `scratch` is for passes of up to 8192 tokens: longer ones take more in proportion.
int64_t ScratchOf(const ModelFlags& flags, int64_t scratch);

// The GPU of the flags as a memory plan sees it: what is free there, at most --gpu-memory.
Result<model::DeviceRoom> DeviceRoomOf(const ModelFlags& flags, const std::string& name);

// ResourceExhausted where the plan's cached experts are more than the host has memory for: what is available, at most --host-memory. Logs what the
// host's experts have too little of, which then are read from disk each time.
Status CheckHostMemory(const ModelFlags& flags, const model::MemoryPlan& plan);

// What --experts says of a model. "auto" is what model::ChooseExperts makes of rates that are measured on `device`, the CUDA backend, which takes
// some seconds, and logs them; without one, the most residents that leave room for the rest of the plan. Cached experts without slots have as
// many as it leaves room for. All are resident without the flag. The errors of model::ParseExpertSplit, model::FitExperts and model::FitSlots.
Result<model::ExpertSplit> SplitOf(const ModelFlags& flags, const model::ModelConfig& config,
                                   const std::shared_ptr<const io::Checkpoint>& checkpoint,
                                   const model::ModelOptions& options, const model::MemoryRequest& request,
                                   const model::DeviceRoom& room, const ops::Backend* device);

}  // namespace dsv4::apps
