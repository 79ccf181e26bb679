// What the model says to a group, written with the Communicator's own functions.
#pragma once

#include <span>
#include <vector>

#include "comm/communicator.h"

namespace dsv4::comm {

// Bytes of any length from `root` to all ranks; `data` is replaced on the others.
Status BroadcastBytes(Communicator& group, std::vector<std::byte>& data, int root,
                      Wait wait = Wait::kDeadline);

// Every rank brings numbers, as many as it likes, and gets all ranks' numbers, by rank.
Result<std::vector<std::vector<int32_t>>> GatherLists(Communicator& group, std::span<const int32_t> mine);

// Every rank brings a status and gets the same one: Ok, or that of the lowest rank that has an error, "rank 2: ...".
Status Agree(Communicator& group, const Status& mine);

}  // namespace dsv4::comm
