// `dsv4 bench`: loading, checks, rounds of rows, memory and the report.
#include "apps/bench/bench_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "apps/bench/bench_check.h"
#include "apps/bench/bench_report.h"
#include "apps/bench/bench_runs.h"
#include "apps/shared/bench_machine.h"
#include "apps/shared/choose_backend.h"
#include "apps/shared/expert_flags.h"
#include "apps/shared/model_source.h"
#include "apps/terminal/load_bar.h"
#include "apps/terminal/terminal.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/machine_bounds.h"
#include "backend/cuda/cuda_backend.h"
#include "base/machine_memory.h"
#include "base/parallel.h"
#include "base/text.h"
#include "comm/loopback_group.h"
#include "comm/observed_group.h"
#include "io/disk_rate.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/planning/forecast.h"
#include "model/planning/memory_plan.h"

namespace dsv4::apps {
namespace {

// A terminal with fewer gets the table of 80.
constexpr int kWideColumns = 150;

// Lets VmHWM begin again at what is resident now. Linux 4.0 and later; where it fails the peak is that of the whole run.
void ForgetPeakMemory() { std::ofstream("/proc/self/clear_refs") << "5"; }

// VmHWM of this process; 0 where /proc does not say.
int64_t PeakMemory() {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    int64_t kilobytes = 0;
    if (word == "VmHWM:" && file >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

// Plan of the options, read.
struct Plan {
  std::vector<int64_t> prefill;
  std::vector<int64_t> depths;
  std::vector<int64_t> batches;
  std::vector<int64_t> rows;
  std::vector<std::optional<backend::cpu::Isa>> tiers;  // One; more with --isa.
};

// A model on one backend. All targets of a run share the weights.
struct Target {
  std::unique_ptr<diag::HookedBackend> backend;
  std::unique_ptr<model::Model> model;
  BenchMeter meter;
  std::unique_ptr<BenchRuns> runs;
};

class Bench {
 public:
  Bench(const BenchOptions& options, Plan plan, ModelSource source)
      : options_(options), plan_(std::move(plan)), source_(std::move(source)) {}

  Status Run();
  const BenchReport& report() const { return report_; }

 private:
  Status MakeBackends();
  Status Check();
  Status Load();
  Status RunPrefills();
  Status RunDecodes();
  Status RunVerifications();
  Status RunRound();
  Result<double> BytesWithoutReplication(int64_t depth);
  // Memory that a GPU has given, beside the plan.
  Status NoteDeviceMemory(const std::shared_ptr<const io::Checkpoint>& checkpoint);
  // How much is available of the host's now.
  void NoteHostMemory();
  void Add(BenchRow row);
  void Report(std::vector<BenchRow> measured);
  // Over all rounds; rows "ahead" belong to the one in front of them.
  int64_t NumRows() const {
    const size_t rows =
        plan_.prefill.size() + plan_.depths.size() * (plan_.batches.size() + plan_.rows.size());
    return static_cast<int64_t>(rows * targets_.size()) * options_.rounds;
  }
  static bool Narrow() { return StdoutIsTerminal() && TerminalColumns(STDOUT_FILENO) < kWideColumns; }
  void Print(const std::string& text) const {
    if (options_.json) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  }

  const BenchOptions& options_;
  Plan plan_;
  ModelSource source_;
  std::shared_ptr<const backend::cpu::ReadMemory> read_memory_;
  std::vector<Target> targets_;
  std::vector<std::vector<BenchRow>> measured_;  // By row, a measurement a round.
  int64_t available_ = 0;        // Available memory of the host before anything is loaded; 0: unknown.
  int64_t least_available_ = 0;  // Since.
  size_t next_row_ = 0;
  ProgressBar progress_{"Measuring"};
  int64_t num_measured_ = 0;
  BenchReport report_;
};

Status Bench::MakeBackends() {
  for (const auto& tier : plan_.tiers) {
    const int num_threads = NumThreads(options_.model);
    DSV4_ASSIGN_OR_RETURN_STATUS(ops::Backend backend,
                                 tier ? backend::MakeCpuBackend({.num_threads = num_threads, .isa = tier})
                                      : MakeBackend(options_.model));
    Target target;
    target.backend = std::make_unique<diag::HookedBackend>(std::move(backend));
    ops::OpContext& context = *target.backend->inner().context;
    if (context.stream() == nullptr) {  // It computes on the host.
      if (read_memory_ == nullptr) {
        DSV4_ASSIGN_OR_RETURN_STATUS(backend::cpu::ReadMemory memory, backend::cpu::ReadMemory::Allocate());
        read_memory_ = std::make_shared<const backend::cpu::ReadMemory>(std::move(memory));
      }
      DSV4_ASSIGN_OR_RETURN_STATUS(const backend::cpu::Isa isa, backend::cpu::ChooseIsa(tier));
      target.meter = BenchMeter(read_memory_, context.threads(), isa);
    } else {
      DSV4_ASSIGN_OR_RETURN_STATUS(target.meter, BenchMeter::OfDevice(context.memory()));
    }
    report_.backends.push_back(target.backend->inner().name);
    report_.num_threads = context.threads().num_threads();
    targets_.push_back(std::move(target));
  }
  return {};
}

Status Bench::Check() {
  const int64_t depth = plan_.depths.empty() ? 0 : std::ranges::max(plan_.depths);
  const ElapsedLine line("Comparing with the reference");
  for (const Target& target : targets_) {
    DSV4_ASSIGN_OR_RETURN_STATUS(
        BenchCheck check, CheckAgainstReference(source_, options_.model, target.backend->inner(), depth));
    report_.checks.push_back(std::move(check));
  }
  return {};
}

// Memory that the sequences of the largest row need.
model::MemoryRequest LargestRow(const Plan& plan) {
  const auto largest = [](const std::vector<int64_t>& values) {
    return values.empty() ? int64_t{1} : std::max<int64_t>(1, std::ranges::max(values));
  };
  return {.num_sequences = largest(plan.batches),
          .context = std::max(largest(plan.prefill), largest(plan.depths) + kMaxRepeat)};
}

// Bytes of a token of one sequence, an equal part of every rank.
Result<double> Bench::BytesWithoutReplication(int64_t depth) {
  DSV4_ASSIGN_OR_RETURN(const model::ModelConfig config, source_.Config());
  DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const io::Checkpoint> checkpoint, source_.Checkpoint());
  DSV4_ASSIGN_OR_RETURN(const model::ResolvedCheckpoint resolved,
                        model::ResolveCheckpoint(*checkpoint, config));
  const model::ModelOptions planned = MakeModelOptions(options_.model);
  const model::Forecast alone = model::MakeForecast(resolved, config, model::Placement{},
                                                    {.num_layers = report_.num_layers,
                                                     .context = depth,
                                                     .numerics = planned.numerics,
                                                     .cache_rows = planned.cache_rows});
  return alone.read / options_.model.group->size();
}

Status Bench::Load() {
  ModelFlags flags = options_.model;
  if (flags.group != nullptr && report_.loopback_ranks == 0)
    flags.exchange_hooks = std::make_shared<comm::ExchangeHooks>();
  for (Target& target : targets_) {
    LoadBar bar;
    DSV4_ASSIGN_OR_RETURN_STATUS(
        target.model, LoadModel(
                          flags, source_, target.backend->backend(),
                          [&, show = bar.callback()](const model::LoadProgress& progress) {
                            NoteHostMemory();
                            show(progress);
                          },
                          LargestRow(plan_), &target.backend->inner(), nullptr, &report_.verified));
    NoteHostMemory();
    bar.Clear();
    target.runs = std::make_unique<BenchRuns>(*target.model, *target.backend, target.meter,
                                              BenchRunOptions{.repeat = options_.repeat,
                                                              .profile = options_.profile,
                                                              .seed = options_.seed,
                                                              .check = report_.loopback_ranks == 0,
                                                              .exchanges = flags.exchange_hooks});
  }
  report_.num_layers = targets_.front().model->num_layers();
  return {};
}

// In the last round the row is complete.
void Bench::Add(BenchRow row) {
  if (next_row_ == measured_.size()) measured_.emplace_back();
  std::vector<BenchRow>& measured = measured_[next_row_++];
  if (!row.ahead) ++num_measured_;
  measured.push_back(std::move(row));
  progress_.Hide();
  if (measured.size() == static_cast<size_t>(options_.rounds)) Report(std::move(measured));
  progress_.Update(num_measured_, NumRows(), fmt::format("row {} of {}", num_measured_, NumRows()));
}

void Bench::Report(std::vector<BenchRow> measured) {
  report_.rows.push_back(Merge(std::move(measured)));
  Print(RowText(report_.rows.back(), Narrow()));
  if (options_.profile) Print(ProfileText(report_.rows.back(), Narrow()));
}

Status Bench::RunRound() {
  next_row_ = 0;
  DSV4_RETURN_IF_ERROR(RunPrefills());
  DSV4_RETURN_IF_ERROR(RunDecodes());
  return RunVerifications();
}

Status Bench::RunVerifications() {
  if (plan_.rows.empty()) return {};
  for (const int64_t depth : plan_.depths) {
    for (Target& target : targets_) {
      DSV4_RETURN_IF_ERROR(target.runs->SetDepth(depth, 1));
      report_.memory.states_bytes = std::max(report_.memory.states_bytes, target.runs->state_bytes());
      for (const int64_t rows : plan_.rows) {
        DSV4_ASSIGN_OR_RETURN_STATUS(BenchRow row, target.runs->Verify(rows));
        Add(std::move(row));
      }
      target.runs->DropSequences();
    }
  }
  return {};
}

Status Bench::RunPrefills() {
  for (const int64_t tokens : plan_.prefill) {
    for (Target& target : targets_) {
      DSV4_ASSIGN_OR_RETURN_STATUS(BenchRow row, target.runs->Prefill(tokens));
      Add(std::move(row));
      report_.memory.states_bytes =
          std::max(report_.memory.states_bytes, kv::StateBytes(target.model->cache_layout(), tokens));
    }
  }
  return {};
}

Status Bench::RunDecodes() {
  if (plan_.batches.empty()) return {};
  for (const int64_t depth : plan_.depths) {
    for (Target& target : targets_) {
      DSV4_RETURN_IF_ERROR(target.runs->FillCache());
      DSV4_RETURN_IF_ERROR(target.runs->SetDepth(depth, std::ranges::max(plan_.batches)));
      report_.memory.states_bytes = std::max(report_.memory.states_bytes, target.runs->state_bytes());
      for (const int64_t batch : plan_.batches) {
        DSV4_ASSIGN_OR_RETURN_STATUS(BenchRow row, target.runs->Decode(batch));
        if (row.disk_steps > 0) {  // In turn with the steps, in pieces as large as a weight of an expert.
          DSV4_ASSIGN_OR_RETURN_STATUS(const auto checkpoint, source_.Checkpoint());
          constexpr size_t kPiece = size_t{1} << 20;
          DSV4_ASSIGN_OR_RETURN_STATUS(const io::DiskRate rate,
                                       io::MeasureDiskRate(checkpoint->files(), kPiece));
          row.disk_rate = rate.bytes_per_second;
        }
        if (batch == 1 && options_.model.group != nullptr) {
          DSV4_ASSIGN_OR_RETURN_STATUS(row.bytes_without_replication, BytesWithoutReplication(depth));
        }
        const BenchRow decode = row;
        Add(std::move(row));
        if (!target.model->asynchronous() || !target.model->can_queue()) continue;
        DSV4_ASSIGN_OR_RETURN_STATUS(BenchRow ahead, target.runs->DecodeAhead(decode));
        Add(std::move(ahead));
      }
      target.runs->DropSequences();
    }
  }
  return {};
}

void Bench::NoteHostMemory() {
  const Result<MachineMemory> machine = ReadMachineMemory();
  if (!machine.has_value()) return;
  if (available_ == 0) available_ = least_available_ = machine->available;
  least_available_ = std::min(least_available_, machine->available);
}

Status Bench::NoteDeviceMemory(const std::shared_ptr<const io::Checkpoint>& checkpoint) {
  if (options_.model.backend != "cuda" || options_.model.group != nullptr) return {};
  const model::Model& model = *targets_.front().model;
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const model::MemoryPlan plan,
      model::PlanMemory(model.config(), checkpoint, model.options(), LargestRow(plan_)));
  DSV4_ASSIGN_OR_RETURN_STATUS(const backend::CudaRoom room, backend::RoomOf(options_.model.device));
  report_.memory.device_bytes = room.total - room.free - targets_.front().meter.device_bytes();
  report_.memory.planned_bytes = plan.total() + ScratchOf(options_.model, room.scratch);
  const HostPlan host =
      HostPlanOf(plan, NumbersOfLayer(*checkpoint, source_.synthetic(), model.num_layers()));
  if (host.total() == 0 || available_ == 0) return {};
  NoteHostMemory();
  report_.memory.host_bytes = available_ - least_available_;
  report_.memory.host_planned_bytes = host.total();
  return {};
}

Status Bench::Run() {
  report_.model = source_.name();
  report_.numerics = options_.model.numerics;
  if (const auto& group = options_.model.group; group != nullptr && comm::IsLoopback(*group))
    report_.loopback_ranks = group->size();
  NoteHostMemory();
  DSV4_RETURN_IF_ERROR(CheckSyntheticFits(options_.model, source_, LargestRow(plan_)));
  DSV4_RETURN_IF_ERROR(MakeBackends());
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::shared_ptr<const io::Checkpoint> checkpoint, source_.Checkpoint());
  report_.memory.weights_bytes = checkpoint->num_bytes();
  if (options_.check && report_.loopback_ranks == 0) DSV4_RETURN_IF_ERROR(Check());
  ForgetPeakMemory();
  DSV4_RETURN_IF_ERROR(Load());
  if (const model::Model& model = *targets_.front().model; !model.options().experts.all_resident()) {
    DSV4_ASSIGN_OR_RETURN_STATUS(report_.experts, MeasureExperts(options_.model, model, *checkpoint,
                                                                 targets_.front().backend->inner()));
  }
  Print(HeaderText(report_) + "\n" + RowHeading(Narrow()));
  progress_.Update(0, NumRows(), fmt::format("row 0 of {}", NumRows()));
  for (int round = 0; round < options_.rounds; ++round) DSV4_RETURN_IF_ERROR(RunRound());
  progress_.Clear();
  const int64_t peak = PeakMemory();
  report_.memory.peak_bytes = peak - (read_memory_ && peak > 0 ? read_memory_->num_bytes() : 0);
  DSV4_RETURN_IF_ERROR(NoteDeviceMemory(checkpoint));
  if (options_.explain) {
    for (const backend::CudaChoice& choice : backend::ChoicesOf(targets_.front().backend->inner())) {
      report_.kernels.push_back({choice.op, choice.kernel, choice.reason, choice.count});
    }
    Print("\n" + KernelsText(report_));
  }
  Print("\n" + FooterText(report_, Narrow()));
  return {};
}

Result<Plan> ReadPlan(const BenchOptions& options) {
  Plan plan;
  DSV4_ASSIGN_OR_RETURN(plan.prefill, ParseBenchList(options.prefill, 1));
  DSV4_ASSIGN_OR_RETURN(plan.depths, ParseBenchList(options.depth, 0));
  DSV4_ASSIGN_OR_RETURN(plan.batches, ParseBenchList(options.batch, 1));
  DSV4_ASSIGN_OR_RETURN(plan.rows, ParseBenchList(options.rows, 1));
  if (!plan.rows.empty() && std::ranges::max(plan.rows) > kMostVerifiedRows) {
    return Error(InvalidArgument(
        fmt::format("--rows: got {}, wanted at most {}", std::ranges::max(plan.rows), kMostVerifiedRows)));
  }
  if (options.explain && options.model.backend != "cuda") return Error(WantsGpu("--explain", options.model));
  if (options.model.group != nullptr) {
    if (!options.tiers.empty()) return Error(InvalidArgument("--isa: several models; want no --ranks"));
  }
  for (const std::string& name : options.tiers) {
    if (options.model.backend != "cpu") {
      return Error(InvalidArgument(
          fmt::format("--isa: got --backend {}; only the cpu backend has tiers", options.model.backend)));
    }
    const Result<backend::cpu::Isa> tier = backend::cpu::IsaFromName(name);
    if (!tier) return Error(tier.error().WithContext("--isa"));
    if (std::ranges::find(plan.tiers, std::optional(*tier)) != plan.tiers.end()) {
      return Error(InvalidArgument(fmt::format("--isa: {} twice", name)));
    }
    plan.tiers.emplace_back(*tier);
  }
  if (plan.tiers.empty()) plan.tiers.emplace_back();
  return plan;
}

// A depth leaves room for its steps and the one that warms up.
Status CheckLengths(const Plan& plan, const model::ModelConfig& config) {
  const int64_t room = config.max_position_embeddings;
  const auto check = [&](const char* option, const std::vector<int64_t>& lengths, int64_t more) -> Status {
    for (const int64_t length : lengths) {
      if (length + more > room) {
        return InvalidArgument(fmt::format("{}: {} and {} more, the model has {}", option, length,
                                           Counted(more, "token"), Counted(room, "position")));
      }
    }
    return {};
  };
  DSV4_RETURN_IF_ERROR(check("--prefill", plan.prefill, 0));
  return check("--depth", plan.depths, kMaxRepeat + 1);
}

}  // namespace

Result<std::vector<int64_t>> ParseBenchList(const std::string& text, int64_t min) {
  std::vector<int64_t> numbers;
  if (text == "none") return numbers;
  // "1..8": all of them.
  if (const size_t dots = text.find(".."); dots != std::string::npos) {
    DSV4_ASSIGN_OR_RETURN(const std::vector<int64_t> first, ParseBenchList(text.substr(0, dots), min));
    DSV4_ASSIGN_OR_RETURN(const std::vector<int64_t> last, ParseBenchList(text.substr(dots + 2), min));
    constexpr int64_t kMost = 1024;
    if (first.size() != 1 || last.size() != 1 || first[0] > last[0] || last[0] - first[0] >= kMost) {
      return Error(InvalidArgument(
          fmt::format("'{}': wanted A..B with A no more than B, and at most {} numbers", text, kMost)));
    }
    for (int64_t number = first[0]; number <= last[0]; ++number) numbers.push_back(number);
    return numbers;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    constexpr int64_t kMax = int64_t{1} << 20;
    int64_t number = -1;
    auto [stop, code] = std::from_chars(item.data(), item.data() + item.size(), number);
    if (code == std::errc() && number <= kMax && stop != item.data() + item.size() && *stop == 'k') {
      number *= 1024;
      ++stop;
    }
    if (code != std::errc() || stop != item.data() + item.size() || number < min || number > kMax ||
        std::ranges::find(numbers, number) != numbers.end()) {
      return Error(InvalidArgument(
          fmt::format("'{}' of '{}': wanted different numbers from {} to {}, separated by commas, or none",
                      item, text, min, kMax)));
    }
    numbers.push_back(number);
    begin = end + 1;
  }
  return numbers;
}

int RunBenchCommand(const BenchOptions& options) {
  Result<Plan> plan = ReadPlan(options);
  if (!plan) return Fail(plan.error(), kExitBadUsage);
  Result<ModelSource> source = ModelSource::Find(options.model);
  if (!source) return Fail(source.error(), kExitBadInput);
  const Result<model::ModelConfig> config = source->Config();
  if (!config) return Fail(config.error(), kExitBadInput);
  if (const Status fits = CheckLengths(*plan, *config); !fits.ok()) return Fail(fits, kExitBadUsage);

  Bench bench(options, std::move(*plan), std::move(*source));
  const Status ran = bench.Run();
  if (!ran.ok()) return Fail(ran, LoadExitCode(ran));
  if (options.json) fmt::print("{}\n", ToJson(bench.report()).dump(2));
  return kExitOk;
}

}  // namespace dsv4::apps
