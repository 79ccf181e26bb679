// Observer that spools tensors of a run to disk by layer, and makes safetensors of them at the end.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "diag/dump.h"
#include "diag/dump_names.h"
#include "diag/recording.h"
#include "io/safetensors_writer.h"

namespace dsv4::diag {

namespace fs = std::filesystem;

// One layer's bytes until the dump is finished.
class DumpWriter::Spool {
 public:
  Spool(std::string directory, int layer)
      : directory_(std::move(directory)),
        layer_(layer),
        path_((fs::path(directory_) / (DumpFileName(layer) + ".spool")).string()),
        file_(std::fopen(path_.c_str(), "w+b")) {}

  ~Spool() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    std::remove(path_.c_str());
  }
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  Status Append(std::string_view name, const TensorView& tensor, const std::vector<std::byte>& bytes) {
    if (file_ == nullptr) return FileError("create");
    Spooled& spooled = tensors_[DumpTensorName(layer_, name)];
    if (spooled.parts.empty()) {
      spooled.dtype = tensor.dtype;
      spooled.dims = {0};
      for (int i = 1; i < tensor.shape.rank(); ++i) spooled.dims.push_back(tensor.shape[i]);
    }
    spooled.dims[0] += tensor.shape[0];
    spooled.parts.push_back({size_, bytes.size()});
    if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size())
      return FileError("write");
    size_ += static_cast<int64_t>(bytes.size());
    return {};
  }

  // Writes the layer's safetensors.
  Status Convert() {
    std::vector<io::TensorSpec> specs;
    for (const auto& [name, spooled] : tensors_) specs.push_back({name, spooled.dtype, spooled.dims});
    DSV4_ASSIGN_OR_RETURN_STATUS(
        io::SafetensorsWriter writer,
        io::SafetensorsWriter::Create((fs::path(directory_) / DumpFileName(layer_)).string(),
                                      std::move(specs)));
    for (const io::TensorSpec& spec : writer.specs()) {
      for (const Part& part : tensors_.at(spec.name).parts) DSV4_RETURN_IF_ERROR(Copy(part, writer));
    }
    return writer.Finish();
  }

 private:
  struct Part {
    int64_t offset = 0;
    size_t num_bytes = 0;
  };
  struct Spooled {
    DType dtype = DType::kF32;
    std::vector<int64_t> dims;
    std::vector<Part> parts;
  };

  Status FileError(std::string_view doing) const {
    return ResourceExhausted(fmt::format("{}: cannot {}: {}", path_, doing, std::strerror(errno)));
  }

  Status Copy(const Part& part, io::SafetensorsWriter& writer) {
    std::vector<std::byte> piece(std::min<size_t>(part.num_bytes, size_t{1} << 20));
    if (fseeko(file_, part.offset, SEEK_SET) != 0) return FileError("read");
    for (size_t done = 0; done < part.num_bytes;) {
      const size_t count = std::min(piece.size(), part.num_bytes - done);
      if (std::fread(piece.data(), 1, count, file_) != count) return FileError("read");
      DSV4_RETURN_IF_ERROR(writer.Append(std::span(piece).first(count)));
      done += count;
    }
    return {};
  }

  std::string directory_;
  int layer_;
  std::string path_;
  std::FILE* file_;
  int64_t size_ = 0;
  std::map<std::string, Spooled> tensors_;  // By full name.
};

DumpWriter::DumpWriter(ops::OpContext& context, std::string directory)
    : context_(context), directory_(std::move(directory)) {}

DumpWriter::~DumpWriter() {
  spools_.clear();
  // A run that failed leaves nothing behind: a directory with a tensor stays.
  std::error_code ignored;
  if (made_directory_) fs::remove(directory_, ignored);
}

Result<std::unique_ptr<DumpWriter>> DumpWriter::Create(ops::OpContext& context,
                                                       const std::string& directory) {
  std::error_code error;
  const bool made = fs::create_directories(directory, error);
  if (error) return Error(InvalidArgument(fmt::format("dump {}: {}", directory, error.message())));
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> old, SafetensorsIn(directory));
  if (!old.empty()) {
    return Error(
        InvalidArgument(fmt::format("dump {}: holds {} already; give a new directory", directory, old[0])));
  }
  if (const fs::directory_iterator other(directory, error); other != fs::directory_iterator()) {
    return Error(InvalidArgument(
        fmt::format("dump {}: holds {} already; give a new directory", directory, other->path().string())));
  }
  std::unique_ptr<DumpWriter> writer(new DumpWriter(context, directory));
  writer->made_directory_ = made;
  return writer;
}

void DumpWriter::OnTensor(int layer, std::string_view name, const TensorView& tensor) {
  if (!status_.ok()) return;
  const Result<std::vector<std::byte>> bytes = ToHostBytes(context_, tensor);
  if (!bytes) {
    status_ = bytes.error().WithContext(fmt::format("dumping layer {}, {}", layer, name));
    return;
  }
  std::unique_ptr<Spool>& spool = spools_[layer];
  if (spool == nullptr) spool = std::make_unique<Spool>(directory_, layer);
  status_ = spool->Append(name, tensor, *bytes);
}

Status DumpWriter::Finish() {
  DSV4_RETURN_IF_ERROR(status_);
  for (auto& [layer, spool] : spools_) {
    DSV4_RETURN_IF_ERROR(spool->Convert());
    spool.reset();
  }
  spools_.clear();
  return {};
}

}  // namespace dsv4::diag
