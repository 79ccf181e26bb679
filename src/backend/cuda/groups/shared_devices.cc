// Setting of tests that several ranks may share one device.
#include <cstdlib>
#include <string_view>

#include "backend/cuda/groups/cuda_group.h"

namespace dsv4::backend {

bool DevicesAreShared() {
  const char* const value = std::getenv("DSV4_CUDA_SHARE_DEVICES");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace dsv4::backend
