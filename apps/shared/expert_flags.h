// --experts and --gpu-memory: which of a layer's routed experts a GPU keeps, and which the host multiplies (docs/expert-tiers.md).
#pragma once

#include <memory>
#include <string>

#include "apps/shared/model_flags.h"
#include "model/placement/memory_plan.h"

namespace dsv4::apps {

// InvalidArgument where the backend is none for them.
Status CheckExpertFlags(const ModelFlags& flags);

// The GPU of the flags as a memory plan sees it: what is free there, at most --gpu-memory.
Result<model::DeviceRoom> DeviceRoomOf(const ModelFlags& flags, const std::string& name);

// What --experts says of a model; "auto" is the most residents that leave room for the rest of the plan. All resident without it. The errors of
// model::ParseExpertSplit and model::FitExperts.
Result<model::ExpertSplit> SplitOf(const ModelFlags& flags, const model::ModelConfig& config,
                                   const std::shared_ptr<const io::Checkpoint>& checkpoint,
                                   const model::ModelOptions& options, const model::MemoryRequest& request,
                                   const model::DeviceRoom& room);

}  // namespace dsv4::apps
