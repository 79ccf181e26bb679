// Rank, size and addresses from the environment that launchers set.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "comm/bootstrap.h"
#include "comm/shared_memory.h"

namespace dsv4::comm {
namespace {

Result<int> Number(const char* name, int min, int max) {
  const std::string_view text = std::getenv(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    return Error(InvalidArgument(fmt::format("{}: got '{}', want {} to {}", name, text, min, max)));
  }
  return value;
}

// torchrun's own server listens on the port that it names.
bool PortIsTorchruns() {
  const char* const value = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  return value != nullptr && std::string_view(value) == "True";
}

}  // namespace

Result<std::optional<RankEnvironment>> ReadRankEnvironment() {
  const bool has_rank = std::getenv("RANK") != nullptr;
  const bool has_size = std::getenv("WORLD_SIZE") != nullptr;
  if (!has_rank && !has_size) return std::nullopt;
  if (has_rank != has_size) {
    return Error(
        InvalidArgument(fmt::format("{} is set and {} is not: want both or neither",
                                    has_rank ? "RANK" : "WORLD_SIZE", has_rank ? "WORLD_SIZE" : "RANK")));
  }
  RankEnvironment environment;
  DSV4_ASSIGN_OR_RETURN(environment.size, Number("WORLD_SIZE", 1, kMaxSharedMemoryRanks));
  DSV4_ASSIGN_OR_RETURN(environment.rank, Number("RANK", 0, environment.size - 1));
  if (environment.size == 1) return std::nullopt;
  environment.local_rank = environment.rank;
  if (std::getenv("LOCAL_RANK") != nullptr) {
    DSV4_ASSIGN_OR_RETURN(environment.local_rank, Number("LOCAL_RANK", 0, environment.size - 1));
  }
  if (std::getenv("LOCAL_WORLD_SIZE") != nullptr) {
    DSV4_ASSIGN_OR_RETURN(environment.local_size, Number("LOCAL_WORLD_SIZE", 1, environment.size));
  }
  if (const char* address = std::getenv("MASTER_ADDR")) environment.address = address;
  if (std::getenv("MASTER_PORT") == nullptr) {
    return Error(InvalidArgument("MASTER_PORT: not set, want the port on which rank 0 listens"));
  }
  const int behind = PortIsTorchruns() ? 1 : 0;
  DSV4_ASSIGN_OR_RETURN(environment.port, Number("MASTER_PORT", 1, 65535 - behind));
  environment.port += behind;
  return environment;
}

}  // namespace dsv4::comm
