// Plan of a conversion from headers: formats by module, output tensors with offsets, and units of work.
#include "convert/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/text.h"

namespace dsv4::convert {
namespace {

using model::StoredLinear;
using model::TensorId;
using model::TensorKind;
using model::TensorRow;
using model::TensorScope;

constexpr int64_t kDefaultFp8Block = 128;

bool IsStoredAs(const StoredLinear& stored, WeightFormat format) {
  return stored.format == format && (format != WeightFormat::kPlain || stored.data_dtype == DType::kBF16);
}

RequestedFormat FormatFor(const TensorRow& row, const StoredLinear& stored, const FormatRequest& request) {
  if (row.kind == TensorKind::kEmbedding) return std::nullopt;
  if (row.scope == TensorScope::kExpert) return request.experts;
  if (model::IsFp8InRelease(row.id)) return request.dense;
  const bool expand = stored.format != WeightFormat::kPlain &&
                      (request.dense == WeightFormat::kPlain || request.dense == WeightFormat::kFp8Block);
  return expand ? RequestedFormat(WeightFormat::kPlain) : std::nullopt;
}

class Planner {
 public:
  Planner(const io::Checkpoint& checkpoint, const model::ModelConfig& config,
          const model::ResolvedCheckpoint& resolved, const FormatRequest& request)
      : checkpoint_(checkpoint), config_(config), resolved_(resolved), request_(request) {}

  Result<Plan> Run(int64_t max_shard_bytes) {
    for (const TensorRow& row : config_.tensors) {
      if (row.scope == TensorScope::kModel) AddRow(row, "", model::LayerPlan(), resolved_[row.id]);
    }
    for (size_t i = 0; i < resolved_.layers.size(); ++i) AddLayer(i);
    for (const io::StoredTensor* tensor : resolved_.skipped_tensors) AddSkipped(*tensor);
    DSV4_TRY(status_);
    DSV4_TRY(CheckNames());
    DSV4_TRY(LayOut(max_shard_bytes));
    return std::move(plan_);
  }

 private:
  void AddLayer(size_t index) {
    const model::ResolvedLayer& layer = resolved_.layers[index];
    const model::LayerPlan& layer_config = config_.layers[index];
    const std::string scope = fmt::format("layers.{}.", index);
    for (const TensorRow& row : config_.tensors) {
      const bool shared =
          row.id == TensorId::kSharedW1 || row.id == TensorId::kSharedW2 || row.id == TensorId::kSharedW3;
      if (row.scope == TensorScope::kExpert || shared || !model::LayerHas(row, layer_config)) continue;
      AddRow(row, scope, layer_config, layer[row.id]);
    }
    AddExpert(scope, "", {TensorId::kSharedW1, TensorId::kSharedW3, TensorId::kSharedW2},
              {&layer[TensorId::kSharedW1].linear, &layer[TensorId::kSharedW3].linear,
               &layer[TensorId::kSharedW2].linear});
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      const model::ResolvedExpert& expert = layer.experts[e];
      AddExpert(scope, std::to_string(e), {TensorId::kExpertW1, TensorId::kExpertW3, TensorId::kExpertW2},
                {&expert.w1, &expert.w3, &expert.w2});
    }
  }

  // w1, w3 (which share a global scale) and w2.
  void AddExpert(const std::string& scope, const std::string& number, const std::array<TensorId, 3>& ids,
                 const std::array<const StoredLinear*, 3>& linears) {
    Unit unit;
    for (size_t i = 0; i < ids.size(); ++i) {
      AddLinear(unit, model::RowOf(config_, ids[i]), scope, number, *linears[i],
                /*scale_group=*/i == 2 ? 1 : 0);
    }
    plan_.units.push_back(std::move(unit));
  }

  void AddRow(const TensorRow& row, const std::string& scope, const model::LayerPlan& layer,
              const model::ResolvedTensor& found) {
    Unit unit;
    if (row.kind == TensorKind::kLinear || row.kind == TensorKind::kEmbedding) {
      if (!found.linear.found()) return;  // A tied head.
      AddLinear(unit, row, scope, "", found.linear, 0);
    } else if (row.kind == TensorKind::kTable) {
      LinearJob job;
      job.name = scope + model::ExpandNames(row.names).front();
      job.source = found.linear;
      KeepLinear(unit, job);
    } else {
      AddCopy(unit, scope + model::ExpandNames(row.names).front(), found.tensor->dtype_name,
              found.tensor->dims, ElementBytes(*found.tensor->dtype), found.tensor->bytes);
      unit.small = SmallTensor{found.tensor, row.id, row.shape(config_, layer)};
    }
    plan_.units.push_back(std::move(unit));
  }

  void AddLinear(Unit& unit, const TensorRow& row, const std::string& scope, const std::string& expert,
                 const StoredLinear& stored, int scale_group) {
    LinearJob job;
    const std::string pattern = model::ExpandNames(row.names).front();
    job.module = job.name = pattern;
    if (const size_t hash = pattern.find('#'); hash != std::string::npos) {
      job.module = pattern.substr(0, hash) + pattern.substr(hash + 2);
      job.name = pattern.substr(0, hash) + expert + pattern.substr(hash + 1);
    }
    job.name = scope + job.name;
    job.source = stored;
    job.scale_group = scale_group;
    const RequestedFormat format = FormatFor(row, stored, request_);
    if (!format || IsStoredAs(stored, *format)) {
      job.kept = true;
      KeepLinear(unit, job);
    } else {
      ConvertLinear(job, *format);
    }
    unit.linears.push_back(std::move(job));
  }

  void ConvertLinear(LinearJob& job, WeightFormat format) {
    const int64_t rows = job.source.rows;
    const int64_t cols = job.source.cols;
    const int64_t block = format == WeightFormat::kMxFp4   ? kMxFp4Block
                          : format == WeightFormat::kNvFp4 ? kNvFp4Block
                                                           : 1;
    if (cols % block != 0 && status_.ok()) {
      status_ = InvalidArgument(fmt::format("tensor {}: {}, {} wants a multiple of {}",
                                            job.source.weight_tensor->name, Counted(cols, "column"),
                                            WeightFormatName(format), block));
    }
    job.target.format = format;
    job.target.rule = request_.rule;
    switch (format) {
      case WeightFormat::kPlain:
        job.data = AddOutput(job.name + ".weight", DType::kBF16, {rows, cols});
        return;
      case WeightFormat::kFp8Block: {
        const int64_t block_rows = config_.quantization.weight_block_rows.value_or(kDefaultFp8Block);
        const int64_t block_cols = config_.quantization.weight_block_cols.value_or(kDefaultFp8Block);
        job.target.block_rows = block_rows;
        job.target.block_cols = block_cols;
        job.data = AddOutput(job.name + ".weight", DType::kF8E4M3, {rows, cols});
        job.scale = AddOutput(job.name + ".scale", DType::kF8E8M0,
                              {(rows + block_rows - 1) / block_rows, (cols + block_cols - 1) / block_cols});
        return;
      }
      case WeightFormat::kMxFp4:
        job.data = AddOutput(job.name + ".weight", DType::kI8, {rows, cols / 2});
        job.scale = AddOutput(job.name + ".scale", DType::kF8E8M0, {rows, cols / kMxFp4Block});
        return;
      case WeightFormat::kNvFp4:
        job.data = AddOutput(job.name + ".weight", DType::kU8, {rows, cols / 2});
        job.scale = AddOutput(job.name + ".weight_scale", DType::kF8E4M3, {rows, cols / kNvFp4Block});
        job.global_scale = AddOutput(job.name + ".weight_scale_2", DType::kF32, {});
        return;
    }
  }

  void KeepLinear(Unit& unit, const LinearJob& job) {
    const StoredLinear& stored = job.source;
    const auto copy = [&](std::string_view suffix, DType dtype, std::vector<int64_t> dims,
                          std::span<const std::byte> bytes) {
      AddCopy(unit, job.name + std::string(suffix), std::string(DTypeName(dtype)), std::move(dims),
              ElementBytes(dtype), bytes);
    };
    const std::vector<int64_t> scale_dims = {stored.scale_rows, stored.scale_cols};
    switch (stored.format) {
      case WeightFormat::kPlain:
        return copy(".weight", stored.data_dtype, {stored.rows, stored.cols}, stored.data);
      case WeightFormat::kFp8Block:
        copy(".weight", DType::kF8E4M3, {stored.rows, stored.cols}, stored.data);
        return copy(".scale", stored.scale_dtype, scale_dims, stored.scale);
      case WeightFormat::kMxFp4:
        copy(".weight", DType::kI8, {stored.rows, stored.cols / 2}, stored.data);
        return copy(".scale", DType::kF8E8M0, scale_dims, stored.scale);
      case WeightFormat::kNvFp4: {
        const bool divides = stored.global_scale_divides;
        copy(divides ? ".weight_packed" : ".weight", DType::kU8, {stored.rows, stored.cols / 2}, stored.data);
        copy(".weight_scale", DType::kF8E4M3, scale_dims, stored.scale);
        copy(divides ? ".weight_global_scale" : ".weight_scale_2", DType::kF32, {}, stored.global_scale);
        // This engine never reads it; others that run the kept weights with quantised activations do.
        std::string name = stored.weight_tensor->name;
        constexpr std::string_view kWeight = ".weight";
        if (divides || !name.ends_with(kWeight)) return;
        name.replace(name.size() - kWeight.size(), kWeight.size(), ".input_scale");
        const io::StoredTensor* input_scale = checkpoint_.Find(name);
        if (input_scale != nullptr && input_scale->dtype == DType::kF32)
          copy(".input_scale", DType::kF32, input_scale->dims, input_scale->bytes);
        return;
      }
    }
  }

  void AddSkipped(const io::StoredTensor& tensor) {
    constexpr std::string_view kPrefix = "model.";
    const bool prefixed = tensor.name.starts_with(kPrefix);
    const int64_t num_elements = [&] {
      int64_t count = 1;
      for (const int64_t dim : tensor.dims) count *= dim;
      return count;
    }();
    const auto num_bytes = static_cast<int64_t>(tensor.bytes.size());
    Unit unit;
    AddCopy(unit, prefixed ? tensor.name.substr(kPrefix.size()) : tensor.name, tensor.dtype_name, tensor.dims,
            num_elements > 0 ? std::max<int64_t>(1, num_bytes / num_elements) : 1, tensor.bytes);
    plan_.units.push_back(std::move(unit));
    ++plan_.num_draft_and_vision;
    plan_.drafts_are_quantised |=
        tensor.dtype == DType::kF8E4M3 || tensor.dtype == DType::kI8 || tensor.dtype == DType::kU8;
  }

  void AddCopy(Unit& unit, const std::string& name, const std::string& dtype_name, std::vector<int64_t> dims,
               int64_t element_bytes, std::span<const std::byte> bytes) {
    unit.copies.push_back({bytes, plan_.outputs.size()});
    plan_.outputs.push_back({.entry = {.name = name,
                                       .dtype_name = dtype_name,
                                       .dims = std::move(dims),
                                       .num_bytes = static_cast<int64_t>(bytes.size()),
                                       .element_bytes = element_bytes}});
  }

  size_t AddOutput(const std::string& name, DType dtype, std::vector<int64_t> dims) {
    int64_t num_bytes = ElementBytes(dtype);
    for (const int64_t dim : dims) num_bytes *= dim;
    plan_.outputs.push_back({.entry = {.name = name,
                                       .dtype_name = std::string(DTypeName(dtype)),
                                       .dims = std::move(dims),
                                       .num_bytes = num_bytes,
                                       .element_bytes = ElementBytes(dtype)}});
    return plan_.outputs.size() - 1;
  }

  Status CheckNames() const {
    std::unordered_set<std::string_view> names;
    for (const OutputTensor& output : plan_.outputs) {
      if (!names.insert(output.entry.name).second)
        return InvalidArgument(fmt::format("checkpoint {}: two tensors would be called {}",
                                           checkpoint_.directory(), output.entry.name));
    }
    return {};
  }

  // Tensors in order, cut where a shard would grow past the limit.
  Status LayOut(int64_t max_shard_bytes) {
    std::vector<std::vector<io::LayoutEntry>> shards(1);
    int64_t bytes = 0;
    std::unordered_map<std::string, size_t> output_of;
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      const io::LayoutEntry& entry = plan_.outputs[i].entry;
      if (bytes > 0 && bytes + entry.num_bytes > max_shard_bytes) {
        shards.emplace_back();
        bytes = 0;
      }
      bytes += entry.num_bytes;
      shards.back().push_back(entry);
      output_of.emplace(entry.name, i);
    }
    for (size_t i = 0; i < shards.size(); ++i) {
      Shard shard;
      shard.file_name = shards.size() == 1
                            ? "model.safetensors"
                            : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      DSV4_ASSIGN_OR_RETURN_STATUS(io::SafetensorsLayout layout,
                                   io::LayOutSafetensors(shard.file_name, std::move(shards[i])));
      for (io::LayoutEntry& entry : layout.tensors) {
        OutputTensor& output = plan_.outputs[output_of.at(entry.name)];
        output.shard = i;
        output.entry.offset = entry.offset;
      }
      shard.header = std::move(layout.header);
      shard.file_bytes = layout.file_bytes;
      plan_.shards.push_back(std::move(shard));
    }
    return {};
  }

  const io::Checkpoint& checkpoint_;
  const model::ModelConfig& config_;
  const model::ResolvedCheckpoint& resolved_;
  const FormatRequest& request_;
  Plan plan_;
  Status status_;
};

}  // namespace

std::string LinearJob::FormatName() const {
  if (kept) return source.FormatName();
  if (target.format == WeightFormat::kPlain) return "bf16";
  if (target.format != WeightFormat::kFp8Block) return std::string(WeightFormatName(target.format));
  return fmt::format("fp8-block [{}, {}] {}", target.block_rows, target.block_cols,
                     DTypeName(DType::kF8E8M0));
}

int64_t Unit::source_bytes() const {
  int64_t bytes = 0;
  for (const std::span<const std::byte> range : SourceRanges()) bytes += static_cast<int64_t>(range.size());
  return bytes;
}

std::vector<std::span<const std::byte>> Unit::SourceRanges() const {
  std::vector<std::span<const std::byte>> ranges;
  for (const CopyJob& copy : copies) ranges.push_back(copy.source);
  for (const LinearJob& linear : linears) {
    if (linear.kept) continue;
    ranges.insert(ranges.end(), {linear.source.data, linear.source.scale, linear.source.global_scale});
  }
  return ranges;
}

std::vector<size_t> Unit::Outputs() const {
  std::vector<size_t> outputs;
  for (const CopyJob& copy : copies) outputs.push_back(copy.output);
  for (const LinearJob& linear : linears) {
    if (linear.kept) continue;
    outputs.push_back(linear.data);
    if (linear.target.format != WeightFormat::kPlain) outputs.push_back(linear.scale);
    if (linear.target.format == WeightFormat::kNvFp4) outputs.push_back(linear.global_scale);
  }
  return outputs;
}

int64_t Plan::source_bytes() const {
  int64_t bytes = 0;
  for (const Unit& unit : units) bytes += unit.source_bytes();
  return bytes;
}

int64_t Plan::output_bytes() const {
  int64_t bytes = 0;
  for (const Shard& shard : shards) bytes += shard.file_bytes;
  return bytes;
}

Result<Plan> MakePlan(const io::Checkpoint& checkpoint, const model::ModelConfig& config,
                      const model::ResolvedCheckpoint& resolved, const FormatRequest& request,
                      int64_t max_shard_bytes) {
  return Planner(checkpoint, config, resolved, request).Run(max_shard_bytes);
}

}  // namespace dsv4::convert
