// Which GPUs a machine shows, and why a build can or cannot compute on them: what a default backend is chosen
// by. In every build.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"

namespace dsv4::backend {

struct GpuSurvey {
  struct Gpu {
    CudaDeviceInfo info;
    bool has_code = false;  // The build has machine code for it.
  };
  std::string code;               // MachineCodeOfBuild.
  std::vector<Gpu> gpus;          // As CUDA counts them; none in a build without the backend.
  std::vector<std::string> seen;  // SeenGpus.
  std::string fault;              // CudaFault, where `seen` has GPUs that CUDA does not show.

  bool built() const { return !code.empty(); }
};

// Starts CUDA's driver, which takes a part of a second.
GpuSurvey SurveyGpus();

// Names of the GPUs that NVIDIA's kernel module shows below `root` and this process may open; none where
// CUDA_VISIBLE_DEVICES hides them all. Starts nothing.
std::vector<std::string> SeenGpus(const std::string& root = "");

// The first device that the build can compute on. nullopt: WhyNoGpu says why.
std::optional<int> FirstUsable(const GpuSurvey& survey);
// Whether each of `count` ranks has a device of its number, or with `shared` takes one in turn.
bool UsableByRanks(const GpuSurvey& survey, int count, bool shared);
// `ranks`: as many devices are wanted; 0: one.
std::string WhyNoGpu(const GpuSurvey& survey, int ranks = 0);

// "GPU NVIDIA H200" or "2 GPUs (NVIDIA H200, NVIDIA H200)": those of CUDA, else the seen ones; empty without
// any.
std::string NameGpus(const GpuSurvey& survey);

}  // namespace dsv4::backend
