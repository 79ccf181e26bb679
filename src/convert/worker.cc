// Worker of a conversion: batches of rows read, recoded, written, read back and hashed by all threads.
#include "convert/worker.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/parallel.h"
#include "io/mapped_file.h"
#include "model/checkpoint/small_tensors.h"

namespace dsv4::convert {
namespace {

// Elements of a row block, and bytes of a range that is copied or hashed in one go. The journal's hashes
// depend on the latter.
constexpr int64_t kBlockElements = int64_t{1} << 18;
constexpr int64_t kRangeBytes = int64_t{1} << 20;

// The rows [begin, end) as finite fp32 numbers.
Result<std::vector<float>> ReadRows(const Weight& weight, int64_t begin, int64_t end,
                                    const std::string& name) {
  std::vector<float> values(static_cast<size_t>((end - begin) * weight.cols));
  for (int64_t row = begin; row < end; ++row) {
    float* out = values.data() + (row - begin) * weight.cols;
    DequantizeRow(weight, row, out);
    for (int64_t col = 0; col < weight.cols; ++col) {
      if (!std::isfinite(out[col])) {
        return Error(DataLoss(fmt::format("tensor {}: row {}, column {} is {}, want finite numbers", name,
                                          row, col, out[col])));
      }
    }
  }
  return values;
}

std::span<const std::byte> DataRows(const model::StoredLinear& stored, int64_t begin, int64_t end) {
  const size_t row_bytes = stored.data.size() / static_cast<size_t>(stored.rows);
  return stored.data.subspan(static_cast<size_t>(begin) * row_bytes,
                             static_cast<size_t>(end - begin) * row_bytes);
}

// Runs tasks on the pool; the first error in their order wins.
Status RunAll(ThreadPool& pool, std::span<const std::function<Status()>> tasks) {
  std::vector<Status> results(tasks.size());
  pool.ParallelFor(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) results[static_cast<size_t>(i)] = tasks[static_cast<size_t>(i)]();
  });
  for (Status& result : results) DSV4_RETURN_IF_ERROR(std::move(result));
  return {};
}

using Tasks = std::vector<std::function<Status()>>;

// Calls make(begin, end) for the row blocks of a linear.
void ForRowBlocks(const LinearJob& job, const std::function<void(int64_t, int64_t)>& make) {
  const int64_t unit = job.target.block_rows;
  const int64_t rows_each = std::max<int64_t>(1, kBlockElements / job.source.cols / unit) * unit;
  for (int64_t begin = 0; begin < job.source.rows; begin += rows_each)
    make(begin, std::min(job.source.rows, begin + rows_each));
}

void ForRanges(int64_t num_bytes, const std::function<void(int64_t, int64_t)>& make) {
  for (int64_t begin = 0; begin < num_bytes; begin += kRangeBytes)
    make(begin, std::min(kRangeBytes, num_bytes - begin));
}

// Writes bytes of an output tensor and reads them back, which must give the same.
class OutputFiles {
 public:
  OutputFiles(const Plan& plan, std::span<const io::RandomAccessFile> files) : plan_(plan), files_(files) {}

  Status Write(size_t output, int64_t offset, std::span<const std::byte> bytes) const {
    return File(output).WriteAt(plan_.outputs[output].entry.offset + offset, bytes);
  }
  Result<std::vector<std::byte>> Read(size_t output, int64_t offset, int64_t num_bytes) const {
    std::vector<std::byte> bytes(static_cast<size_t>(num_bytes));
    DSV4_TRY(File(output).ReadAt(plan_.outputs[output].entry.offset + offset, bytes));
    return bytes;
  }
  // Returns what was read.
  Result<std::vector<std::byte>> WriteAndRead(size_t output, int64_t offset,
                                              std::span<const std::byte> bytes) const {
    DSV4_TRY(Write(output, offset, bytes));
    DSV4_ASSIGN_OR_RETURN(std::vector<std::byte> read,
                          Read(output, offset, static_cast<int64_t>(bytes.size())));
    if (!std::equal(bytes.begin(), bytes.end(), read.begin())) {
      return Error(Internal(fmt::format("{}: tensor {}: reading back gave other bytes than were written",
                                        File(output).path(), plan_.outputs[output].entry.name)));
    }
    return read;
  }

 private:
  const io::RandomAccessFile& File(size_t output) const { return files_[plan_.outputs[output].shard]; }

  const Plan& plan_;
  std::span<const io::RandomAccessFile> files_;
};

// Facts about one linear while its batch is being converted.
struct LinearState {
  const LinearJob* job = nullptr;
  Weight weight;
  RecodeTarget target;
  std::vector<ScaleSurvey> surveys;     // A row block each.
  std::vector<Comparison> comparisons;  // A row block each.
};

class Batch {
 public:
  Batch(const Plan& plan, const model::ModelConfig& config, OutputFiles files, ThreadPool& pool, size_t begin,
        size_t end)
      : plan_(plan), config_(config), files_(files), pool_(pool), begin_(begin) {
    for (size_t unit = begin; unit < end; ++unit) {
      for (const LinearJob& job : plan_.units[unit].linears)
        linears_.push_back({&job, model::WeightOf(job.source), job.target, {}, {}});
      linear_ends_.push_back(linears_.size());
    }
  }

  Status Run() {
    DSV4_RETURN_IF_ERROR(CheckSource());
    DSV4_RETURN_IF_ERROR(ChooseGlobalScales());
    return WriteAll();
  }

  // Comparisons of unit begin + `index`.
  std::vector<Comparison> Comparisons(size_t index) const {
    std::vector<Comparison> merged;
    for (size_t i = index == 0 ? 0 : linear_ends_[index - 1]; i < linear_ends_[index]; ++i) {
      const LinearState& linear = linears_[i];
      Comparison total;
      for (const Comparison& block : linear.comparisons) total.Merge(block);
      // Kept bytes were compared as bytes.
      if (linear.job->kept) total.num_values = linear.job->source.rows * linear.job->source.cols;
      merged.push_back(total);
    }
    return merged;
  }

 private:
  // Faults that the loader would refuse: bad scales, NaN in vectors, expert ids out of range.
  Status CheckSource() {
    Tasks tasks;
    for (const LinearState& linear : linears_) {
      tasks.emplace_back([&linear] {
        const std::string& name = linear.job->source.weight_tensor->name;
        DSV4_RETURN_IF_ERROR(ValidateWeight(linear.weight, name));
        return ValidateScaleValues(linear.weight, name);
      });
    }
    for (size_t unit = begin_; unit < begin_ + linear_ends_.size(); ++unit) {
      if (const std::optional<SmallTensor>& small = plan_.units[unit].small; small)
        tasks.emplace_back([this, &small] { return CheckSmallTensor(*small); });
    }
    return RunAll(pool_, tasks);
  }

  Status CheckSmallTensor(const SmallTensor& small) const {
    std::vector<Buffer> copies;
    const Result<TensorView> view = model::RowOf(config_, small.id).kind == model::TensorKind::kExpertIds
                                        ? model::LoadExpertIds(*small.tensor, config_, copies)
                                        : model::LoadVector(*small.tensor, small.shape, copies);
    return view ? Status() : view.error();
  }

  // NVFP4 targets: one number for each scale group of a unit.
  Status ChooseGlobalScales() {
    Tasks tasks;
    for (LinearState& linear : linears_) {
      if (linear.job->kept || linear.target.format != WeightFormat::kNvFp4) continue;
      ForRowBlocks(*linear.job, [&](int64_t, int64_t) { linear.surveys.emplace_back(); });
      size_t index = 0;
      ForRowBlocks(*linear.job, [&](int64_t begin, int64_t end) {
        tasks.emplace_back([&linear, begin, end, block = index++]() -> Status {
          DSV4_ASSIGN_OR_RETURN_STATUS(
              const std::vector<float> values,
              ReadRows(linear.weight, begin, end, linear.job->source.weight_tensor->name));
          linear.surveys[block] = SurveyRows(linear.weight, begin, end, values);
          io::AdviseDontNeed(DataRows(linear.job->source, begin, end));
          return {};
        });
      });
    }
    DSV4_RETURN_IF_ERROR(RunAll(pool_, tasks));
    for (size_t index = 0; index < linear_ends_.size(); ++index) {
      std::map<int, ScaleSurvey> groups;
      const std::span<LinearState> unit =
          std::span(linears_).subspan(index == 0 ? 0 : linear_ends_[index - 1],
                                      linear_ends_[index] - (index == 0 ? 0 : linear_ends_[index - 1]));
      for (const LinearState& linear : unit) {
        for (const ScaleSurvey& survey : linear.surveys) groups[linear.job->scale_group].Merge(survey);
      }
      for (LinearState& linear : unit) {
        if (!linear.surveys.empty()) ChooseGlobalScale(groups[linear.job->scale_group], linear.target);
      }
    }
    return {};
  }

  Status WriteAll() {
    Tasks tasks;
    for (size_t unit = begin_; unit < begin_ + linear_ends_.size(); ++unit) {
      for (const CopyJob& copy : plan_.units[unit].copies) {
        ForRanges(static_cast<int64_t>(copy.source.size()), [&](int64_t offset, int64_t num_bytes) {
          tasks.emplace_back([this, &copy, offset, num_bytes]() -> Status {
            const std::span<const std::byte> bytes =
                copy.source.subspan(static_cast<size_t>(offset), static_cast<size_t>(num_bytes));
            const auto read = files_.WriteAndRead(copy.output, offset, bytes);
            io::AdviseDontNeed(bytes);
            return read ? Status() : read.error();
          });
        });
      }
    }
    for (LinearState& linear : linears_) {
      if (linear.job->kept) continue;
      ForRowBlocks(*linear.job, [&](int64_t, int64_t) { linear.comparisons.emplace_back(); });
      size_t index = 0;
      ForRowBlocks(*linear.job, [&](int64_t begin, int64_t end) {
        tasks.emplace_back([this, &linear, begin, end, block = index++]() -> Status {
          return ConvertRows(linear, begin, end, linear.comparisons[block]);
        });
      });
      if (linear.target.format == WeightFormat::kNvFp4) {
        tasks.emplace_back([this, &linear]() -> Status {
          const auto read = files_.WriteAndRead(linear.job->global_scale, 0,
                                                std::as_bytes(std::span(&linear.target.global_scale, 1)));
          return read ? Status() : read.error();
        });
      }
    }
    return RunAll(pool_, tasks);
  }

  Status ConvertRows(const LinearState& linear, int64_t begin, int64_t end, Comparison& comparison) const {
    const LinearJob& job = *linear.job;
    const RecodeTarget& target = linear.target;
    const int64_t cols = job.source.cols;
    const std::string& name = job.source.weight_tensor->name;
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<float> values, ReadRows(linear.weight, begin, end, name));
    DSV4_ASSIGN_OR_RETURN_STATUS(const RecodedRows rows,
                                 RecodeRows(linear.weight, begin, end, values, target, name));
    RecodedRows read;
    DSV4_ASSIGN_OR_RETURN_STATUS(read.data,
                                 files_.WriteAndRead(job.data, begin * target.DataRowBytes(cols), rows.data));
    if (!rows.scale.empty()) {
      const int64_t offset = begin / target.block_rows * target.ScaleRowBytes(cols);
      DSV4_ASSIGN_OR_RETURN_STATUS(read.scale, files_.WriteAndRead(job.scale, offset, rows.scale));
    }
    comparison = CompareRows(values, cols, read, target);
    io::AdviseDontNeed(DataRows(job.source, begin, end));
    return {};
  }

  const Plan& plan_;
  const model::ModelConfig& config_;
  OutputFiles files_;
  ThreadPool& pool_;
  size_t begin_;
  std::vector<LinearState> linears_;  // Linears of all units, in order.
  std::vector<size_t> linear_ends_;   // Ends of each unit.
};

uint64_t HashOf(const std::vector<uint64_t>& hashes) {
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof(uint64_t));
}

}  // namespace

Result<std::vector<UnitRecord>> Worker::Convert(size_t begin, size_t end) {
  Batch batch(plan_, config_, OutputFiles(plan_, files_), pool_, begin, end);
  DSV4_TRY(batch.Run());
  DSV4_ASSIGN_OR_RETURN(std::vector<UnitRecord> records, Hash(begin, end));
  for (size_t i = 0; i < records.size(); ++i) records[i].comparisons = batch.Comparisons(i);
  return records;
}

Result<std::vector<UnitRecord>> Worker::Hash(size_t begin, size_t end) {
  const OutputFiles files(plan_, files_);
  // Slots first: tasks keep pointers to them.
  std::vector<std::vector<uint64_t>> source_hashes(end - begin);
  std::vector<std::vector<uint64_t>> output_hashes(end - begin);
  std::vector<std::vector<std::span<const std::byte>>> sources;
  std::vector<std::vector<size_t>> outputs;
  for (size_t i = 0; i < end - begin; ++i) {
    sources.push_back(plan_.units[begin + i].SourceRanges());
    outputs.push_back(plan_.units[begin + i].Outputs());
    const auto count = [](int64_t num_bytes) {
      return static_cast<size_t>((num_bytes + kRangeBytes - 1) / kRangeBytes);
    };
    size_t num_source = 0;
    size_t num_output = 0;
    for (const auto& range : sources[i]) num_source += count(static_cast<int64_t>(range.size()));
    for (const size_t output : outputs[i]) num_output += count(plan_.outputs[output].entry.num_bytes);
    source_hashes[i].resize(num_source);
    output_hashes[i].resize(num_output);
  }
  Tasks tasks;
  for (size_t i = 0; i < end - begin; ++i) {
    uint64_t* slot = source_hashes[i].data();
    for (const std::span<const std::byte> range : sources[i]) {
      ForRanges(static_cast<int64_t>(range.size()), [&](int64_t offset, int64_t num_bytes) {
        const auto bytes = range.subspan(static_cast<size_t>(offset), static_cast<size_t>(num_bytes));
        tasks.emplace_back([bytes, slot]() -> Status {
          *slot = XXH3_64bits(bytes.data(), bytes.size());
          io::AdviseDontNeed(bytes);
          return {};
        });
        ++slot;
      });
    }
    slot = output_hashes[i].data();
    for (const size_t output : outputs[i]) {
      ForRanges(plan_.outputs[output].entry.num_bytes, [&](int64_t offset, int64_t num_bytes) {
        tasks.emplace_back([&files, output, offset, num_bytes, slot]() -> Status {
          DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<std::byte> bytes,
                                       files.Read(output, offset, num_bytes));
          *slot = XXH3_64bits(bytes.data(), bytes.size());
          return {};
        });
        ++slot;
      });
    }
  }
  DSV4_TRY(RunAll(pool_, tasks));
  std::vector<UnitRecord> records;
  for (size_t i = 0; i < end - begin; ++i)
    records.push_back({begin + i, HashOf(source_hashes[i]), HashOf(output_hashes[i]), {}});
  return records;
}

}  // namespace dsv4::convert
