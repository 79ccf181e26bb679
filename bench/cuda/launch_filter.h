// What a kernel costs where it stands: the linker gives this bench's launches to a filter first (--wrap, CMakeLists.txt), which may leave
// out those of one kernel. A step without them computes nonsense, and takes as much less time as they cost.
#pragma once

#include <map>
#include <string>

namespace dsv4::bench {

// Kernels that were launched or captured since the last call, by name and width, and how often.
std::map<std::string, int> TakeLaunchedKernels();

// From now on launches of this name are left out of what is queued and captured; empty: none.
void LeaveOut(std::string name);

}  // namespace dsv4::bench
