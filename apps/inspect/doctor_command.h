// `dsv4 doctor`: what this machine has for the engine, and what is missing.
#pragma once

#include <cstdint>
#include <string>

#include "apps/shared/model_flags.h"

namespace dsv4::apps {

struct DoctorOptions {
  ModelFlags model;
  std::string version;           // Version of this binary, as `dsv4 version` says it.
  std::string prefix_cache_dir;  // Folder of shared states; empty: not asked for.
  int64_t prefix_cache_disk_mib = 10240;
  bool json = false;
};

// Loads no model, and writes nothing but what CheckSharedStates says. Returns the process exit code: 1 when something is missing that the options
// ask for.
int RunDoctorCommand(const DoctorOptions& options);

}  // namespace dsv4::apps
