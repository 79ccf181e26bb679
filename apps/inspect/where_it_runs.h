// Room of this machine for a model, by the size of its weights alone.
#pragma once

#include <cstdint>
#include <string>

#include "backend/cuda/gpu_survey.h"

namespace dsv4::apps {

// "it fits the 20 GB of memory that are available, and runs on the CPU": by arithmetic, as formats and shapes are not known here.
std::string WhereItRuns(int64_t weights, const backend::GpuSurvey& survey);

}  // namespace dsv4::apps
