// Ranks 1 to N - 1 on this machine, as processes of the same command line as rank 0, which starts them.
//
// They end with rank 0 in every case: told to by the group, by the kernel when rank 0 is killed, and by the
// destructor.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace dsv4::comm {

class LocalRanks {
 public:
  // Runs `arguments` (arguments[0] is only a name) as the program of this process, with RANK, WORLD_SIZE,
  // LOCAL_RANK, MASTER_ADDR and MASTER_PORT set. It has no input, and its standard output goes nowhere. Call
  // it on the main thread, before others are started. ResourceExhausted when a process cannot be made.
  static Result<std::unique_ptr<LocalRanks>> Start(int size, int port,
                                                   const std::vector<std::string>& arguments);
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;
  // Gives them a moment to end, then kills them.
  ~LocalRanks();

  // Unavailable names a rank that has ended and how.
  Status Check();

 private:
  LocalRanks() = default;

  std::vector<pid_t> processes_;  // Processes of ranks 1 and on; 0: ended.
};

}  // namespace dsv4::comm
