// `diagnose all`, the real sequence, on a suspect with one fault: it must say which check, layer and op. And
// on healthy runs: it must say nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "apps/diagnose/diagnose_checks.h"
#include "apps/diagnose/diagnose_compare.h"
#include "apps/tools/synth_command.h"
#include "backend/cpu/cpu_backend.h"
#include "base/json.h"
#include "base/log.h"
#include "base/temporary_directory_testing.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "model/arch/architecture.h"
#include "model/synthetic/synthetic.h"
#include "tests/diag/seeded_faults.h"
#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

namespace fs = std::filesystem;
using apps::DiagnoseOptions;
using apps::DiagnoseSuspects;
using diag::CheckReport;
using diag::Verdict;

constexpr const char* kTiny = "models/tiny";
constexpr int64_t kMaxLayers = 4;  // One of each kind, and one more: the rest only takes time.

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

DiagnoseOptions Options(const std::string& model = kTiny) {
  DiagnoseOptions options;
  options.check = "all";
  options.run.model.model = model;
  options.run.model.num_threads = 1;  // The other run has one of its own.
  options.run.model.max_layers = kMaxLayers;
  options.run.prompt = apps::kDiagnoseQuestion;
  options.min_tokens = 140;
  return options;
}

apps::ModelSource Source(const DiagnoseOptions& options) {
  return *apps::ModelSource::Find(options.run.model);
}

Result<std::vector<CheckReport>> All(const DiagnoseOptions& options, const DiagnoseSuspects& suspects = {}) {
  SetLogLevel("error");  // Each load warns that layers are left out.
  apps::DiagnoseSession session(options, suspects, Source(options));
  return apps::Diagnose(session, [](const CheckReport&) {});
}

bool Names(const std::string& ops, const std::string& op) {
  return (", " + ops + ",").find(", " + op + ",") != std::string::npos;
}

bool Says(const CheckReport& report, const std::string& text) {
  const auto has = [&](const std::string& line) { return line.find(text) != std::string::npos; };
  return has(report.headline) || std::any_of(report.evidence.begin(), report.evidence.end(), has);
}

bool Matches(const CheckReport& report, const Expected& expected) {
  if (report.check != expected.check || !Says(report, expected.text)) return false;
  if (expected.layer && (!report.location || report.location->layer != *expected.layer)) return false;
  return expected.op.empty() || (report.location && Names(report.location->op, expected.op));
}

// The faults of a test: prints the table, and lets no fault be missed without a reason.
struct Score {
  int num_faults = 0;
  int num_localised = 0;

  // The first finding that names an op must be the right one: a reader goes from top to bottom.
  void Count(const std::string& fault, const Result<std::vector<CheckReport>>& reports,
             const Expected& expected) {
    ++num_faults;
    std::string said = reports ? "nothing found" : "error: " + reports.error().message();
    bool localised = false;
    for (const CheckReport& report : reports ? *reports : std::vector<CheckReport>()) {
      if (report.verdict != Verdict::kFinding) continue;
      said = fmt::format("{}: {}", report.check,
                         report.location ? report.location->ToString() : report.headline);
      localised = Matches(report, expected);
      if (localised || (report.location && !report.location->op.empty())) break;
    }
    std::cout << fmt::format("  {:45} {}{}\n", fault, said,
                             expected.missed_because.empty() ? "" : " (" + expected.missed_because + ")");
    EXPECT_EQ(localised, expected.missed_because.empty()) << fault << ": " << said;
    num_localised += localised ? 1 : 0;
  }

  void Expect95Percent() const {
    std::cout << fmt::format("  {} of {} localised\n", num_localised, num_faults);
    EXPECT_GE(num_localised * 100, num_faults * 95);
  }
};

// --- Ops ---

TEST(SeededFaults, InOpsAreLocalisedByAll) {
  Score score;
  {
    const model::ModelConfig config = *model::LoadModelConfig(kTiny);
    model::ModelWeights weights = *model::LoadWeights(*io::Checkpoint::Open(kTiny), config, {});
    SetScene({config, std::move(weights)}, 0);
  }
  for (const OpFault& fault : SeededOpFaults()) {
    DiagnoseOptions options = Options();
    options.run.model.numerics = fault.numerics;
    options.min_tokens = fault.num_tokens;
    const DiagnoseSuspects suspects = {.make_backend = [&](const apps::ModelFlags& flags) {
      Result<ops::Backend> backend = apps::MakeBackend(flags);
      if (backend && flags.backend == "cpu") fault.seed(backend->table);
      return backend;
    }};
    score.Count(fault.name, All(options, suspects), fault.expected);
  }
  EXPECT_GE(score.num_faults, 25);
  score.Expect95Percent();
}

// --- Files ---

// A damaged copy of the small model.
void WriteDamaged(const FileFault& fault, const TemporaryDirectory& directory) {
  for (const char* name : {"config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json",
                           "hf_quant_config.json"}) {
    fs::copy_file(fs::path(kTiny) / name, directory / name);
  }
  std::string config = ReadAll(directory / "config.json");
  if (!fault.config_from.empty()) {
    const size_t at = config.find(fault.config_from);
    ASSERT_NE(at, std::string::npos) << fault.config_from;
    config.replace(at, fault.config_from.size(), fault.config_to);
    WriteAll(directory / "config.json", config);
  }
  std::string bytes = ReadAll(std::string(kTiny) + "/model.safetensors");
  const std::vector<io::StoredTensor> tensors =
      *io::ParseSafetensors(std::as_bytes(std::span(bytes)), "the small model");
  fault.damage([&](const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const io::StoredTensor& tensor) { return tensor.name == name; });
    if (found == tensors.end()) throw std::runtime_error("no tensor " + name);
    auto* begin = reinterpret_cast<std::byte*>(bytes.data());
    return std::span(begin + (found->bytes.data() - begin), found->bytes.size());
  });
  WriteAll(directory / "model.safetensors", bytes);
}

TEST(SeededFaults, InFilesAreLocalisedByAll) {
  const TemporaryDirectory healthy;
  const std::string dump = healthy / "dump";
  {
    const DiagnoseOptions options = Options();
    apps::DiagnoseSession session(options, {}, Source(options));
    const Status written = apps::WriteOwnDump(session, dump);
    ASSERT_TRUE(written.ok()) << written.message();
  }
  Score score;
  for (const FileFault& fault : SeededFileFaults()) {
    const TemporaryDirectory directory;
    WriteDamaged(fault, directory);
    DiagnoseOptions options = Options(directory / "");
    if (fault.with_dump) options.with_path = dump;
    score.Count(fault.name, All(options), fault.expected);
  }
  score.Expect95Percent();
}

// --- Prompts, logs, sampling ---

TEST(SeededFaults, InPromptsLogsAndSamplingAreLocalisedByAll) {
  const TemporaryDirectory directory;
  DiagnoseOptions base = Options();
  base.run.model.max_layers = 1;
  apps::DiagnoseSession session(base, {}, Source(base));
  const Result<const apps::TextSubject*> subject = session.Text();
  ASSERT_TRUE(subject.has_value()) << subject.error().message();
  const std::string text = (*subject)->text;
  const std::vector<int32_t> ids = (*subject)->ids;
  const std::string bos = (*subject)->tokenizer.Decode(std::span(ids).first(1));
  ASSERT_TRUE(text.starts_with(bos) && text.ends_with("<think>"));

  Score score;
  const auto against = [&](const std::string& name, const std::string& content, const std::string& suspect) {
    DiagnoseOptions options = base;
    options.against_path = directory / "other";
    WriteAll(options.against_path, content);
    score.Count(name, All(options), {"prompt", {}, "", suspect});
  };
  const auto ids_json = [](std::vector<int32_t> list) { return Json(list).dump(); };
  const std::string user = "<｜User｜>";
  const auto with_user = [&](const std::string& replacement) {
    std::string changed = text;
    return changed.replace(changed.find(user), user.size(), replacement);
  };
  against("thinking priming missing", text.substr(0, text.size() - 7), "thinking priming");
  against("BOS twice", bos + text, "twice");
  against("BOS missing", text.substr(bos.size()), "no " + bos);
  against("new line behind the role", with_user(user + "\n"), "new lines");
  against("prompt glued by hand", "User: What is the capital of France?\nAssistant:", "no " + bos);
  std::vector<int32_t> twice = ids;
  twice.insert(twice.begin(), ids[0]);
  against("BOS twice in the ids", ids_json(twice), "twice");
  against("thinking priming missing in the ids", ids_json({ids.begin(), ids.end() - 1}), "thinking priming");
  std::vector<int32_t> other = ids;
  other[5] += 1;
  against("another token", ids_json(other), "from token 5 on");

  const auto logged = [&](const std::string& name, const std::vector<int32_t>& answer,
                          const std::string& said) {
    DiagnoseOptions options = base;
    options.log_path = directory / "log";
    std::vector<int32_t> log = ids;
    log.insert(log.end(), answer.begin(), answer.end());
    WriteAll(options.log_path, ids_json(log));
    score.Count(name, All(options), {"stop-set", {}, "", said});
  };
  logged("stop id missed", {60, 61, static_cast<int32_t>((*subject)->config.eos_token_ids.at(0)), 62, 63},
         "2 more follow");
  logged("user marker missed", {60, 61, ids[1], 62, 63}, "2 more follow");

  DiagnoseOptions options = base;
  const DiagnoseSuspects deaf = {.first_token = [](model::Model& model, const std::vector<int32_t>& prompt,
                                                   const std::vector<uint8_t>& allowed,
                                                   const sampling::SamplingParams& params) {
    sampling::SamplingParams without = params;
    without.repetition_penalty = 1;
    without.presence_penalty = 0;
    without.frequency_penalty = 0;
    return apps::FirstToken(model, prompt, allowed, without);
  }};
  score.Count("penalty does not reach the logits", All(options, deaf), {"sampler", {}, "", "penalt"});
  score.Expect95Percent();
}

// --- Healthy runs ---

struct Healthy {
  std::string name;
  DiagnoseOptions options;
};

std::vector<Healthy> HealthyRuns(const TemporaryDirectory& directory) {
  std::vector<Healthy> runs;
  const auto add = [&](const std::string& name, const std::function<void(DiagnoseOptions&)>& change,
                       const std::string& model = kTiny) {
    runs.push_back({name, Options(model)});
    change(runs.back().options);
  };
  for (const char* prompt :
       {"What is the capital of France?", "2 + 2 =", "写一首关于秋天的诗。", "\U0001F600\U0001F680 ???",
        "for (int i = 0; i < 10; ++i) std::cout << i;", "a"}) {
    add(prompt, [&](DiagnoseOptions& options) { options.run.prompt = prompt; });
  }
  add("all layers, 300 tokens", [](DiagnoseOptions& options) {
    options.run.model.max_layers = 0;
    options.min_tokens = 300;
  });
  add("plain numerics", [](DiagnoseOptions& options) { options.run.model.numerics = "plain"; });
  add("chat mode, a system message, sampling", [](DiagnoseOptions& options) {
    options.run.thinking_mode = "chat";
    options.run.system = "You are brief.";
    options.run.sampling.temperature = 0.7F;
    options.run.sampling.repetition_penalty = 1.3F;
    options.run.sampling.seed = 11;
  });
  add("reference backend", [](DiagnoseOptions& options) { options.run.model.backend = "reference"; });
  add("a dump of itself", [&](DiagnoseOptions& options) {
    apps::DiagnoseSession session(options, {}, Source(options));
    const Status written = apps::WriteOwnDump(session, directory / "dump");
    EXPECT_TRUE(written.ok()) << written.message();
    options.with_path = directory / "dump";
  });
  uint64_t seed = 0;
  for (const std::string_view name : model::SyntheticFormatNames()) {
    const std::string format(name);
    apps::SynthOptions synth;
    synth.directory = directory / format;
    synth.format = format;
    synth.num_layers = kMaxLayers;
    synth.seed = ++seed;
    EXPECT_EQ(apps::RunSynthCommand(synth), 0);
    add(
        "synthetic, " + format, [](DiagnoseOptions& options) { options.run.model.max_layers = 0; },
        synth.directory);
  }
  add(
      "synthetic, plain", [](DiagnoseOptions& options) { options.run.model.numerics = "plain"; },
      directory / "nvfp4");
  return runs;
}

TEST(HealthyRuns, HaveNoFinding) {
  const TemporaryDirectory directory;
  const std::vector<Healthy> runs = HealthyRuns(directory);
  EXPECT_GE(runs.size(), 20U);
  for (const Healthy& run : runs) {
    const Result<std::vector<CheckReport>> reports = All(run.options);
    ASSERT_TRUE(reports.has_value()) << run.name << ": " << reports.error().message();
    for (const CheckReport& report : *reports) {
      EXPECT_NE(report.verdict, Verdict::kFinding) << run.name << ": " << ToText(report);
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
