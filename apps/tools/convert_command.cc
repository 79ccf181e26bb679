// `dsv4 convert`: options, progress, report and warnings of losses.
#include "apps/tools/convert_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "apps/shared/model_flags.h"
#include "apps/shared/model_source.h"
#include "apps/terminal/printable.h"
#include "apps/terminal/terminal.h"
#include "base/error_output.h"
#include "base/json.h"
#include "base/text.h"
#include "convert/convert.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The command line has checked the name.
convert::RequestedFormat FormatFromName(const std::string& name) {
  if (name == "nvfp4") return WeightFormat::kNvFp4;
  if (name == "mxfp4") return WeightFormat::kMxFp4;
  if (name == "fp8") return WeightFormat::kFp8Block;
  if (name == "bf16") return WeightFormat::kPlain;
  return std::nullopt;
}

std::string Gigabytes(int64_t bytes) { return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9); }

// "1.20 GB of 3.40 GB, 0.81 GB/s". The speed is this run's; what an earlier one did does not count.
std::string ProgressText(const convert::Progress& progress, double seconds) {
  std::string text = fmt::format("{} of {}", Gigabytes(progress.done_bytes), Gigabytes(progress.total_bytes));
  const int64_t converted = progress.done_bytes - progress.resumed_bytes;
  if (converted <= 0 || seconds <= 0) return text + ", checking what is there";
  return text + fmt::format(", {:.2f} GB/s", static_cast<double>(converted) / seconds / 1e9);
}

Json ToJson(const convert::ModuleReport& module) {
  const convert::Comparison& comparison = module.comparison;
  Json json = {{"module", module.module},
               {"from", module.from},
               {"to", module.to},
               {"tensors", module.num_tensors},
               {"kept", module.kept},
               {"lossless", comparison.lossless()},
               {"values", comparison.num_values},
               {"different", comparison.num_different},
               {"relative_rms", comparison.relative_rms()},
               {"clipped", comparison.num_clipped},
               {"vanished_blocks", comparison.num_vanished}};
  json["worst"] = module.worst_tensor.empty()
                      ? Json()
                      : Json({{"tensor", module.worst_tensor}, {"relative_rms", module.worst_error}});
  return json;
}

Json ToJson(const ConvertCommandOptions& options, const convert::ConvertReport& report, double seconds) {
  Json modules = Json::array();
  for (const convert::ModuleReport& module : report.modules) modules.push_back(ToJson(module));
  return {{"source", options.source},
          {"destination", options.destination},
          {"experts", options.experts},
          {"dense", options.dense},
          {"scales", options.scales},
          {"lossless", report.lossless()},
          {"modules", modules},
          {"other_tensors", report.num_other_tensors},
          {"draft_and_vision_tensors", report.num_draft_and_vision},
          {"source_bytes", report.source_bytes},
          {"output_bytes", report.output_bytes},
          {"resumed_bytes", report.resumed_bytes},
          {"shards", report.num_shards},
          {"seconds", seconds}};
}

std::string ResultText(const convert::ModuleReport& module) {
  if (module.kept) return "kept, byte for byte";
  const convert::Comparison& comparison = module.comparison;
  if (comparison.lossless()) return "lossless";
  return fmt::format("relative RMS {:.3g}, worst {:.3g} in {}", comparison.relative_rms(), module.worst_error,
                     Printable(module.worst_tensor));
}

void PrintReport(const ConvertCommandOptions& options, const convert::ConvertReport& report, double seconds) {
  size_t width = 0;
  for (const convert::ModuleReport& module : report.modules) width = std::max(width, module.module.size());
  for (const convert::ModuleReport& module : report.modules) {
    const std::string formats = module.kept ? module.to : fmt::format("{} -> {}", module.from, module.to);
    fmt::print("{:<{}}  {:>6}  {}: {}\n", module.module, width, module.num_tensors, formats,
               ResultText(module));
  }
  fmt::print("copied: {}, {} of draft and vision parts\n", Counted(report.num_other_tensors, "small tensor"),
             report.num_draft_and_vision);
  fmt::print("{}: {} in {}, from {} in {:.1f} s{}\n", options.destination, Gigabytes(report.output_bytes),
             Counted(report.num_shards, "file"), Gigabytes(report.source_bytes), seconds,
             report.resumed_bytes > 0
                 ? fmt::format(" ({} were there from an earlier run)", Gigabytes(report.resumed_bytes))
                 : "");
  fmt::print("{}\n", report.lossless() ? "lossless: every value is the source's, bit for bit"
                                       : "not lossless: see above");
}

// On standard error, whatever the log level: values that the new format could not hold are no detail.
void WarnOfLosses(const convert::ConvertReport& report) {
  for (const convert::ModuleReport& module : report.modules) {
    const convert::Comparison& comparison = module.comparison;
    if (comparison.num_clipped > 0) {
      PrintError("dsv4: {}: {} of {} clipped at {}'s largest number\n", module.module, comparison.num_clipped,
                 Counted(comparison.num_values, "value was", "values were"), module.to);
    }
    if (comparison.num_vanished > 0) {
      PrintError("dsv4: {}: {} became zero: too small for {} beside the rest of their tensor\n",
                 module.module, Counted(comparison.num_vanished, "block"), module.to);
    }
  }
}

}  // namespace

int RunConvertCommand(const ConvertCommandOptions& options) {
  ModelFlags flags;
  flags.model = options.source;
  const Result<ModelSource> source = ModelSource::Find(flags);
  if (!source) return Fail(source.error(), kExitBadInput);
  ProgressBar bar("converting");
  const InterruptScope interrupt;
  const Clock::time_point begin = Clock::now();
  std::optional<Clock::time_point> conversion_begin;
  convert::ConvertOptions convert_options;
  convert_options.formats = {
      .experts = FormatFromName(options.experts),
      .dense = FormatFromName(options.dense),
      .rule = options.scales == "amax" ? BlockScaleRule::kAmax : BlockScaleRule::kLeastSquares};
  convert_options.num_threads = options.num_threads > 0
                                    ? options.num_threads
                                    : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  convert_options.max_shard_bytes = options.max_shard_bytes;
  convert_options.progress = [&](const convert::Progress& progress) {
    // Checking an earlier run's work is faster than working.
    if (progress.done_bytes == progress.resumed_bytes || !conversion_begin) {
      conversion_begin = progress.resumed_bytes > 0 ? Clock::now() : begin;
      bar.Restart();
    }
    bar.Update(progress.done_bytes, progress.total_bytes,
               ProgressText(progress, SecondsSince(*conversion_begin)));
    return !InterruptScope::Take();
  };
  const Result<convert::ConvertReport> report =
      convert::Convert(source->name(), options.destination, convert_options);
  bar.Clear();
  if (!report) {
    // A place that holds something else.
    const bool wrong_place = report.error().code() == StatusCode::kFailedPrecondition;
    return Fail(report.error(), wrong_place ? kExitBadUsage : LoadExitCode(report.error()));
  }
  const double seconds = SecondsSince(begin);
  if (options.json) {
    fmt::print("{}\n", ToJson(options, *report, seconds).dump(2));
  } else {
    PrintReport(options, *report, seconds);
  }
  WarnOfLosses(*report);
  return kExitOk;
}

}  // namespace dsv4::apps
