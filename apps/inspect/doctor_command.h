// `dsv4 doctor`: what this machine has for the engine, and what is missing.
#pragma once

#include <string>

#include "apps/shared/model_flags.h"

namespace dsv4::apps {

struct DoctorOptions {
  ModelFlags model;
  std::string version;  // Version of this binary, as `dsv4 version` says it.
  bool json = false;
};

// Reads only, and loads no model. Returns the process exit code: 1 when something is missing that the options
// ask for.
int RunDoctorCommand(const DoctorOptions& options);

}  // namespace dsv4::apps
