// How ranks of several machines connect to each other, once rank 0 has told them all addresses.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/shared_memory.h"
#include "comm/socket.h"
#include "comm/socket_mesh.h"

namespace dsv4::comm {

// Token of one group, made by rank 0 from the system's random numbers: a caller that does not know it is not
// of the group.
using GroupToken = std::array<uint8_t, 16>;
Result<GroupToken> MakeGroupToken();

struct RankPlace {
  Endpoint endpoint;  // Address to listen at.
  int32_t process = 0;
  int32_t machine = 0;  // Ranks with the same number share a machine.
  std::array<char, 64> host = {};
};
// As it goes from rank 0 to the others.
struct RankMap {
  GroupToken token = {};
  std::array<RankPlace, kMaxSharedMemoryRanks> ranks = {};
};

// Connects `rank` to all others of `size`: it calls those before it and is called, at the socket `listener`,
// by those after it. All do so at once, until `end`; meanwhile `still_wanted` is asked, whose error ends it.
// Callers without the token are sent away.
// Errors: Unavailable names a rank that cannot be reached and where, DeadlineExceeded those that did not
// call.
Result<std::vector<Link>> ConnectRanks(const RankMap& map, int rank, int size, int listener,
                                       std::chrono::steady_clock::time_point end,
                                       const std::function<Status()>& still_wanted);

}  // namespace dsv4::comm
