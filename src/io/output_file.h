// A file that a person named, written whole or not at all, that never replaces what is no ordinary file.
//
// A path of nothing or of an ordinary file gets its bytes by way of a partial file beside it and a rename. A
// reader never sees half of them. A symbolic link, a file with several names, a pipe and a character device
// (/dev/null, /dev/stdout) stay as they are. The bytes go through them as they come.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace dsv4::io {

class OutputFile {
 public:
  // InvalidArgument where a directory, a block device or a socket is; ResourceExhausted where the file cannot
  // be made. Opening a pipe waits for its reader.
  static Result<OutputFile> Create(const std::string& path);

  Status Append(std::span<const std::byte> bytes);
  // Everything is written after it. Without it a partial file is removed, and an old file stays as it was.
  Status Finish();

 private:
  struct CloseAndRemove {
    std::string partial_path;  // Empty when bytes go through.
    void operator()(std::FILE* file) const;
  };
  OutputFile(std::string path, std::unique_ptr<std::FILE, CloseAndRemove> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  std::unique_ptr<std::FILE, CloseAndRemove> file_;
};

// ResourceExhausted: "PATH: cannot DOING: REASON", of errno by default.
Status FileError(const std::string& path, std::string_view doing, int error = errno);

// For work that ends in a file, before it begins. InvalidArgument where `path` is the file of `input`, by
// whatever name, or a directory; NotFound where its folder is not there.
Status CheckOutputPath(const std::string& path, const std::string& input);

// The whole of it at once.
Status WriteTextFile(const std::string& path, std::string_view text);

}  // namespace dsv4::io
