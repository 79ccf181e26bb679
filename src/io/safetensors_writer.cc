#include "io/safetensors_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/json.h"

namespace dsv4::io {
namespace {

Status FileError(const std::string& path, std::string_view doing) {
  return ResourceExhausted(fmt::format("{}: cannot {}: {}", path, doing, std::strerror(errno)));
}

// The 8 length bytes and the JSON, padded with spaces so that the data begins on a multiple of 8.
std::string BuildHeader(std::span<const TensorSpec> specs) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  int64_t offset = 0;
  for (const TensorSpec& spec : specs) {
    const int64_t end = offset + spec.num_bytes();
    json += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", Json(spec.name).dump(),
                        DTypeName(spec.dtype), fmt::join(spec.dims, ","), offset, end);
    offset = end;
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string bytes;
  for (size_t i = 0; i < 8; ++i) bytes.push_back(static_cast<char>((json.size() >> (8 * i)) & 0xFF));
  return bytes + json;
}

}  // namespace

int64_t TensorSpec::num_bytes() const {
  int64_t bytes = ElementBytes(dtype);
  for (const int64_t dim : dims) bytes *= dim;
  return bytes;
}

void SafetensorsWriter::CloseAndRemove::operator()(std::FILE* file) const {
  std::fclose(file);
  std::remove(partial_path.c_str());
}

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path, std::vector<TensorSpec> specs) {
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& spec : specs) {
    if (!names.insert(spec.name).second) {
      return Error(InvalidArgument(fmt::format("{}: tensor {}: name used twice", path, spec.name)));
    }
  }
  std::stable_sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return ElementBytes(a.dtype) > ElementBytes(b.dtype);
  });
  const std::string partial_path = path + ".partial";
  std::FILE* file = std::fopen(partial_path.c_str(), "wbe");
  if (file == nullptr) return Error(FileError(partial_path, "create"));
  SafetensorsWriter writer(path, std::move(specs),
                           std::unique_ptr<std::FILE, CloseAndRemove>(file, CloseAndRemove{partial_path}));
  const std::string header = BuildHeader(writer.specs_);
  writer.remaining_bytes_ = static_cast<int64_t>(header.size());
  for (const TensorSpec& spec : writer.specs_) writer.remaining_bytes_ += spec.num_bytes();
  DSV4_TRY(writer.Append(std::as_bytes(std::span(header))));
  return writer;
}

Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) > remaining_bytes_) {
    return FailedPrecondition(
        fmt::format("{}: {} bytes appended, {} remain to be written", path_, bytes.size(), remaining_bytes_));
  }
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size())
    return FileError(path_, "write");
  remaining_bytes_ -= static_cast<int64_t>(bytes.size());
  return {};
}

Status SafetensorsWriter::Finish() {
  if (remaining_bytes_ != 0) {
    return FailedPrecondition(fmt::format("{}: {} bytes were never written", path_, remaining_bytes_));
  }
  if (std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0) return FileError(path_, "write");
  if (std::rename(file_.get_deleter().partial_path.c_str(), path_.c_str()) != 0)
    return FileError(path_, "rename");
  file_.reset();
  return {};
}

Status WriteTextFile(const std::string& path, std::string_view text) {
  const std::string partial_path = path + ".partial";
  std::FILE* file = std::fopen(partial_path.c_str(), "wbe");
  if (file == nullptr) return FileError(partial_path, "create");
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed || std::rename(partial_path.c_str(), path.c_str()) != 0) {
    Status error = FileError(path, "write");
    std::remove(partial_path.c_str());
    return error;
  }
  return {};
}

}  // namespace dsv4::io
