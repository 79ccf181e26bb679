// `dsv4 doctor`: findings about system, CPU, memory, GPUs, backend, model and folders.
#include "apps/inspect/doctor_command.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "apps/inspect/finding.h"
#include "apps/inspect/shared_states.h"
#include "apps/shared/choose_backend.h"
#include "apps/shared/last_conversation.h"
#include "apps/shared/model_source.h"
#include "apps/terminal/printable.h"
#include "apps/terminal/readable.h"
#include "backend/cpu/isa.h"
#include "backend/cuda/gpu_survey.h"
#include "base/json.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "hub/reference.h"

namespace dsv4::apps {
namespace {

std::string_view Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kNote:
      return "note";
    case Verdict::kMissing:
      return "missing";
  }
  return "";
}

// Text that stands behind `key` in the first line of a file that begins with it; empty without one.
std::string Field(const std::string& path, std::string_view key, std::string_view separators) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(separators, key.size());
    if (begin == std::string::npos) return {};
    return line.substr(begin, line.find_last_not_of(separators) + 1 - begin);
  }
  return {};
}

Finding System() {
  utsname kernel = {};
  ::uname(&kernel);
  const std::string name = Field("/etc/os-release", "PRETTY_NAME", "=\"");
  std::array<char, 64> library = {};  // "glibc 2.36"
  ::confstr(_CS_GNU_LIBC_VERSION, library.data(), library.size());
  return {"system", Verdict::kOk,
          fmt::format("{}, kernel {}, {}", name.empty() ? "Linux" : name, kernel.release, library.data())};
}

Finding Cpu() {
  const backend::cpu::Isa best = backend::cpu::DefaultIsa();
  const std::string name = Field("/proc/cpuinfo", "model name", "\t :");
  std::string text = fmt::format("{}, {}, instruction set {}", name.empty() ? "unknown" : name,
                                 Counted(std::max(1U, std::thread::hardware_concurrency()), "thread"),
                                 backend::cpu::IsaName(best));
  if (backend::cpu::AvailableIsas().back() == backend::cpu::Isa::kAmx)
    text += "; DSV4_CPU_ISA=amx for long prompts and batches";
  if (best == backend::cpu::AvailableIsas().front()) {
    return {"CPU", Verdict::kNote, text + ": without AVX2 every answer takes many times as long"};
  }
  return {"CPU", Verdict::kOk, text};
}

Finding Memory() {
  const Result<MachineMemory> memory = ReadMachineMemory();
  if (!memory) return {"memory", Verdict::kNote, memory.error().message()};
  return {"memory", Verdict::kOk,
          fmt::format("{} of {} available", ReadableBytes(memory->available), ReadableBytes(memory->total))};
}

std::vector<Finding> Gpus(bool wanted, const backend::GpuSurvey& survey) {
  std::vector<Finding> findings;
  for (const backend::GpuSurvey::Gpu& gpu : survey.gpus) {
    findings.push_back({fmt::format("GPU {}", gpu.info.index), gpu.has_code ? Verdict::kOk : Verdict::kNote,
                        fmt::format("{}, compute capability {}.{}, {}{}", gpu.info.name, gpu.info.major,
                                    gpu.info.minor, ReadableBytes(static_cast<double>(gpu.info.total_bytes)),
                                    gpu.has_code ? "" : ": this build has no code for it")});
  }
  if (backend::FirstUsable(survey).has_value() || (!findings.empty() && !wanted)) return findings;
  const std::string driver = Field("/proc/driver/nvidia/version", "NVRM version", ": ");
  std::string text = backend::WhyNoGpu(survey);
  if (!survey.built())
    text = (survey.seen.empty() ? "none seen" : backend::NameGpus(survey)) + ", and " + text;
  if (survey.built() && survey.seen.empty() && survey.gpus.empty())
    text = driver.empty() ? "none: no driver is loaded" : "none, though a driver is loaded: " + driver;
  findings.push_back({"GPU",
                      wanted                                  ? Verdict::kMissing
                      : driver.empty() && survey.seen.empty() ? Verdict::kOk
                                                              : Verdict::kNote,
                      text});
  return findings;
}

// The backend that a command would take.
Finding Backend(ModelFlags flags, const backend::GpuSurvey& survey) {
  const std::string named = flags.backend;
  const std::string note = ChooseBackend(flags, {.survey = [&] { return survey; }});
  std::string text = flags.backend;
  if (flags.backend == "cuda" && named == kBackendAuto)
    text = fmt::format("cuda, on {}", survey.gpus[static_cast<size_t>(flags.device)].info.name);
  text += fmt::format(" (--backend {})", named);
  if (!note.empty()) text += ": " + note;
  return {"backend", note.empty() ? Verdict::kOk : Verdict::kNote, std::move(text)};
}

Finding Model(const ModelFlags& flags) {
  const Result<ModelSource> source = ModelSource::Find(flags);
  if (!source) return {"model", Verdict::kMissing, source.error().message()};
  const Result<model::ModelConfig> config = source->Config();
  if (!config) return {"model", Verdict::kMissing, config.error().message()};
  if (source->synthetic()) return {"model", Verdict::kOk, source->name() + ", made in memory"};
  const auto checkpoint = source->Checkpoint();
  if (!checkpoint) return {"model", Verdict::kMissing, checkpoint.error().message()};
  const std::string text =
      fmt::format("{}, {}, {}", source->name(), Counted(config->num_hidden_layers, "layer"),
                  ReadableBytes((*checkpoint)->num_bytes()));
  const Result<MachineMemory> memory = ReadMachineMemory();
  if (memory && (*checkpoint)->num_bytes() > memory->available) {
    return {"model", Verdict::kNote,
            text + ": more than the memory that is available; `dsv4 inspect` says what would fit"};
  }
  return {"model", Verdict::kOk, text};
}

// Weights of the releases in the formats of their files, as `dsv4 inspect --weights synthetic:flash` counts them.
struct Release {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array kReleases = {Release{"Flash", 156'020'000'000}, Release{"Pro", 851'050'000'000}};

std::vector<Finding> Releases(const backend::GpuSurvey& survey) {
  std::vector<Finding> findings;
  for (const Release& release : kReleases) {
    findings.push_back(
        {std::string(release.name), Verdict::kOk,
         fmt::format("DeepSeek-V4-{}, {}: {}", release.name,
                     ReadableBytes(static_cast<double>(release.bytes)), WhereItRuns(release.bytes, survey))});
  }
  return findings;
}

// The closest folder above `path` that is there, which says whether it could be made.
std::filesystem::path Existing(std::filesystem::path path) {
  std::error_code error;
  while (!std::filesystem::exists(path, error) && path.has_parent_path() && path != path.parent_path()) {
    path = path.parent_path();
  }
  return path;
}

Finding Folder(std::string subject, const std::string& path, std::string_view use) {
  if (path.empty()) return {std::move(subject), Verdict::kNote, fmt::format("nowhere: {} is not kept", use)};
  const std::filesystem::path there = Existing(path);
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(there, error);
  const bool writable = ::access(there.c_str(), W_OK) == 0;
  return {std::move(subject), writable ? Verdict::kOk : Verdict::kNote,
          fmt::format("{}, {}{}", path,
                      error ? "" : ReadableBytes(static_cast<double>(space.available)) + " free",
                      writable ? "" : fmt::format("; not writable, so {} is not kept", use))};
}

}  // namespace

int RunDoctorCommand(const DoctorOptions& options) {
  std::vector<Finding> findings = {{"dsv4", Verdict::kOk, options.version}, System(), Cpu(), Memory()};
  const backend::GpuSurvey survey = backend::SurveyGpus();
  for (Finding& finding : Gpus(options.model.backend == "cuda", survey))
    findings.push_back(std::move(finding));
  findings.push_back(Backend(options.model, survey));
  findings.push_back(Model(options.model));
  for (Finding& finding : Releases(survey)) findings.push_back(std::move(finding));
  findings.push_back(
      Folder("pulled models", hub::SettingsFromEnvironment().cache.string(), "what `dsv4 pull` fetches"));
  findings.push_back(Folder("conversations", LastConversationPath(), "the last conversation"));
  if (!options.prefix_cache_dir.empty()) {
    for (Finding& finding : CheckSharedStates(options.prefix_cache_dir, options.prefix_cache_disk_mib << 20))
      findings.push_back(std::move(finding));
  }

  const auto missing = std::count_if(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.verdict == Verdict::kMissing;
  });
  if (options.json) {
    Json list = Json::array();
    for (const Finding& finding : findings) {
      list.push_back(
          {{"subject", finding.subject}, {"verdict", Name(finding.verdict)}, {"text", finding.text}});
    }
    fmt::print("{}\n", Json{{"missing", missing}, {"findings", std::move(list)}}.dump());
  } else {
    for (const Finding& finding : findings) {
      fmt::print("{:<8}{:<15}{}\n", Name(finding.verdict), finding.subject, Printable(finding.text));
    }
    fmt::print("{}\n", missing == 0 ? "Nothing is missing." : fmt::format("{} missing.", missing));
  }
  return missing == 0 ? kExitOk : kExitRunFailed;
}

}  // namespace dsv4::apps
