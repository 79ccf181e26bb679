// Effect of --numa: pages of the model over all memory, threads over all CPUs.
#pragma once

#include <vector>

#include "apps/shared/model_flags.h"
#include "base/status.h"
#include "io/checkpoint.h"

namespace dsv4::apps {

// From here on this thread, and those it starts, take new pages from the nodes in turn, where --numa says so
// and there are several. Returns the CPUs of those nodes for the threads of a backend; empty when nothing is
// placed. FailedPrecondition when --numa interleave is refused by the kernel; auto says so on the log and
// goes on without.
Result<std::vector<std::vector<int>>> PlaceOnNodes(const ModelFlags& flags);

// Warns when most of the checkpoint's pages in memory lie on one node although --numa interleaves. An earlier
// process brought them there, and pages of files do not move.
Status CheckPlacement(const ModelFlags& flags, const io::Checkpoint& checkpoint);

}  // namespace dsv4::apps
