// Whole files as strings, for documents small enough to parse at once.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace dsv4 {

inline constexpr size_t kMaxDocumentBytes = size_t{1} << 30;
// Limit for small files of a model directory: config.json, generation_config.json and their like.
inline constexpr size_t kMaxModelDocumentBytes = size_t{64} << 20;

// Kinds of files to read. A file of a model directory must be a regular file: a pipe in a hostile directory
// has no end to rely on. A path that a person typed may also be a pipe or /dev/stdin.
enum class FileKind { kRegular, kAny };

// Errors: NotFound without such a file; DataLoss when reading fails. InvalidArgument when it cannot be opened
// (missing permission), is a directory, not of the wanted kind or longer than `max_bytes`. A regular file is
// never waited for.
Result<std::string> ReadFile(const std::string& path, FileKind kind = FileKind::kRegular,
                             size_t max_bytes = kMaxDocumentBytes);

}  // namespace dsv4
