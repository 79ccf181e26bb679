#include "server/api/random_id.h"

#include <fmt/format.h>

#include <random>

namespace dsv4::server {
namespace {

std::random_device& Source() {
  thread_local std::random_device source;
  return source;
}

}  // namespace

std::string RandomId(std::string_view prefix) {
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, Source()(), Source()(), Source()());
}

std::string NumberedCallId(std::string_view prefix, size_t index) {
  return RandomId(fmt::format("{}{:02}_", prefix, index));
}

unsigned long RandomSeed() { return (static_cast<unsigned long>(Source()()) << 32) | Source()(); }

}  // namespace dsv4::server
