#include "model/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/json.h"
#include "io/safetensors_writer.h"
#include "model/synthetic_numbers.h"
#include "model/synthetic_tensors.h"

namespace dsv4::model {
namespace {

// Tensors in order, cut where a shard would grow past the limit.
std::vector<std::vector<SyntheticTensor>> CutIntoShards(std::vector<SyntheticTensor> tensors,
                                                        int64_t max_bytes) {
  std::vector<std::vector<SyntheticTensor>> shards(1);
  int64_t bytes = 0;
  for (SyntheticTensor& tensor : tensors) {
    if (bytes > 0 && bytes + tensor.spec.num_bytes() > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.spec.num_bytes();
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

int64_t TotalBytes(std::span<const SyntheticTensor> tensors) {
  int64_t total = 0;
  for (const SyntheticTensor& tensor : tensors) total += tensor.spec.num_bytes();
  return total;
}

Status WriteTensor(TensorBytes bytes, io::SafetensorsWriter& writer) {
  std::vector<std::byte> piece;
  while (bytes.next_size() > 0) {
    piece.resize(static_cast<size_t>(bytes.next_size()));
    bytes.Next(piece);
    DSV4_RETURN_IF_ERROR(writer.Append(piece));
  }
  return {};
}

Status WriteShards(const std::string& directory, std::vector<SyntheticTensor> tensors, uint64_t seed,
                   const SyntheticFiles& files) {
  const int64_t total = TotalBytes(tensors);
  const CodeTables tables(tensors);
  const std::vector<std::vector<SyntheticTensor>> shards =
      CutIntoShards(std::move(tensors), files.max_shard_bytes);
  std::string weight_map;
  int64_t written = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shards.size() == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<io::TensorSpec> specs;
    std::unordered_map<std::string, const SyntheticTensor*> by_name;
    for (const SyntheticTensor& tensor : shards[i]) {
      specs.push_back(tensor.spec);
      by_name.emplace(tensor.spec.name, &tensor);
      weight_map += fmt::format("{}\n    {}: \"{}\"", weight_map.empty() ? "" : ",",
                                Json(tensor.spec.name).dump(), file);
    }
    DSV4_ASSIGN_OR_RETURN_STATUS(
        io::SafetensorsWriter writer,
        io::SafetensorsWriter::Create(fmt::format("{}/{}", directory, file), std::move(specs)));
    for (const io::TensorSpec& spec : writer.specs()) {
      DSV4_RETURN_IF_ERROR(WriteTensor(TensorBytes(tables, seed, *by_name.at(spec.name)), writer));
      written += spec.num_bytes();
      if (files.progress) files.progress(written, total);
    }
    DSV4_RETURN_IF_ERROR(writer.Finish());
  }
  if (shards.size() == 1) return {};
  return io::WriteTextFile(
      directory + "/model.safetensors.index.json",
      fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}\n  }}\n}}\n", total,
                  weight_map));
}

// Writes the data section behind the header. The tensors are handed out one by one: they differ a thousandfold in size.
void FillImage(std::span<std::byte> data, std::span<const SyntheticTensor* const> tensors, uint64_t seed,
               const CodeTables& tables, const InMemory& how) {
  std::vector<size_t> begins = {0};
  for (const SyntheticTensor* tensor : tensors) {
    begins.push_back(begins.back() + static_cast<size_t>(tensor->spec.num_bytes()));
  }
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> written = 0;
  const std::thread::id caller = std::this_thread::get_id();
  how.threads.ParallelFor(how.threads.num_threads(), 1, [&](int64_t, int64_t) {
    for (size_t i = next++; i < tensors.size(); i = next++) {
      TensorBytes bytes(tables, seed, *tensors[i]);
      for (size_t at = begins[i]; bytes.next_size() > 0;) {
        const auto size = static_cast<size_t>(bytes.next_size());
        bytes.Next(data.subspan(at, size));
        at += size;
      }
      written += tensors[i]->spec.num_bytes();
      if (how.progress && std::this_thread::get_id() == caller) {
        how.progress(written, static_cast<int64_t>(data.size()));
      }
    }
  });
}

}  // namespace

Result<std::shared_ptr<const io::Checkpoint>> MakeSyntheticCheckpoint(const std::string& name,
                                                                      const SyntheticOptions& options,
                                                                      const InMemory& how) {
  DSV4_ASSIGN_OR_RETURN(const std::string config_json, SyntheticConfig(options));
  DSV4_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_json, name));
  const std::vector<SyntheticTensor> tensors = PlanSyntheticTensors(config, options.format);
  const CodeTables tables(tensors);
  std::vector<io::TensorSpec> specs;
  std::unordered_map<std::string_view, const SyntheticTensor*> by_name;
  for (const SyntheticTensor& tensor : tensors) {
    specs.push_back(tensor.spec);
    by_name.emplace(tensor.spec.name, &tensor);
  }
  DSV4_ASSIGN_OR_RETURN(const std::string header, io::LayOutSpecs(name, specs));
  std::vector<const SyntheticTensor*> in_order;
  for (const io::TensorSpec& spec : specs) in_order.push_back(by_name.at(spec.name));
  DSV4_ASSIGN_OR_RETURN(
      io::MappedFile file,
      io::MappedFile::InMemory(name, header.size() + static_cast<size_t>(TotalBytes(tensors)),
                               [&](std::span<std::byte> bytes) {
                                 std::memcpy(bytes.data(), header.data(), header.size());
                                 FillImage(bytes.subspan(header.size()), in_order, options.seed, tables, how);
                               }));
  std::vector<io::MappedFile> files;
  files.push_back(std::move(file));
  return io::Checkpoint::FromFiles(name, std::move(files));
}

Status WriteSyntheticCheckpoint(const std::string& directory, const SyntheticOptions& options,
                                const SyntheticFiles& files) {
  namespace fs = std::filesystem;
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::string config_json, SyntheticConfig(options));
  DSV4_ASSIGN_OR_RETURN_STATUS(const ModelConfig config,
                               ParseModelConfig(config_json, "synthetic config.json"));

  const std::string partial = fs::path(directory + "/").parent_path().string() + ".partial";
  std::error_code error;
  const bool occupied =
      fs::exists(directory, error) && !(fs::is_directory(directory, error) && fs::is_empty(directory, error));
  if (occupied) return InvalidArgument(fmt::format("{}: exists and is not an empty directory", directory));
  if (fs::exists(partial, error)) {
    return InvalidArgument(fmt::format("{}: exists, left by an interrupted run? Remove it first", partial));
  }
  if (!fs::create_directories(partial, error)) {
    return InvalidArgument(fmt::format("{}: cannot create: {}", partial, error.message()));
  }
  Status status = io::WriteTextFile(partial + "/config.json", config_json);
  if (status.ok()) {
    status = WriteShards(partial, PlanSyntheticTensors(config, options.format), options.seed, files);
  }
  if (status.ok()) {
    fs::rename(partial, directory, error);  // Replaces an empty directory.
    if (error)
      status =
          InvalidArgument(fmt::format("{}: cannot rename from {}: {}", directory, partial, error.message()));
  }
  if (!status.ok()) fs::remove_all(partial, error);
  return status;
}

}  // namespace dsv4::model