// The connections of a rank to all others of its group, and what travels over them (socket_group.h).
//
// Every two ranks have two TCP connections. One carries *data*: frames, in the order in which both make their
// calls. So a call reads its own frame and nothing is kept for later. Every frame begins with its kind, so
// ranks that make different calls are found out. The other carries *notices*: how a rank ends, at most one
// each way. It is read by every rank that waits or asks, whatever data lies unread. It tells that a process
// is gone: at once when it ended, after the deadline when its machine vanished (keep-alive).
//
// Notices and data come by different ways and pass each other. So the notice of an end tells how many
// exchanges with this rank were done. A rank that is in one of these has everything on its way to it and
// waits for it. In shared memory it is the same: the written bytes are there.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/socket.h"

namespace dsv4::comm {

// To another rank.
struct Link {
  Socket data;
  Socket notices;
  pid_t process = 0;
  std::string host;  // The name of its machine; empty where all ranks are on one.
  bool here = true;  // On the machine of this rank.
};

// Content of a frame, for the error when two ranks disagree.
enum class FrameKind : uint32_t {
  kBarrier,
  kBroadcast,
  kAllGather,
  kAllToAll,
  kAllReduce,
  kReduceScatter,
  kSend
};

// Rows of bytes at equal distances; one row where all of it lies together.
struct ByteRows {
  std::byte* data = nullptr;
  int64_t num_rows = 1;
  int64_t row_bytes = 0;
  int64_t stride = 0;

  int64_t num_bytes() const { return num_rows * row_bytes; }
};

class SocketMesh {
 public:
  // Data to `rank`, or comes from it.
  struct Piece {
    int rank;
    ByteRows rows;
  };

  // `links`: one for every rank, that of `rank` itself empty. `timeout` is the deadline of every wait.
  SocketMesh(std::vector<Link> links, int rank, std::chrono::milliseconds timeout);
  SocketMesh(const SocketMesh&) = delete;
  SocketMesh& operator=(const SocketMesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Sends and receives all pieces at the same time, at most one each way with a rank. Both sides of each call
  // it with the same kind, group and size. Memory that is sent is not written to. With Wait::kForever the
  // deadline holds for what has begun only. One thread at a time.
  Status Exchange(FrameKind kind, uint64_t group, std::span<const Piece> out, std::span<const Piece> in,
                  Wait wait);

  // The rest from any thread. The first failure stays; Fail returns the one there is.
  Status Failure() const;
  Status Check();
  Status Fail(const Status& why);
  // Tells the others that this rank takes no more part.
  void Leave();

 private:
  // Notice that one rank tells another of its end.
  struct Notice {
    uint64_t magic = 0;
    uint32_t code = 0;
    uint32_t left = 0;
    uint64_t exchanges = 0;  // Done with the rank that is told.
    std::array<char, 488> message = {};
  };
  struct Peer {
    Link link;
    // With mutex_ held.
    PartialRead<Notice> notice;
    bool ended = false;  // Nothing more comes over the connection for notices.
    // State of the thread that exchanges.
    uint64_t last_exchange = 0;      // Exchange that it takes part in, by number,
    uint64_t begun = 0;              // and how many these are.
    std::atomic<uint64_t> done = 0;  // Count of `begun` ones that are done.
  };
  class Transfer;
  struct Work;

  // Work of an exchange, on its thread.
  Work Begin(FrameKind kind, uint64_t group, std::span<const Piece> out, std::span<const Piece> in);
  Status Move(Work& work);
  void Sleep(const Work& work) const;
  bool MayStillCome(const Work& work);
  Status DataEnded(int rank, int error);
  Status Late(const Work& work);

  // Reason for the group's end, as this rank tells the others when it takes no more part. Ranks that end
  // without a word were then ended by something else.
  Status GiveUp();
  void ReadNotices();
  // With mutex_ held.
  void Record(const Status& why, int cause, uint64_t exchanges);
  void RecordEnd(int rank, int error);
  void SendNotice(const Status& why, bool left);

  std::string Name(int rank) const;  // "process 77 of node3".
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }

  std::vector<Peer> peers_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
  int num_spins_ = 0;
  uint64_t num_exchanges_ = 0;

  mutable std::mutex mutex_;  // Guard of the connections for notices and of what follows.
  std::atomic<bool> failed_ = false;
  bool told_ = false;
  Status failure_;
  int cause_ = 0;                 // The rank whose end it was, or this one,
  uint64_t cause_exchanges_ = 0;  // how many exchanges with this one it had done,
  // and, where it ended without a word, until when what it sent before may come.
  std::optional<std::chrono::steady_clock::time_point> cause_may_send_until_;
};

}  // namespace dsv4::comm
