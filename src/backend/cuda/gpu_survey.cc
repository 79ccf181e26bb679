// GPUs of this machine: those of CUDA, and those that the kernel's module shows.
#include "backend/cuda/gpu_survey.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>

#include "base/text.h"

namespace dsv4::backend {
namespace {

// CUDA takes devices up to the first that is none: a list that begins with none hides all.
bool AllHidden() {
  const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
  if (value == nullptr) return false;
  const std::string_view list = value;
  return list.empty() || list.starts_with('-') || list == "none" || list == "NoDevFiles";
}

std::string Field(const std::filesystem::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(": \t", key.size());
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

std::vector<std::string> NamesOf(const GpuSurvey& survey) {
  if (survey.gpus.empty()) return survey.seen;
  std::vector<std::string> names;
  for (const GpuSurvey::Gpu& gpu : survey.gpus) names.push_back(gpu.info.name);
  return names;
}

}  // namespace

std::vector<std::string> SeenGpus(const std::string& root) {
  std::vector<std::string> names;
  if (AllHidden()) return names;
  std::error_code error;
  const std::filesystem::path folder = root + "/proc/driver/nvidia/gpus";
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::filesystem::path information = entry.path() / "information";
    const std::string minor = Field(information, "Device Minor");
    // A container sees the host's folder without its devices.
    const std::string device = root + "/dev/nvidia" + minor;
    if (minor.empty() || ::access(device.c_str(), R_OK | W_OK) != 0) continue;
    names.push_back(Field(information, "Model"));
  }
  std::ranges::sort(names);
  return names;
}

GpuSurvey SurveyGpus() {
  GpuSurvey survey{.code = MachineCodeOfBuild(), .gpus = {}, .seen = SeenGpus(), .fault = {}};
  for (CudaDeviceInfo& device : CudaDevices()) {
    const bool has_code = HasCodeFor(device);
    survey.gpus.push_back({std::move(device), has_code});
  }
  if (survey.built() && survey.gpus.empty() && !survey.seen.empty()) survey.fault = CudaFault();
  return survey;
}

std::optional<int> FirstUsable(const GpuSurvey& survey) {
  const auto first = std::ranges::find_if(survey.gpus, &GpuSurvey::Gpu::has_code);
  if (first == survey.gpus.end()) return std::nullopt;
  return first->info.index;
}

bool UsableByRanks(const GpuSurvey& survey, int count, bool shared) {
  const auto wanted = static_cast<size_t>(count);
  if (survey.gpus.empty() || (survey.gpus.size() < wanted && !shared)) return false;
  const size_t taken = std::min(wanted, survey.gpus.size());
  return std::ranges::all_of(std::span(survey.gpus).first(taken), &GpuSurvey::Gpu::has_code);
}

std::string WhyNoGpu(const GpuSurvey& survey, int ranks) {
  if (!survey.built()) {
    return "this build has no CUDA backend (./dev build --cuda makes one with it; the CUDA package has it)";
  }
  if (survey.gpus.empty()) {
    if (survey.seen.empty()) return "no NVIDIA GPU is seen here";
    return fmt::format("CUDA shows none of {}: {}", fmt::join(survey.seen, ", "),
                       survey.fault.empty() ? "no reason is given" : survey.fault);
  }
  for (const GpuSurvey::Gpu& gpu : survey.gpus) {
    if (gpu.has_code) continue;
    if (ranks == 0 && FirstUsable(survey).has_value()) continue;
    return fmt::format("{} has compute capability {}.{}, this build has machine code for {}", gpu.info.name,
                       gpu.info.major, gpu.info.minor, survey.code);
  }
  return fmt::format("{} as many GPUs, {} here", Counted(ranks, "rank wants", "ranks want"),
                     Counted(survey.gpus.size(), "is", "are"));
}

std::string NameGpus(const GpuSurvey& survey) {
  const std::vector<std::string> names = NamesOf(survey);
  if (names.empty()) return {};
  if (names.size() == 1) return "GPU " + names.front();
  return fmt::format("{} GPUs ({})", names.size(), fmt::join(names, ", "));
}

}  // namespace dsv4::backend
