// What the model says to a group, written with the Communicator's own functions.
#pragma once

#include <span>
#include <vector>

#include "comm/communicator.h"

namespace dsv4::comm {

// Bytes of any length from `root` to everybody; `data` is replaced on the others.
Status BroadcastBytes(Communicator& group, std::vector<std::byte>& data, int root,
                      Wait wait = Wait::kDeadline);

// Every rank brings rows [num_rows, width] and for each the row of `out` [out.size() / width, width] it belongs to, and
// gets their sums: out[t] = ((0 + a) + b) + ... over the rows for t, rank 0's first, a rank's in the order given. One
// rank alone that brings all rows in that order gets the same bits. Targets of other ranks are theirs to answer for:
// Internal when one lies outside `out`.
Status AllReduceRows(Communicator& group, std::span<const float> rows, std::span<const int32_t> targets,
                     int64_t width, std::span<float> out);

// Every rank brings a status and gets the same one: Ok, or that of the lowest rank that has an error, "rank 2: ...".
Status Agree(Communicator& group, const Status& mine);

}  // namespace dsv4::comm
