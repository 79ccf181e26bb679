#include "tokenizer/read_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

namespace dsv4::tokenizer {

Result<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return Error(NotFound(fmt::format("{}: no such file", path)));
  // A pipe or a device has no end to rely on.
  if (!std::filesystem::is_regular_file(status)) {
    return Error(InvalidArgument(fmt::format("{}: not a regular file", path)));
  }
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  if (!stream) return Error(NotFound(fmt::format("{}: cannot be opened for reading", path)));
  const auto size = static_cast<std::streamoff>(stream.tellg());
  if (size < 0) return Error(DataLoss(fmt::format("{}: its size cannot be read", path)));
  if (static_cast<size_t>(size) > max_bytes) {
    return Error(InvalidArgument(fmt::format("{}: got {} bytes, wanted at most {}", path, size, max_bytes)));
  }
  std::string text(static_cast<size_t>(size), '\0');
  stream.seekg(0);
  if (!stream.read(text.data(), size)) {
    return Error(DataLoss(fmt::format("{}: read {} of {} bytes", path, stream.gcount(), size)));
  }
  return text;
}

}  // namespace dsv4::tokenizer
