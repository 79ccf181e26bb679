// What bringing cached experts to pinned memory took (docs/expert-tiers.md).
#pragma once

#include <string>

#include "backend/cuda/cuda_backend.h"

namespace dsv4::apps {

// One line, of some bytes.
std::string PinnedText(const backend::PinnedLoad& pinned);

}  // namespace dsv4::apps
