// Checkpoint directory opened by index or single file: mapped shards, and all tensors by name with
// contradictions refused.
#include "io/checkpoint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/read_file.h"

namespace dsv4::io {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

std::string Join(const std::string& directory, std::string_view name) {
  return fmt::format("{}/{}", directory, name);
}

// Tells whether something lies behind a name, errors (a cyclic link) counted as absent: opening reports them
// with their cause.
bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::not_found &&
         !error;
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return Error(NotFound(fmt::format("checkpoint {}: no such directory{}", directory,
                                      error ? fmt::format(" ({})", error.message()) : "")));
  }
  // The constructor is private, so no make_shared.
  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint(directory));
  if (const std::string index = Join(directory, kIndexFile); Exists(index)) {
    DSV4_TRY(checkpoint->ReadShards(index));
  } else if (Exists(Join(directory, kSingleFile))) {
    DSV4_TRY(checkpoint->OpenFile(std::string(kSingleFile)));
    DSV4_TRY(checkpoint->BuildNameMap());
  } else {
    return Error(
        NotFound(fmt::format("checkpoint {}: has neither {} nor {}", directory, kIndexFile, kSingleFile)));
  }
  DSV4_TRY(checkpoint->CheckNotEmpty());
  return checkpoint;
}

Result<std::shared_ptr<const Checkpoint>> Checkpoint::FromFiles(const std::string& name,
                                                                std::vector<MappedFile> files,
                                                                std::unique_ptr<NumberSource> source) {
  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint(name));
  checkpoint->source_ = std::move(source);
  for (MappedFile& file : files) DSV4_TRY(checkpoint->AddFile(std::move(file)));
  DSV4_TRY(checkpoint->BuildNameMap());
  DSV4_TRY(checkpoint->CheckNotEmpty());
  return checkpoint;
}

Status Checkpoint::CheckNotEmpty() const {
  if (!tensors_.empty()) return {};
  return InvalidArgument(fmt::format("checkpoint {}: holds no tensor", directory_));
}

Status Checkpoint::OpenFile(const std::string& file_name) {
  DSV4_ASSIGN_OR_RETURN_STATUS(MappedFile file, MappedFile::Open(Join(directory_, file_name)));
  return AddFile(std::move(file));
}

Status Checkpoint::AddFile(MappedFile file) {
  DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<StoredTensor> tensors,
                               ParseSafetensors(file.bytes(), file.path()));
  const int file_index = static_cast<int>(files_.size());
  files_.push_back(std::move(file));
  for (StoredTensor& tensor : tensors) {
    tensor.file = file_index;
    tensors_.push_back(std::move(tensor));
  }
  return {};
}

Status Checkpoint::BuildNameMap() {
  by_name_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [other, inserted] = by_name_.emplace(tensors_[i].name, i);
    if (!inserted) {
      return InvalidArgument(fmt::format("{}: also in {}", Describe(tensors_[i]),
                                         files_[static_cast<size_t>(tensors_[other->second].file)].path()));
    }
  }
  return {};
}

Status Checkpoint::ReadShards(const std::string& index_path) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::string json, ReadTextFile(index_path, kMaxHeaderBytes));
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<IndexEntry> entries,
                               ParseSafetensorsIndex(json, index_path));

  std::unordered_map<std::string_view, int> file_index;
  for (const IndexEntry& entry : entries) {
    if (!file_index.emplace(entry.file, static_cast<int>(files_.size())).second) continue;
    DSV4_RETURN_IF_ERROR(
        OpenFile(entry.file).WithContext(fmt::format("{}: shard of tensor {}", index_path, entry.tensor)));
  }
  DSV4_RETURN_IF_ERROR(BuildNameMap());

  std::unordered_set<std::string_view> indexed;
  for (const IndexEntry& entry : entries) {
    const StoredTensor* tensor = Find(entry.tensor);
    if (tensor == nullptr || tensor->file != file_index.at(entry.file)) {
      return InvalidArgument(fmt::format("{}: tensor {}: not in the file the index names, {}", index_path,
                                         entry.tensor, entry.file));
    }
    indexed.insert(entry.tensor);
  }
  for (const StoredTensor& tensor : tensors_) {
    if (!indexed.contains(tensor.name)) {
      return InvalidArgument(fmt::format("{}: not in the index {}", Describe(tensor), index_path));
    }
  }
  return {};
}

const StoredTensor* Checkpoint::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::string Checkpoint::Describe(const StoredTensor& tensor) const {
  const std::string& path = files_[static_cast<size_t>(tensor.file)].path();
  return fmt::format("{}: tensor {}", path, tensor.name);
}

int64_t Checkpoint::num_bytes() const {
  int64_t total = 0;
  for (const MappedFile& file : files_) total += static_cast<int64_t>(file.bytes().size());
  return total;
}

std::optional<uint64_t> Checkpoint::made_from() const {
  if (source_ == nullptr) return std::nullopt;
  const std::string identity = source_->identity();
  uint64_t hash = XXH3_64bits(identity.data(), identity.size());
  for (const MappedFile& file : files_) {
    // The numbers need not be there; where they begin the header ends.
    size_t header = file.bytes().size();
    for (const StoredTensor& tensor : tensors_) {
      if (&files_[static_cast<size_t>(tensor.file)] == &file)
        header = std::min(header, static_cast<size_t>(tensor.bytes.data() - file.bytes().data()));
    }
    hash = XXH3_64bits_withSeed(file.bytes().data(), header, hash);
  }
  return hash;
}

std::optional<uint64_t> Checkpoint::stamp() const {
  if (source_ != nullptr) return made_from();
  std::string facts;
  for (const MappedFile& file : files_) {
    if (file.file() == nullptr) return std::nullopt;
    const FileStamp& stamp = file.file()->stamp();
    facts += fmt::format("|{} {} {} {}", stamp.inode, stamp.size, stamp.mtime, stamp.ctime);
  }
  return XXH3_64bits(facts.data(), facts.size());
}

std::optional<uint64_t> Checkpoint::place() const {
  const std::optional<uint64_t> stamps = stamp();
  if (source_ != nullptr || !stamps) return stamps;
  // A device and an inode name a file on one machine, until it starts anew.
  Result<std::string> facts = ReadFile("/proc/sys/kernel/random/boot_id", FileKind::kAny);
  if (!facts) return std::nullopt;
  for (const MappedFile& file : files_) *facts += fmt::format("|{}", file.file()->stamp().device);
  return XXH3_64bits_withSeed(facts->data(), facts->size(), *stamps);
}

Result<AlignedTensor> AlignTensor(std::span<const std::byte> bytes, DType dtype, Shape shape) {
  DSV4_CHECK(static_cast<int64_t>(bytes.size()) == shape.num_elements() * ElementBytes(dtype))
      << bytes.size() << " bytes for " << shape.ToString();
  AlignedTensor tensor;
  const void* data = bytes.data();
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(ElementBytes(dtype)) != 0) {
    DSV4_ASSIGN_OR_RETURN(tensor.copy, HostMemory().Allocate(bytes.size()));
    std::memcpy(tensor.copy.data(), data, bytes.size());
    data = tensor.copy.data();
  }
  tensor.view = TensorView::Contiguous(data, dtype, shape);
  return tensor;
}

}  // namespace dsv4::io
