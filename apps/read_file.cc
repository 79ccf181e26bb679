#include "apps/read_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace dsv4::apps {

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Error(NotFound(fmt::format("{}: cannot read: {}", path, std::strerror(errno))));
  }
  return std::move(text).str();
}

}  // namespace dsv4::apps
