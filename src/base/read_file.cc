#include "base/read_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

namespace dsv4 {

Result<std::string> ReadFile(const std::string& path, FileKind kind, size_t max_bytes) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return Error(NotFound(fmt::format("{}: no such file", path)));
  if (fs::is_directory(status))
    return Error(InvalidArgument(fmt::format("{}: a directory, wanted a file", path)));
  if (kind == FileKind::kRegular && !fs::is_regular_file(status)) {
    return Error(InvalidArgument(fmt::format("{}: not a regular file", path)));
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return Error(NotFound(fmt::format("{}: cannot be opened for reading", path)));
  std::string text;
  std::array<char, 65536> block;
  while (stream.read(block.data(), block.size()), stream.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(stream.gcount()));
    if (text.size() > max_bytes) {
      return Error(InvalidArgument(fmt::format("{}: longer than {} bytes", path, max_bytes)));
    }
  }
  if (stream.bad())
    return Error(DataLoss(fmt::format("{}: reading failed after {} bytes", path, text.size())));
  return text;
}

}  // namespace dsv4
