// Whole files that readers see at once or never, all bytes to an open file, and exclusive locks. The kernel takes a lock back when its
// owner dies. The same words for a full disk everywhere.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/descriptor.h"
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

// Opens the file anew, to write and with further `flags`, and locks it until the descriptor is closed. Waits `patience` at most. NotFound: there
// is none. DeadlineExceeded: another has held it all the time. Unavailable, with the system's reason: it cannot be opened or locked.
Result<Descriptor> LockFile(const std::string& path, int flags, mode_t mode,
                            std::chrono::milliseconds patience);

}  // namespace dsv4
