// A loopback communicator: what this rank sends to another is what it gets from that one. For timing a rank's
// own work where there is only one process; numbers stay such as a model has, but are no model's.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace dsv4::comm {

// Rank 0 of `size`, over host memory. Another rank's piece is this one's, from its beginning, and zeros
// behind it. Pieces of others that are no longer than this rank's are whole. No rank is told anything; Send
// and Recv are Unimplemented. Split gives the same again.
std::unique_ptr<Communicator> MirrorGroup(int size);

// Whether MirrorGroup made it: there is no other rank whose memory could be mapped.
bool IsLoopback(const Communicator& group);

}  // namespace dsv4::comm
