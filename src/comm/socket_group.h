// A group of processes of any machines that reach each other over TCP. What they say to each other is neither
// secret nor proof against forgery on its way: the network has to be one's own.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/socket_mesh.h"

namespace dsv4::comm {

// `links`: connections to all ranks, that to `rank` itself empty. `timeout` is the deadline of every wait.
// All of these collectives are one exchange of all ranks with all ranks, or two for long sums. Parts arrive
// in any order, and every rank waits for the slowest only. Parts made by Split use the same connections. Two
// ranks must make their calls on a group and on its parts in one order.
std::unique_ptr<Communicator> MakeSocketGroup(std::vector<Link> links, int rank,
                                              std::chrono::milliseconds timeout);

}  // namespace dsv4::comm
