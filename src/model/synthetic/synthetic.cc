// Synthetic checkpoints in memory, with numbers made as they are fetched, and on disk in shards.
#include "model/synthetic/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "base/parallel.h"
#include "io/output_file.h"
#include "io/safetensors_writer.h"
#include "model/arch/architecture.h"
#include "model/synthetic/synthetic_numbers.h"
#include "model/synthetic/synthetic_tensors.h"

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

// Makes whole tensors: those that a range touches.
class SyntheticNumbers final : public io::NumberSource {
 public:
  // `tensors` lie one behind the other in `data`.
  SyntheticNumbers(std::vector<SyntheticTensor> tensors, uint64_t seed, int num_threads,
                   std::span<std::byte> data)
      : tensors_(std::move(tensors)), tables_(tensors_), seed_(seed), threads_(num_threads), data_(data) {
    begins_.push_back(0);
    for (const SyntheticTensor& tensor : tensors_)
      begins_.push_back(begins_.back() + static_cast<size_t>(tensor.spec.num_bytes()));
    num_users_.resize(tensors_.size());
  }

  void Fetch(Ranges ranges) override {
    const std::lock_guard lock(mutex_);
    std::vector<size_t> absent;
    for (const size_t i : Touched(ranges)) {
      if (num_users_[i]++ == 0) absent.push_back(i);
    }
    Make(absent);
  }

  void Release(Ranges ranges) override {
    const std::lock_guard lock(mutex_);
    for (const size_t i : Touched(ranges)) {
      DSV4_CHECK(num_users_[i] > 0) << tensors_[i].spec.name;
      if (--num_users_[i] == 0) GiveBack(i);
    }
  }

  std::string identity() const override { return fmt::format("synthetic numbers, seed {}", seed_); }

 private:
  // Bytes in whole huge pages with tensor `i` that are not in use. A huge page of which a byte is kept takes
  // all of its memory, and tensors end anywhere in one. It goes with the last tensor in it.
  void GiveBack(size_t i) const {
    constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
    const auto base = reinterpret_cast<uintptr_t>(data_.data());
    const auto begin_of = [&](size_t tensor) { return base + begins_[tensor]; };
    uintptr_t begin = begin_of(i) / kHugePage * kHugePage;
    size_t first = i;
    while (first > 0 && begin_of(first) > begin && num_users_[first - 1] == 0) --first;
    if (begin_of(first) > begin) begin += kHugePage;
    uintptr_t end = (begin_of(i + 1) + kHugePage - 1) / kHugePage * kHugePage;
    size_t last = i + 1;
    while (last < tensors_.size() && begin_of(last) < end && num_users_[last] == 0) ++last;
    if (begin_of(last) < end) end -= kHugePage;
    if (begin < end) io::AdviseDontNeed({reinterpret_cast<const std::byte*>(begin), end - begin});
  }

  std::span<std::byte> BytesOf(size_t i) const {
    return data_.subspan(begins_[i], begins_[i + 1] - begins_[i]);
  }

  std::set<size_t> Touched(Ranges ranges) const {
    std::set<size_t> touched;
    for (const std::span<const std::byte> range : ranges) {
      if (range.empty()) continue;
      DSV4_CHECK(data_.data() <= range.data() && range.data() + range.size() <= data_.data() + data_.size());
      const auto begin = static_cast<size_t>(range.data() - data_.data());
      // The last that begins at or before the range; one of 0 bytes is never it.
      const auto after = std::ranges::upper_bound(begins_, begin);
      for (auto i = static_cast<size_t>(after - begins_.begin()) - 1; begins_[i] < begin + range.size(); ++i)
        touched.insert(i);
    }
    return touched;
  }

  // Tensors are handed out one by one: they differ a thousandfold in size.
  void Make(std::span<const size_t> wanted) {
    if (wanted.empty()) return;
    std::atomic<size_t> next = 0;
    threads_.ParallelFor(threads_.num_threads(), 1, [&](int64_t, int64_t) {
      for (size_t n = next++; n < wanted.size(); n = next++) {
        std::span<std::byte> rest = BytesOf(wanted[n]);
        for (TensorBytes bytes(tables_, seed_, tensors_[wanted[n]]); bytes.next_size() > 0;) {
          const auto size = static_cast<size_t>(bytes.next_size());
          bytes.Next(rest.first(size));
          rest = rest.subspan(size);
        }
      }
    });
  }

  const std::vector<SyntheticTensor> tensors_;
  const CodeTables tables_;
  const uint64_t seed_;
  std::vector<size_t> begins_;  // In data_, and its end.
  std::mutex mutex_;
  ThreadPool threads_;
  const std::span<std::byte> data_;
  std::vector<int> num_users_;
};

}  // namespace

Result<std::shared_ptr<const io::Checkpoint>> MakeSyntheticCheckpoint(const std::string& name,
                                                                      const SyntheticOptions& options,
                                                                      int num_threads) {
  DSV4_ASSIGN_OR_RETURN(const std::string config_json, SyntheticConfig(options));
  DSV4_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_json, name));
  std::vector<SyntheticTensor> tensors = PlanSyntheticTensors(config, options.format);
  std::vector<io::TensorSpec> specs;
  std::unordered_map<std::string_view, const SyntheticTensor*> by_name;
  for (const SyntheticTensor& tensor : tensors) {
    specs.push_back(tensor.spec);
    by_name.emplace(tensor.spec.name, &tensor);
  }
  DSV4_ASSIGN_OR_RETURN(const std::string header, io::LayOutSpecs(name, specs));
  std::vector<SyntheticTensor> in_order;
  for (const io::TensorSpec& spec : specs) in_order.push_back(*by_name.at(spec.name));
  std::span<std::byte> bytes;
  DSV4_ASSIGN_OR_RETURN(
      io::MappedFile file,
      io::MappedFile::InMemory(name, header.size() + static_cast<size_t>(TotalBytes(tensors)), bytes));
  std::memcpy(bytes.data(), header.data(), header.size());
  auto numbers = std::make_unique<SyntheticNumbers>(std::move(in_order), options.seed, num_threads,
                                                    bytes.subspan(header.size()));
  std::vector<io::MappedFile> files;
  files.push_back(std::move(file));
  return io::Checkpoint::FromFiles(name, std::move(files), std::move(numbers));
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
    return ResourceExhausted(fmt::format("{}: cannot create: {}", partial, error.message()));
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
