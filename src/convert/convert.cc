// Conversion of a checkpoint: plan, resumed journal, recoded units, proof of every value, and the report.
#include "convert/convert.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "base/parallel.h"
#include "base/text.h"
#include "convert/destination.h"
#include "convert/journal.h"
#include "convert/quantization_config.h"
#include "convert/worker.h"
#include "io/checkpoint.h"
#include "io/mapped_file.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/config/config.h"

namespace dsv4::convert {
namespace {

std::string_view FormatText(const RequestedFormat& format) {
  if (!format) return "keep";
  return *format == WeightFormat::kPlain ? "bf16" : WeightFormatName(*format);
}

// Everything the output depends on beside the source; the number changes with the meaning of a journal.
std::string OptionsText(const ConvertOptions& options) {
  return fmt::format("journal 1, experts {}, dense {}, scales {}, shards of {}",
                     FormatText(options.formats.experts), FormatText(options.formats.dense),
                     options.formats.rule == BlockScaleRule::kAmax ? "amax" : "mse",
                     Counted(options.max_shard_bytes, "byte"));
}

std::string Fingerprint(const io::Checkpoint& checkpoint, const std::string& config_json) {
  std::string text = config_json;
  for (const io::StoredTensor& tensor : checkpoint.tensors()) {
    text += fmt::format("\n{} {} {} {}", tensor.name, tensor.dtype_name, tensor.ShapeString(),
                        tensor.bytes.size());
  }
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

class Conversion {
 public:
  Conversion(const ConvertOptions& options, Destination destination)
      : options_(options), destination_(std::move(destination)), pool_(options.num_threads) {}

  Result<ConvertReport> Run(const std::string& source) {
    DSV4_TRY(Open(source));
    DSV4_TRY(destination_.Create(plan_.output_bytes()));
    DSV4_ASSIGN_OR_RETURN(Journal journal,
                          Journal::Open(destination_.journal_path(),
                                        {Fingerprint(*checkpoint_, config_json_), OptionsText(options_)}));
    DSV4_TRY(OpenShards());
    Worker worker(plan_, config_, files_, pool_);
    DSV4_TRY(Resume(worker, journal));
    // From here on a faulty source ends the matter: what was made of it is of no use.
    const Status converted = ConvertAll(worker, journal);
    const bool is_fault = converted.code() == StatusCode::kDataLoss ||
                          converted.code() == StatusCode::kInvalidArgument ||
                          converted.code() == StatusCode::kOutOfRange;
    if (is_fault) destination_.Discard();
    DSV4_TRY(converted);
    DSV4_TRY(Finish());
    return Report();
  }

 private:
  Status Open(const std::string& source) {
    DSV4_ASSIGN_OR_RETURN_STATUS(config_json_, io::ReadTextFile(source + "/config.json"));
    DSV4_ASSIGN_OR_RETURN_STATUS(config_, model::ParseModelConfig(config_json_, source + "/config.json"));
    DSV4_ASSIGN_OR_RETURN_STATUS(checkpoint_, io::Checkpoint::Open(source));
    DSV4_ASSIGN_OR_RETURN_STATUS(const model::ResolvedCheckpoint resolved,
                                 model::ResolveCheckpoint(*checkpoint_, config_));
    DSV4_ASSIGN_OR_RETURN_STATUS(
        plan_, MakePlan(*checkpoint_, config_, resolved, options_.formats, options_.max_shard_bytes));
    done_.assign(plan_.units.size(), false);
    comparisons_.resize(plan_.units.size());
    progress_.total_bytes = plan_.source_bytes();
    return {};
  }

  Status OpenShards() {
    Result<std::vector<io::RandomAccessFile>> files = destination_.OpenShards(plan_);
    if (files) {
      files_ = *std::move(files);
      return {};
    }
    // Nothing is worth resuming; the room that was reserved goes back.
    if (!destination_.is_resumed()) destination_.Discard();
    return files.error();
  }

  Status Show() {
    if (options_.progress && !options_.progress(progress_))
      return Cancelled(fmt::format("stopped; the same command resumes from {}", destination_.partial()));
    return {};
  }

  // Calls convert(begin, end) for runs of units that are not done, of about batch_bytes each.
  Status ForBatches(const std::vector<bool>& skip, const std::function<Status(size_t, size_t)>& convert) {
    for (size_t begin = 0; begin < plan_.units.size();) {
      if (skip[begin]) {
        ++begin;
        continue;
      }
      size_t end = begin;
      for (int64_t bytes = 0; end < plan_.units.size() && !skip[end] && bytes < options_.batch_bytes; ++end)
        bytes += plan_.units[end].source_bytes();
      DSV4_RETURN_IF_ERROR(convert(begin, end));
      DSV4_RETURN_IF_ERROR(Show());
      begin = end;
    }
    return {};
  }

  // Believes an earlier run only where source and output still are what it recorded.
  Status Resume(Worker& worker, const Journal& journal) {
    std::vector<bool> unknown(plan_.units.size(), true);
    for (const auto& [unit, record] : journal.records()) {
      if (unit < unknown.size() && record.comparisons.size() == plan_.units[unit].linears.size())
        unknown[unit] = false;
    }
    return ForBatches(unknown, [&](size_t begin, size_t end) -> Status {
      DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<UnitRecord> found, worker.Hash(begin, end));
      for (const UnitRecord& now : found) {
        const UnitRecord& then = journal.records().at(now.unit);
        if (now.source_hash != then.source_hash) {
          return FailedPrecondition(
              fmt::format("{}: the source has changed since this conversion began (unit {}); remove the "
                          "directory to start anew",
                          destination_.partial(), now.unit));
        }
        // Lost between two runs, by a crash of the machine: done again.
        if (now.output_hash == then.output_hash) MarkDone(then, /*resumed=*/true);
      }
      return {};
    });
  }

  Status ConvertAll(Worker& worker, Journal& journal) {
    const std::vector<bool> done = done_;
    return ForBatches(done, [&](size_t begin, size_t end) -> Status {
      for (size_t unit = end; unit < std::min(end + (end - begin), plan_.units.size()); ++unit) {
        for (const std::span<const std::byte> range : plan_.units[unit].SourceRanges())
          io::AdviseWillNeed(range.first(std::min(range.size(), static_cast<size_t>(options_.batch_bytes))));
      }
      DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<UnitRecord> records, worker.Convert(begin, end));
      for (const UnitRecord& record : records) {
        DSV4_RETURN_IF_ERROR(journal.Append(record));
        MarkDone(record, /*resumed=*/false);
      }
      return {};
    });
  }

  void MarkDone(const UnitRecord& record, bool resumed) {
    const int64_t bytes = plan_.units[record.unit].source_bytes();
    done_[record.unit] = true;
    comparisons_[record.unit] = record.comparisons;
    progress_.done_bytes += bytes;
    if (resumed) progress_.resumed_bytes += bytes;
  }

  Status Finish() {
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::string config_json, RewriteConfig(config_json_, config_, plan_));
    DSV4_RETURN_IF_ERROR(destination_.WriteOtherFiles(plan_, config_json, HfQuantConfig(plan_)));
    DSV4_RETURN_IF_ERROR(CheckOutput(config_json).WithContext("the converted checkpoint"));
    return destination_.Publish(files_);
  }

  // Check by the loader. A failure here is a bug of ours.
  Status CheckOutput(const std::string& config_json) const {
    const auto internal = [](const Status& status) { return Internal(status.message()); };
    const Result<model::ModelConfig> config = model::ParseModelConfig(config_json, "config.json");
    if (!config) return internal(config.error());
    const auto checkpoint = io::Checkpoint::Open(destination_.partial());
    if (!checkpoint) return internal(checkpoint.error());
    const auto resolved = model::ResolveCheckpoint(**checkpoint, *config);
    if (!resolved) return internal(resolved.error());
    if (!resolved->disagreements.empty()) return Internal(resolved->disagreements.front());
    return {};
  }

  ConvertReport Report() const {
    ConvertReport report;
    report.source_bytes = progress_.total_bytes;
    report.resumed_bytes = progress_.resumed_bytes;
    report.output_bytes = plan_.output_bytes();
    report.num_shards = static_cast<int64_t>(plan_.shards.size());
    report.num_draft_and_vision = plan_.num_draft_and_vision;
    for (size_t i = 0; i < plan_.units.size(); ++i) {
      const Unit& unit = plan_.units[i];
      if (unit.small) ++report.num_other_tensors;
      for (size_t j = 0; j < unit.linears.size(); ++j)
        AddTo(report.modules, unit.linears[j], comparisons_[i][j]);
    }
    return report;
  }

  static void AddTo(std::vector<ModuleReport>& modules, const LinearJob& job, const Comparison& comparison) {
    const std::string from = job.source.FormatName();
    const std::string to = job.FormatName();
    auto module = std::find_if(modules.begin(), modules.end(), [&](const ModuleReport& m) {
      return m.module == job.module && m.from == from && m.to == to && m.kept == job.kept;
    });
    if (module == modules.end()) {
      modules.push_back({.module = job.module, .from = from, .to = to, .kept = job.kept});
      module = modules.end() - 1;
    }
    ++module->num_tensors;
    module->comparison.Merge(comparison);
    if (comparison.lossless() || comparison.relative_rms() <= module->worst_error) return;
    module->worst_tensor = job.name;
    module->worst_error = comparison.relative_rms();
  }

  const ConvertOptions& options_;
  Destination destination_;
  ThreadPool pool_;
  std::string config_json_;
  model::ModelConfig config_;
  std::shared_ptr<const io::Checkpoint> checkpoint_;
  Plan plan_;
  std::vector<io::RandomAccessFile> files_;
  std::vector<bool> done_;
  std::vector<std::vector<Comparison>> comparisons_;  // Comparisons of each unit's linears.
  Progress progress_;
};

}  // namespace

bool ConvertReport::lossless() const {
  return std::all_of(modules.begin(), modules.end(),
                     [](const ModuleReport& module) { return module.comparison.lossless(); });
}

Result<ConvertReport> Convert(const std::string& source, const std::string& destination,
                              const ConvertOptions& options) {
  DSV4_ASSIGN_OR_RETURN(Destination prepared, Destination::Prepare(source, destination));
  return Conversion(options, std::move(prepared)).Run(source);
}

}  // namespace dsv4::convert
