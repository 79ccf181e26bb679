// Plan of --experts for a model's memory, for `dsv4 inspect`.
#pragma once

#include <cstdint>
#include <string>

#include "apps/shared/model_flags.h"
#include "apps/shared/model_source.h"
#include "base/json.h"
#include "model/planning/memory_plan.h"

namespace dsv4::apps {

// Scratch of the backend beside a plan (backend::RoomOf) is known of a GPU that is there; of one that is not,
// this.
inline constexpr int64_t kAssumedScratch = int64_t{2} << 30;

struct ExpertPlan {
  model::ExpertSplit split;
  model::MemoryPlan plan;  // Plan of the GPU.
  model::DeviceRoom room;
  bool fits = false;
  int64_t longest_context = 0;  // Context of the sequences that were asked for.
};

// The GPU is that of the flags, or, where there is none, --gpu-memory. FailedPrecondition without either; the
// errors of SplitOf.
Result<ExpertPlan> PlanExperts(const ModelFlags& flags, const ModelSource& source,
                               const model::MemoryRequest& request);

Json ToJson(const ExpertPlan& plan);
std::string ToText(const ExpertPlan& plan);

}  // namespace dsv4::apps
