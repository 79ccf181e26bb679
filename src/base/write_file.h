// Whole files that readers see at once or never, and all bytes to an open file. The same words for a full
// disk everywhere.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace dsv4 {

struct WriteFileOptions {
  bool flush = true;  // To the disk, with the name: a loss of power leaves the old file or the new one.
  bool keep_first =
      false;  // A file that has the name already stays as it is, also if another process makes it meanwhile.
  mode_t mode = 0600;
};

// Writes `text` under a name of its own (PATH.RANDOM.part), and gives it the name `path` when it is whole.
// After an error nothing is left of it. A kill can leave the part. A symbolic link at `path` is replaced.
// Unavailable with the system's reason.
Status WriteFile(const std::string& path, std::string_view text, WriteFileOptions options = {});

// Writes all bytes where the file stands. Unavailable, with `name`, how many bytes are written and the
// system's reason.
Status WriteAll(int descriptor, std::span<const std::byte> bytes, const std::string& name);
Status WriteAll(int descriptor, std::string_view text, const std::string& name);

// Returns when names in the directory are on the disk.
Status SyncDirectory(const std::string& directory);

}  // namespace dsv4
