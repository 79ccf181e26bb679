// How fast the disk under a file reads, measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"
#include "io/mapped_file.h"

namespace dsv4::io {

struct DiskRate {
  double bytes_per_second = 0;
  bool direct =
      false;  // Past the system's file cache. Otherwise the file system knows no such reads, and memory may have helped.
};

// Reads pieces of `piece_bytes` from offsets of `files` that are all over them, several at a time as
// ReadAhead does, for about half a second. The files' own pages in memory stay as they are. NotFound where no
// file has a piece; Unavailable for a file that cannot be opened or read.
Result<DiskRate> MeasureDiskRate(std::span<const MappedFile> files, size_t piece_bytes);

// Bytes that the disk has read for this process since it began, read-ahead included; nothing where
// /proc/self/io does not say.
std::optional<int64_t> BytesReadFromDisk();

}  // namespace dsv4::io
