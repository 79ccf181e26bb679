// Output file written beside its name and renamed; links, pipes and devices are written through.
#include "io/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>

namespace dsv4::io {
namespace {

constexpr mode_t kNewFileMode = 0666;  // Less the process's umask.

}  // namespace

Status FileError(const std::string& path, std::string_view doing, int error) {
  return ResourceExhausted(fmt::format("{}: cannot {}: {}", path, doing, std::strerror(error)));
}

void OutputFile::CloseAndRemove::operator()(std::FILE* file) const {
  std::fclose(file);
  if (!partial_path.empty()) std::remove(partial_path.c_str());
}

Result<OutputFile> OutputFile::Create(const std::string& path) {
  struct stat there = {};
  const bool exists = ::lstat(path.c_str(), &there) == 0;
  struct stat behind = {};
  if (exists &&
      ::stat(path.c_str(), &behind) == 0) {  // Else a link that leads nowhere: opening it makes the file.
    if (S_ISDIR(behind.st_mode))
      return Error(InvalidArgument(fmt::format("{}: a directory, wanted a file", path)));
    if (S_ISBLK(behind.st_mode))
      return Error(InvalidArgument(fmt::format("{}: a block device, wanted a file", path)));
    if (S_ISSOCK(behind.st_mode))
      return Error(InvalidArgument(fmt::format("{}: a socket, wanted a file", path)));
  }
  const bool through = exists && (!S_ISREG(there.st_mode) || there.st_nlink > 1);
  const std::string opened = through ? path : fmt::format("{}.{}.partial", path, ::getpid());
  // O_EXCL: what another process left under the partial file's name, a link perhaps, is not written to.
  const int how = through ? O_TRUNC : O_EXCL;
  if (!through) ::unlink(opened.c_str());
  const int descriptor = ::open(opened.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, kNewFileMode);
  if (descriptor < 0) return Error(FileError(path, "create"));
  if (exists && !through) static_cast<void>(::fchmod(descriptor, there.st_mode & 07777));
  std::FILE* file = ::fdopen(descriptor, "wb");
  if (file == nullptr) {
    ::close(descriptor);
    return Error(FileError(path, "create"));
  }
  return OutputFile(path, std::unique_ptr<std::FILE, CloseAndRemove>(
                              file, CloseAndRemove{through ? std::string() : opened}));
}

Status OutputFile::Append(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size())
    return FileError(path_, "write");
  return {};
}

Status OutputFile::Finish() {
  if (std::fflush(file_.get()) != 0) return FileError(path_, "write");
  std::string& partial_path = file_.get_deleter().partial_path;
  if (!partial_path.empty()) {
    if (std::rename(partial_path.c_str(), path_.c_str()) != 0) return FileError(path_, "rename");
    partial_path.clear();
  }
  return std::fclose(file_.release()) == 0 ? Status() : FileError(path_, "write");
}

Status CheckOutputPath(const std::string& path, const std::string& input) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error))
    return NotFound(fmt::format("{}: {} is no directory", path, folder.string()));
  if (fs::is_directory(path, error))
    return InvalidArgument(fmt::format("{}: a directory, wanted a file", path));
  if (fs::is_regular_file(path, error) && fs::equivalent(path, input, error))
    return InvalidArgument(fmt::format("{}: the input {} itself, wanted a file of its own", path, input));
  return {};
}

Status WriteTextFile(const std::string& path, std::string_view text) {
  DSV4_ASSIGN_OR_RETURN_STATUS(OutputFile file, OutputFile::Create(path));
  DSV4_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(text))));
  return file.Finish();
}

}  // namespace dsv4::io
