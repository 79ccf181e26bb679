#include "apps/model_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "apps/printable.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/log.h"

namespace dsv4::apps {
namespace {

namespace fs = std::filesystem;

// The small model lies in models/tiny of the source tree, above the build directory the binary is in.
Result<std::string> FindSmallModel() {
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (error) return Error(NotFound("no model: give one with -m DIR or DSV4_MODEL"));
  for (fs::path directory = binary.parent_path(); directory != directory.parent_path();
       directory = directory.parent_path()) {
    const fs::path candidate = directory / "models" / "tiny";
    if (fs::exists(candidate / "config.json", error)) return candidate.string();
  }
  return Error(NotFound(
      fmt::format("no model: neither -m DIR nor DSV4_MODEL is given, and there is no models/tiny above {}",
                  binary.string())));
}

}  // namespace

Result<ops::Backend> MakeBackend(const ModelFlags& flags) {
  const int num_threads = flags.num_threads > 0
                              ? flags.num_threads
                              : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (flags.backend == "reference") return backend::MakeReferenceBackend(num_threads);
  if (flags.backend == "cpu") return backend::MakeCpuBackend({.num_threads = num_threads, .isa = {}});
  return Error(FailedPrecondition(
      fmt::format("backend {}: not in this build; it has: cpu, reference", flags.backend)));
}

Result<std::string> ResolveModelDirectory(const ModelFlags& flags) {
  std::string directory = flags.model;
  if (directory.empty()) {
    const char* environment = std::getenv("DSV4_MODEL");
    if (environment == nullptr || *environment == '\0') return FindSmallModel();
    directory = environment;
  }
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return Error(NotFound(fmt::format("model {}: not a directory", directory)));
  }
  return directory;
}

Result<std::unique_ptr<model::Model>> LoadModel(const ModelFlags& flags, const std::string& directory,
                                                const LoadProgress& progress) {
  DSV4_ASSIGN_OR_RETURN(const ops::Backend backend, MakeBackend(flags));
  return LoadModel(flags, directory, backend, progress);
}

Result<std::unique_ptr<model::Model>> LoadModel(const ModelFlags& flags, const std::string& directory,
                                                const ops::Backend& backend, const LoadProgress& progress) {
  model::ModelOptions options;
  options.numerics = flags.numerics == "plain" ? model::Numerics::kPlain : model::Numerics::kRelease;
  options.max_layers = flags.max_layers;
  options.clamp_shared_expert = flags.shared_expert_clamp != "off";
  options.progress = progress;
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<model::Model> model, model::Model::Load(directory, backend, options));
  const std::string layers = flags.max_layers > 0
                                 ? fmt::format("first {} of {} layers (--max-layers)", flags.max_layers,
                                               model->config().num_hidden_layers)
                                 : fmt::format("{} layers", model->config().num_hidden_layers);
  const std::string line =
      fmt::format("model {}: {}, backend {}, numerics {}", directory, layers, backend.name, flags.numerics);
  // A truncated model answers differently, so the run says so even when logs are quiet.
  if (flags.max_layers > 0) {
    LogWarning(line);
  } else {
    LogInfo(line);
  }
  return model;
}

int Fail(const Status& status, int exit_code) {
  fmt::print(stderr, "dsv4: {}\n", Printable(status.message()));
  return exit_code;
}

int LoadExitCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInternal:
    case StatusCode::kFailedPrecondition:  // This build or machine lacks the backend.
    case StatusCode::kResourceExhausted:
    case StatusCode::kCancelled:
      return kExitRunFailed;
    default:
      return kExitBadInput;
  }
}

}  // namespace dsv4::apps
