// The table of bench/scaling/HISTORY.md. It has the placement that the planner chooses for Flash and Pro on 1
// to 16 GPUs, and the bytes that they would hold. It also has the speed that reading and waiting would allow.
// Arithmetic from the headers of checkpoints that are never written; nothing runs.
//
//   build/release/bench/scaling/scaling_table
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/safetensors_writer.h"
#include "model/arch/architecture.h"
#include "model/planning/forecast.h"
#include "model/synthetic/synthetic_shape.h"
#include "model/synthetic/synthetic_tensors.h"

namespace dsv4 {
namespace {

// Beside weights and states: a CUDA context, a step's activations, scratch. An assumption.
constexpr double kOther = 4e9;
constexpr int64_t kContext = 131072;
// NCCL's all-reduce of 8 KB on four H200 (measured, in a graph), and what a one-shot exchange over peer
// memory should take.
constexpr double kNcclSeconds = 20.4e-6;
constexpr double kOneShotSeconds = 4e-6;

struct Gpu {
  const char* name;
  double memory;
  double bytes_per_second;
};
// H200: copies measured at 4.3 of its nominal 4.8 TB/s; H100 and B200 at 90 % of their nominal 3.35 and 8
// TB/s, like it.
constexpr Gpu kGpus[] = {{"H100", 80e9, 3.0e12}, {"H200", 141e9, 4.3e12}, {"B200", 192e9, 7.2e12}};

template <typename T>
T Must(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "scaling_table: {}\n", result.error().ToString());
  std::exit(1);
}

// The files of a shape without their data: a header and a hole.
class Headers {
 public:
  explicit Headers(const std::string& shape)
      : folder_(std::filesystem::temp_directory_path() /
                fmt::format("dsv4-scaling-{}-{}", ::getpid(), shape)) {
    const model::SyntheticOptions options = {
        .shape = shape, .num_layers = {}, .vocab_size = {}, .format = model::SyntheticFormat::kNvFp4Experts};
    config_ = Must(model::ParseModelConfig(Must(model::SyntheticConfig(options)), shape));
    std::vector<io::TensorSpec> specs;
    int64_t num_bytes = 0;
    for (const model::SyntheticTensor& tensor : model::PlanSyntheticTensors(config_, options.format)) {
      num_bytes += tensor.spec.num_bytes();
      specs.push_back(tensor.spec);
    }
    const std::string header = Must(io::LayOutSpecs(shape, specs));
    std::filesystem::create_directories(folder_);
    const std::filesystem::path file = folder_ / "model.safetensors";
    std::ofstream(file, std::ios::binary) << header;
    std::filesystem::resize_file(file, header.size() + static_cast<size_t>(num_bytes));
    checkpoint_ = Must(io::Checkpoint::Open(folder_.string()));
    resolved_ = Must(model::ResolveCheckpoint(*checkpoint_, config_));
  }
  ~Headers() { std::filesystem::remove_all(folder_); }
  Headers(const Headers&) = delete;
  Headers& operator=(const Headers&) = delete;

  std::vector<model::Forecast> Forecasts(int num_ranks) const {
    std::vector<model::Forecast> forecasts;
    for (const model::Placement& placement :
         model::AllPlacements(num_ranks, config_.layers, !model::KeepsEntriesWhole(config_))) {
      forecasts.push_back(model::MakeForecast(
          resolved_, config_, placement, {.num_layers = config_.num_hidden_layers, .context = kContext}));
    }
    return forecasts;
  }

 private:
  std::filesystem::path folder_;
  model::ModelConfig config_;
  std::shared_ptr<const io::Checkpoint> checkpoint_;
  model::ResolvedCheckpoint resolved_;
};

void PrintTable(const std::string& shape) {
  const Headers headers(shape);
  fmt::print(
      "| {} on | placement | weights a GPU | room for tokens | reading alone | waiting 4 us each | NCCL, "
      "20.4 us | "
      "waits |\n|---|---|---|---|---|---|---|---|\n",
      shape);
  for (const Gpu& gpu : kGpus) {
    for (const int num_ranks : {1, 2, 4, 8, 16}) {
      const std::vector<model::Forecast> forecasts = headers.Forecasts(num_ranks);
      const model::PlacementChoice choice = model::ChoosePlacement(
          forecasts, {gpu.memory - kOther, gpu.bytes_per_second, kOneShotSeconds}, kContext);
      const model::Forecast& forecast = forecasts[choice.index];
      const double tokens = forecast.Tokens(gpu.memory - kOther);
      const std::string name = num_ranks == 1 ? std::string("one rank") : ToString(forecast.placement);
      fmt::print("| {} {} | {} | {:.1f} GB | ", num_ranks, gpu.name, name,
                 static_cast<double>(forecast.weights) / 1e9);
      if (tokens < kContext) {
        fmt::print("does not fit | | | | |\n");
        continue;
      }
      const auto rate = [&](double wait) { return 1 / forecast.Seconds(gpu.bytes_per_second, wait); };
      fmt::print("{:.1f} M | {:.0f} | {:.0f} | {:.0f} | {} |\n", tokens / 1e6, rate(0), rate(kOneShotSeconds),
                 rate(kNcclSeconds), forecast.exchanges);
    }
  }
  fmt::print("\n");
}

}  // namespace
}  // namespace dsv4

int main() {
  for (const char* shape : {"flash", "pro"}) dsv4::PrintTable(shape);
  return 0;
}
