// Devices that a build has code for. Host code, in every build.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4::backend::cuda {

// One of CMake's CUDA architectures.
struct CodeTarget {
  int capability = 0;          // 90 is 9.0.
  bool this_one_only = false;  // "90a": of no other device.
  bool machine_code = false;
  bool ptx = false;  // PTX, which the driver compiles when it is first run.
};

// Targets of CMAKE_CUDA_ARCHITECTURES, separated by commas: "80-virtual,90a-real". One with no suffix is
// both. What is none is left out.
std::vector<CodeTarget> ParseCodeTargets(std::string_view architectures);

enum class CodeFor { kNone, kPtx, kMachineCode };
// The best that there is for a device. Machine code runs on later devices of the same major number too, PTX
// on all later ones.
CodeFor FindCode(const std::vector<CodeTarget>& targets, int capability);

// Targets with machine code, "8.0, 9.0 and 12.0", or "none".
std::string NameMachineCode(const std::vector<CodeTarget>& targets);

}  // namespace dsv4::backend::cuda
