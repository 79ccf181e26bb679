// A checkpoint directory: its safetensors files mapped read-only, and every tensor by name.
//
// Sharded when the directory has model.safetensors.index.json, else the one file model.safetensors. Names are
// the files' own; what they mean is the model's business. Immutable and thread-safe after Open.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "tensor/tensor.h"

namespace dsv4::io {

// Makes numbers when they are wanted, for a checkpoint whose bytes are in no file. Thread-safe.
class NumberSource {
 public:
  using Ranges = std::span<const std::span<const std::byte>>;  // Ranges of the mapped files.

  virtual ~NumberSource() = default;
  // The numbers of these ranges are there when it returns, until as many calls of Release.
  virtual void Fetch(Ranges ranges) = 0;
  virtual void Release(Ranges ranges) = 0;
  // From which, with the headers, the numbers follow.
  virtual std::string identity() const = 0;
};

class Checkpoint {
 public:
  // Errors name the file and tensor: a missing directory, file or shard (NotFound), or a corrupt file
  // (DataLoss). InvalidArgument for an index that disagrees with its shards, or a name in two shards.
  static Result<std::shared_ptr<const Checkpoint>> Open(const std::string& directory);

  // The same from files that are mapped already, every one of them a shard. `name` stands for the directory
  // in messages. With a `source` their headers are there, and numbers when they were fetched.
  static Result<std::shared_ptr<const Checkpoint>> FromFiles(const std::string& name,
                                                             std::vector<MappedFile> files,
                                                             std::unique_ptr<NumberSource> source = nullptr);

  const std::string& directory() const { return directory_; }
  std::span<const MappedFile> files() const { return files_; }
  std::span<const StoredTensor> tensors() const { return tensors_; }
  // Null when there is no such tensor. Borrowed from this object.
  const StoredTensor* Find(std::string_view name) const;
  // "<path>/model-00001-of-00002.safetensors: tensor layers.0.ffn_norm.weight", for messages.
  std::string Describe(const StoredTensor& tensor) const;
  // A reader of tensors' numbers fetches them before, and may say when it is done. Files need neither.
  void Fetch(NumberSource::Ranges ranges) const {
    if (source_ != nullptr) source_->Fetch(ranges);
  }
  void Release(NumberSource::Ranges ranges) const {
    if (source_ != nullptr) source_->Release(ranges);
  }
  // Bytes of all files.
  int64_t num_bytes() const;
  // Hash of all that numbers which are made follow from. None: they are the files' bytes.
  std::optional<uint64_t> made_from() const;
  // Hash of the files' inodes, sizes and times, or of what made numbers follow from; none for files in
  // memory. A change of weights by ordinary means makes another; so may a copy.
  std::optional<uint64_t> stamp() const;
  // Two checkpoints whose place() is equal are the same files of one running machine, as they were when both
  // were opened. None where only the bytes of files in memory can tell.
  std::optional<uint64_t> place() const;

 private:
  explicit Checkpoint(std::string directory) : directory_(std::move(directory)) {}
  Status OpenFile(const std::string& file_name);
  Status AddFile(MappedFile file);
  Status CheckNotEmpty() const;
  Status BuildNameMap();
  Status ReadShards(const std::string& index_path);

  std::string directory_;
  std::vector<MappedFile> files_;
  std::unique_ptr<NumberSource> source_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;  // Keys borrow from tensors_.
};

// A tensor's bytes as a view whose address suits `dtype`. The format promises no alignment. Where a tensor
// lies badly its bytes are copied into `copy`, which then must outlive the view. Otherwise `copy` stays empty
// and the view borrows.
struct AlignedTensor {
  TensorView view;
  Buffer copy;
};
// `bytes` holds exactly `shape` of `dtype` (the caller has checked). ResourceExhausted when a copy finds no
// memory.
Result<AlignedTensor> AlignTensor(std::span<const std::byte> bytes, DType dtype, Shape shape);

}  // namespace dsv4::io
