// A null communicator: every call returns at once and exchanges nothing. For plans, which count memory and
// look at no number.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace dsv4::comm {

// Rank `rank` of `size`. Split gives parts of `part_size` ranks, this one at rank mod part_size; gathered and
// received memory is left as it is.
std::unique_ptr<Communicator> ImagineGroup(int rank, int size, int part_size);

// Whether ImagineGroup made it: what it is given need not be readable memory.
bool IsNull(const Communicator& group);

}  // namespace dsv4::comm
