// How ranks find each other: the usual environment gives each its number, and rank 0 takes the others in over
// TCP. Ranks of one machine then share memory and need the network no more; ranks of several connect to each
// other.
//
// | Variable     | Meaning                                                                   |
// | RANK         | this process, 0 to WORLD_SIZE - 1                                         |
// | WORLD_SIZE   | how many ranks there are                                                  |
// | LOCAL_RANK   | which of those on this machine; RANK where it is not set                  |
// | MASTER_ADDR  | where rank 0 listens; 127.0.0.1 where it is not set                       |
// | MASTER_PORT  | and on which port; needed. The one behind it where torchrun's own server  |
// |              | listens there, as TORCHELASTIC_USE_AGENT_STORE=True tells                 |
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "comm/socket.h"

namespace dsv4::comm {

struct RankEnvironment {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 0;  // Ranks of this machine (LOCAL_WORLD_SIZE); 0: not said.
  std::string address = "127.0.0.1";
  int port = 0;
};

// nullopt without RANK and WORLD_SIZE, or for a world of one. InvalidArgument names the variable, what it
// holds and what is wanted.
Result<std::optional<RankEnvironment>> ReadRankEnvironment();

// Rank 0's open listener.
class RankListener {
 public:
  // Port 0: a free one. Unavailable when the address cannot be listened on.
  static Result<RankListener> Open(const std::string& address, int port);

  int port() const { return end_.port; }
  int socket() const { return socket_.fd(); }
  const Endpoint& end() const { return end_; }

 private:
  RankListener(Socket socket, const Endpoint& end) : socket_(std::move(socket)), end_(end) {}

  Socket socket_;
  Endpoint end_;
};

struct JoinOptions {
  std::chrono::milliseconds timeout{120000};  // Time limit of joining, and of every wait of the group.
  // Whatever must be the same everywhere, spelt out (version, model, options): other words end the group at
  // once.
  std::string agreement;
  // TCP on one machine too. That of rank 0 counts.
  bool always_tcp = false;
  // Asked while rank 0 waits for the others: an error ends the waiting. May be empty.
  std::function<Status()> still_wanted;
};

// The group of all ranks of `environment`, in shared memory where all run on one machine (comm/machine.h).
// Else it is over TCP, and rank 0 logs that. Rank 0 passes the listener it opened, or none to open it here.
// What strangers say at the ports does no harm.
// Errors, on all ranks that are there: DeadlineExceeded names ranks that did not come. InvalidArgument for
// two of one number, another WORLD_SIZE or another agreement. Unavailable for a rank that ended, or that
// another does not reach.
Result<std::unique_ptr<Communicator>> JoinRanks(const RankEnvironment& environment,
                                                std::optional<RankListener> listener,
                                                const JoinOptions& options);

}  // namespace dsv4::comm
