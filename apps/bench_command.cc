#include "apps/bench_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "apps/bench_check.h"
#include "apps/bench_report.h"
#include "apps/bench_runs.h"
#include "apps/model_source.h"
#include "apps/terminal.h"
#include "backend/cpu/machine_bounds.h"

namespace dsv4::apps {
namespace {

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

struct Lists {
  std::vector<int64_t> prefill;
  std::vector<int64_t> depths;
  std::vector<int64_t> batches;
};

class Bench {
 public:
  Bench(const BenchOptions& options, Lists lists, ModelSource source)
      : options_(options), lists_(std::move(lists)), source_(std::move(source)) {}

  Status Run();
  const BenchReport& report() const { return report_; }

 private:
  Status Load();
  Status RunRows();
  void Add(BenchRow row);
  void Print(const std::string& text) const {
    if (options_.json) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  }

  const BenchOptions& options_;
  Lists lists_;
  ModelSource source_;
  std::unique_ptr<diag::HookedBackend> backend_;
  std::unique_ptr<model::Model> model_;
  BenchReport report_;
};

Status Bench::Load() {
  DSV4_ASSIGN_OR_RETURN_STATUS(ops::Backend backend, MakeBackend(options_.model));
  backend_ = std::make_unique<diag::HookedBackend>(std::move(backend));
  ThreadPool& threads = backend_->inner().context->threads();
  const bool on_host = backend_->inner().context->stream() == nullptr;
  if (on_host) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const backend::cpu::Isa isa, backend::cpu::ChooseIsa(std::nullopt));
    report_.machine = {.read_bandwidth = backend::cpu::ReadBandwidth(threads),
                       .multiply_adds = backend::cpu::MultiplyAddPeak(threads, isa)};
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::shared_ptr<const io::Checkpoint> checkpoint, source_.Checkpoint());
  report_.memory.weights_bytes = checkpoint->num_bytes();
  if (options_.check) {
    const int64_t depth = lists_.depths.empty() ? 0 : std::ranges::max(lists_.depths);
    DSV4_ASSIGN_OR_RETURN_STATUS(report_.check,
                                 CheckAgainstReference(source_, options_.model, backend_->inner(), depth));
  }
  ForgetPeakMemory();
  ProgressBar bar("Loading");
  DSV4_ASSIGN_OR_RETURN_STATUS(model_,
                               LoadModel(options_.model, source_, backend_->backend(),
                                         [&](int64_t done, int64_t total) { bar.Update(done, total); }));
  bar.Clear();
  report_.model = source_.name();
  report_.backend = backend_->inner().name;
  report_.numerics = options_.model.numerics;
  report_.num_layers = model_->num_layers();
  report_.num_threads = threads.num_threads();
  return {};
}

void Bench::Add(BenchRow row) {
  Print(RowText(row, report_.machine));
  if (options_.profile) Print(ProfileText(row, report_.machine));
  report_.rows.push_back(std::move(row));
}

Status Bench::RunRows() {
  BenchRuns runs(*model_, *backend_,
                 {.repeat = options_.repeat, .profile = options_.profile, .seed = options_.seed});
  for (const int64_t tokens : lists_.prefill) {
    DSV4_ASSIGN_OR_RETURN_STATUS(BenchRow row, runs.Prefill(tokens));
    Add(std::move(row));
    report_.memory.states_bytes =
        std::max(report_.memory.states_bytes, StateBytes(model_->cache_layout(), tokens));
  }
  if (lists_.batches.empty()) return {};
  for (const int64_t depth : lists_.depths) {
    DSV4_RETURN_IF_ERROR(runs.SetDepth(depth, std::ranges::max(lists_.batches)));
    report_.memory.states_bytes = std::max(report_.memory.states_bytes, runs.state_bytes());
    for (const int64_t batch : lists_.batches) {
      DSV4_ASSIGN_OR_RETURN_STATUS(BenchRow row, runs.Decode(batch));
      Add(std::move(row));
    }
  }
  return {};
}

Status Bench::Run() {
  DSV4_RETURN_IF_ERROR(Load());
  Print(HeaderText(report_) + "\n" + RowHeading());
  DSV4_RETURN_IF_ERROR(RunRows());
  report_.memory.peak_bytes = PeakMemory();
  Print("\n" + FooterText(report_));
  return {};
}

}  // namespace

Result<std::vector<int64_t>> ParseBenchList(const std::string& text, int64_t min) {
  std::vector<int64_t> numbers;
  if (text == "none") return numbers;
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
  Lists lists;
  const auto parse = [](const std::string& text, int64_t min, std::vector<int64_t>& numbers) -> Status {
    DSV4_ASSIGN_OR_RETURN_STATUS(numbers, ParseBenchList(text, min));
    return {};
  };
  Status status = parse(options.prefill, 1, lists.prefill);
  if (status.ok()) status = parse(options.depth, 0, lists.depths);
  if (status.ok()) status = parse(options.batch, 1, lists.batches);
  if (!status.ok()) return Fail(status, kExitBadUsage);
  Result<ModelSource> source = ModelSource::Find(options.model);
  if (!source) return Fail(source.error(), kExitBadInput);

  Bench bench(options, std::move(lists), std::move(*source));
  const Status ran = bench.Run();
  if (!ran.ok()) return Fail(ran, LoadExitCode(ran));
  if (options.json) fmt::print("{}\n", ToJson(bench.report()).dump(2));
  return kExitOk;
}

}  // namespace dsv4::apps
