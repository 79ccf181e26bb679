// The ranks of one command: joined as the environment says, or started here for --ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"
#include "comm/local_ranks.h"

namespace dsv4::apps {

class RankGroup {
 public:
  // Makes this process a rank where RANK and WORLD_SIZE are set, and starts the other ranks of --ranks where
  // they are not. Fills flags.group and flags.placement. Does nothing else for one rank. `arguments` are
  // those of this process; `version` is part of what all ranks must have alike. InvalidArgument for flags or
  // an environment that do not fit; otherwise the errors of comm::JoinRanks. Call it on the main thread
  // before others are started.
  static Result<std::unique_ptr<RankGroup>> Enter(ModelFlags& flags, std::vector<std::string> arguments,
                                                  const std::string& version);
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  // Ends the group, if the model has not done so in good order, and the ranks that were started.
  ~RankGroup();

 private:
  RankGroup() = default;

  std::unique_ptr<comm::LocalRanks> started_;
  std::shared_ptr<comm::Communicator> group_;
};

// --placement, or what auto is with these flags.
std::string PlacementOf(const ModelFlags& flags);

// ", 2 ranks in tensor" for a line that names the backend; empty for one rank.
std::string RanksText(const ModelFlags& flags);

// Work of a rank other than 0 instead of a command: loads its part and follows. Returns the exit code. What
// goes wrong is said by rank 0; here it is only logged.
int RunFollower(const ModelFlags& flags);

}  // namespace dsv4::apps
