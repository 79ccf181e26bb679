#include "apps/shared/load_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace dsv4::apps {

std::string PinnedText(const backend::PinnedLoad& pinned) {
  const double gigabytes = static_cast<double>(pinned.bytes) / 1e9;
  const auto rate = [&](double seconds) { return gigabytes / std::max(seconds, 1e-9); };
  return fmt::format(
      "{:.2f} GB of experts in pinned memory: loading waited {:.2f} s for memory and {:.2f} s for copies; "
      "each of {} "
      "threads copied {:.1f} GB/s, each of {} pinned {:.1f} GB/s",
      gigabytes, pinned.waited_for_memory, pinned.waited_for_copies, pinned.threads, rate(pinned.copying),
      pinned.makers, rate(pinned.pinning));
}

}  // namespace dsv4::apps
