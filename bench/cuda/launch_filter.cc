#include "bench/cuda/launch_filter.h"

#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <utility>

namespace dsv4::bench {
namespace {

std::map<std::string, int> launched;
std::string left_out;

// "MixDotsKernel<Bf16> 1x25x4": what is launched and how widely.
std::string NameOf(const cudaLaunchConfig_t& config, const void* kernel) {
  static std::map<const void*, std::string> names;
  std::string& name = names[kernel];
  if (name.empty()) {
    const char* mangled = nullptr;
    if (cudaFuncGetName(&mangled, kernel) != cudaSuccess || mangled == nullptr) mangled = "?";
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> readable(
        abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
    name = status == 0 ? readable.get() : mangled;
    if (const size_t at = name.rfind("(anonymous namespace)::"); at != std::string::npos) {
      name = name.substr(at + 23);
    }
    if (const size_t arguments = name.find('('); arguments != std::string::npos && arguments > 0) {
      const size_t brackets = name.find(">(");
      name = name.substr(0, brackets == std::string::npos ? arguments : brackets + 1);
    }
  }
  return fmt::format("{} {}x{}x{} of {}", name, config.gridDim.x, config.gridDim.y, config.gridDim.z,
                     config.blockDim.x);
}

}  // namespace

std::map<std::string, int> TakeLaunchedKernels() { return std::exchange(launched, {}); }
void LeaveOut(std::string name) { left_out = std::move(name); }

extern "C" {

cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** arguments);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** arguments) {
  const std::string name = NameOf(*config, kernel);
  ++launched[name];
  if (name == left_out) return cudaSuccess;
  return __real_cudaLaunchKernelExC(config, kernel, arguments);
}

}  // extern "C"

}  // namespace dsv4::bench
