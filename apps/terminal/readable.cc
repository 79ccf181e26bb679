// Byte counts with units for people.
#include "apps/terminal/readable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace dsv4::apps {

std::string ReadableBytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string LoadSpeed(int64_t num_bytes, double seconds) {
  const double gigabytes = static_cast<double>(num_bytes) / 1e9;
  return fmt::format("{:.1f} GB in {:.1f} s, {:.1f} GB/s", gigabytes, seconds,
                     gigabytes / std::max(seconds, 1e-9));
}

}  // namespace dsv4::apps
