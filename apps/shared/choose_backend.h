// The choice of `--backend auto`: a GPU that the build can compute on, where the model has room, else the
// CPU. A line says of idle GPUs why they are. A backend that is named is never replaced.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"
#include "backend/cuda/gpu_survey.h"

namespace dsv4::apps {

inline constexpr char kBackendAuto[] = "auto";

// Whether a model has room on flags.device.
struct GpuFit {
  enum class Room { kWhole, kWithoutExperts, kNone };
  Room room = Room::kWhole;
  std::string text;  // "20.10 GB are free and 156.02 GB are wanted"; empty for kWhole.
};
// Room for one sequence of the usual length. kWhole too where that is not known. Weights that are made are
// not there yet, and a model that cannot be read is for its load to refuse.
GpuFit FitOnGpu(const ModelFlags& flags);

// Tests ask other machines.
struct BackendProbe {
  std::function<backend::GpuSurvey()> survey = backend::SurveyGpus;
  std::function<std::vector<std::string>()> seen = [] { return backend::SeenGpus(); };
  std::function<GpuFit(const ModelFlags&)> fit = FitOnGpu;
};

// Makes flags.backend "cpu" or "cuda" where it is "auto", with flags.device, flags.no_gpu, and --experts auto
// where a GPU has no room for all of them. Returns a line for people: a GPU is idle, or has not all experts;
// empty where nothing is to say.
std::string ChooseBackend(ModelFlags& flags, const BackendProbe& probe = {});
// The same for a plan that loads nothing: options of a GPU's memory stand for a GPU.
std::string ChoosePlannedBackend(ModelFlags& flags, const BackendProbe& probe = {});

// Room of this machine for weights of a known size: "it fits the 20 GB of memory that are available, and runs on the CPU". By arithmetic:
// formats and shapes are not known here.
std::string WhereItRuns(int64_t weights, const backend::GpuSurvey& survey);

// `flags` on another backend that is named: options of a GPU's memory do not go to a host's.
ModelFlags WithBackend(ModelFlags flags, const std::string& backend);

// "--gpu-memory 8: got --backend cpu, want cuda", or with auto why there is no GPU.
Status WantsGpu(const std::string& option, const ModelFlags& flags);

// A backend's name in parts, for programs that read them: "cuda (NVIDIA H200)" is {"cuda", "NVIDIA H200"}.
struct BackendName {
  std::string backend;
  std::string device;  // "CPU (avx2)" of a host.
};
BackendName SplitBackendName(const std::string& name);

}  // namespace dsv4::apps
