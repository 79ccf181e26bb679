// A dump: the tensors of one run as a directory of safetensors, so that any engine can be compared with ours.
// The format is docs/dump-format.md; names and shapes are those of model/graph/observer.h, "layers.<N>." in
// front of what lies in a layer.
//
// Neither side of it keeps a run in memory: tensors are written as they arise and read where they are asked
// for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "diag/tensor_source.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "model/graph/observer.h"
#include "ops/op_context.h"

namespace dsv4::diag {

// Writes what it observes into one file a layer and `outside.safetensors`. The rows of later passes go behind
// those of earlier ones, as in recording.h, so the runs it is made for have one sequence.
//
// How many rows a tensor gets is known at the end only. Until then each layer's bytes lie in a spool file in
// the order in which they came; Finish turns one spool after the other into its safetensors. Memory: one
// tensor at a time. Disk: the dump and its largest layer once more. Without Finish the directory is left as
// it was.
class DumpWriter final : public model::Observer {
 public:
  // `context` of the backend the model runs on; outlives this object. `directory` is made if need be and must
  // hold no safetensors: InvalidArgument for one that does; errors of the file system name the path.
  static Result<std::unique_ptr<DumpWriter>> Create(ops::OpContext& context, const std::string& directory);
  ~DumpWriter() override;
  DumpWriter(const DumpWriter&) = delete;
  DumpWriter& operator=(const DumpWriter&) = delete;

  void OnTensor(int layer, std::string_view name, const TensorView& tensor) override;
  // Reports the first thing that went wrong, while observing or now.
  Status Finish();

 private:
  class Spool;

  DumpWriter(ops::OpContext& context, std::string directory);

  ops::OpContext& context_;
  std::string directory_;
  bool made_directory_ = false;
  Status status_;
  std::map<int, std::unique_ptr<Spool>> spools_;  // By layer.
};

// Every *.safetensors of a directory, mapped.
class DumpFiles final : public TensorSource {
 public:
  // A directory is hostile until checked. Errors (NotFound, DataLoss, InvalidArgument) name file and tensor.
  // Faults are a name twice, rank 0, a layer number that is none, or a dtype other than F32, F16, BF16, I32
  // or I64.
  static Result<DumpFiles> Open(const std::string& directory);

  bool Has(int layer, std::string_view name) const override;
  Result<std::vector<float>> Rows(int layer, std::string_view name, int64_t first_row, int64_t num_rows,
                                  int64_t width) override;
  bool rounds_to_bf16() const override;

  size_t num_tensors() const { return tensors_.size(); }
  // The ids of pass.token_ids; -1 for what no vocabulary has. Empty without it.
  std::vector<int32_t> TokenIds() const;

 private:
  struct Entry {
    io::StoredTensor stored;  // Its bytes lie in files_.
    int64_t width = 1;
  };

  std::vector<io::MappedFile> files_;
  std::map<std::pair<int, std::string>, Entry, std::less<>> tensors_;
};

}  // namespace dsv4::diag
