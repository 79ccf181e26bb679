// A group whose data lies in the memory of GPUs and travels by NCCL; its ranks have met on their hosts
// before, in another group.
//
// Calls return when the exchange is queued on the device's stream: buffers may be used again by what is
// queued after. Sums are taken here, in rank order, and not by NCCL, which promises no order. Barrier is the
// hosts'; Broadcast, Send and Recv know the deadline only.
//
// Failure is the hosts' group's. A thread of each rank looks every 20 ms whether that group is whole. While
// exchanges are queued it also looks whether the device got on within the deadline. If not, the hosts' group
// fails and NCCL's communicator is aborted, which frees a kernel that waits for a rank that is gone. Check
// and every later call return the error. Results of the stream are invalid then: call Check before using
// them. NCCL does not tell which rank is late, so then the error names the rank that waited.
#pragma once

#include <chrono>
#include <memory>

#include "comm/communicator.h"
#include "comm/device_stream.h"
#include "comm/nccl_library.h"

namespace dsv4::comm {

struct NcclOptions {
  std::chrono::milliseconds timeout{120000};
  std::chrono::milliseconds set_up_timeout{
      120000};  // Time limit of making the group: seconds where ranks meet over sockets.
};

// The ranks of `hosts`, all of which call it; `hosts` and `device` outlive the group. `keeps` ends with the group,
// after all else of it. Errors, the same on all ranks: what one of them has to say, with its number, before NCCL
// is asked; NCCL's own; those of `hosts`.
Result<std::unique_ptr<Communicator>> JoinNccl(Communicator& hosts, DeviceStream& device,
                                               const Result<NcclLibrary>& library, const NcclOptions& options,
                                               std::shared_ptr<void> keeps = nullptr);

}  // namespace dsv4::comm
