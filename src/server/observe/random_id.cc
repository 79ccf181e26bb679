// Unguessable ids and seeds from the system's random source.
#include "server/observe/random_id.h"

#include <fmt/format.h>

#include <chrono>
#include <random>

namespace dsv4::server {

// Made anew for each use: it holds nothing, and one for each thread would need memory that glibc does not do
// without.
std::string RandomId(std::string_view prefix) {
  std::random_device source;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, source(), source(), source());
}

std::string TimedId(std::string_view prefix) {
  std::random_device source;
  const std::chrono::nanoseconds now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{}{:016x}{:08x}{:08x}", prefix, now.count(), source(), source());
}

std::string NumberedCallId(std::string_view prefix, size_t index) {
  return RandomId(fmt::format("{}{:02}_", prefix, index));
}

unsigned long RandomSeed() {
  std::random_device source;
  return (static_cast<unsigned long>(source()) << 32) | source();
}

}  // namespace dsv4::server
