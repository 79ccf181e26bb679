// Streaming writer of one safetensors file, which is removed unless it is finished.
#include "io/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/text.h"
#include "io/output_file.h"
#include "io/safetensors_layout.h"

namespace dsv4::io {
int64_t TensorSpec::num_bytes() const {
  int64_t bytes = ElementBytes(dtype);
  for (const int64_t dim : dims) bytes *= dim;
  return bytes;
}

void SafetensorsWriter::CloseAndRemove::operator()(std::FILE* file) const {
  std::fclose(file);
  std::remove(partial_path.c_str());
}

Result<std::string> LayOutSpecs(const std::string& path, std::vector<TensorSpec>& specs) {
  std::vector<LayoutEntry> entries;
  entries.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    entries.push_back({.name = spec.name,
                       .dtype_name = std::string(DTypeName(spec.dtype)),
                       .dims = spec.dims,
                       .num_bytes = spec.num_bytes(),
                       .element_bytes = ElementBytes(spec.dtype)});
  }
  DSV4_ASSIGN_OR_RETURN(SafetensorsLayout layout, LayOutSafetensors(path, std::move(entries)));
  for (size_t i = 0; i < specs.size(); ++i) {
    LayoutEntry& entry = layout.tensors[i];
    specs[i] = {std::move(entry.name), *DTypeFromName(entry.dtype_name), std::move(entry.dims)};
  }
  return std::move(layout.header);
}

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path, std::vector<TensorSpec> specs) {
  DSV4_ASSIGN_OR_RETURN(const std::string header, LayOutSpecs(path, specs));
  const std::string partial_path = path + ".partial";
  std::FILE* file = std::fopen(partial_path.c_str(), "wbe");
  if (file == nullptr) return Error(FileError(partial_path, "create"));
  SafetensorsWriter writer(path, std::move(specs),
                           std::unique_ptr<std::FILE, CloseAndRemove>(file, CloseAndRemove{partial_path}));
  writer.remaining_bytes_ = static_cast<int64_t>(header.size());
  for (const TensorSpec& spec : writer.specs_) writer.remaining_bytes_ += spec.num_bytes();
  DSV4_TRY(writer.Append(std::as_bytes(std::span(header))));
  return writer;
}

Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) > remaining_bytes_) {
    return FailedPrecondition(fmt::format("{}: {} appended, {} remain to be written", path_,
                                          Counted(bytes.size(), "byte"), remaining_bytes_));
  }
  if (bytes.empty()) return {};
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size())
    return FileError(path_, "write");
  remaining_bytes_ -= static_cast<int64_t>(bytes.size());
  return {};
}

Status SafetensorsWriter::Finish() {
  if (remaining_bytes_ != 0) {
    return FailedPrecondition(
        fmt::format("{}: {} never written", path_, Counted(remaining_bytes_, "byte was", "bytes were")));
  }
  const int descriptor = ::fileno(file_.get());
  if (std::fflush(file_.get()) != 0 || ::fsync(descriptor) != 0) return FileError(path_, "write");
  // Speed only: written piece by piece, the file lies in small pages of the cache; what maps it reads it into
  // huge ones.
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  if (std::rename(file_.get_deleter().partial_path.c_str(), path_.c_str()) != 0)
    return FileError(path_, "rename");
  file_.reset();
  return {};
}

}  // namespace dsv4::io
