// How much memory this machine has for this process: the kernel's figures, and the limit of its control
// group, which is less in a container.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace dsv4 {

struct MachineMemory {
  int64_t total = 0;      // Bytes.
  int64_t available = 0;  // Bytes to be had without swapping; caches of files count as free.
};

// NotFound names the file under `root` that does not read as the kernel writes it. A control group without a
// limit, or none, limits nothing.
Result<MachineMemory> ReadMachineMemory(const std::string& root = "");

}  // namespace dsv4
