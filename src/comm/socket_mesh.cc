// Exchange over all connections of a rank at once: frames, polling, lost ranks and strays named.
#include "comm/socket_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/text.h"
#include "comm/waiting.h"

namespace dsv4::comm {
namespace {

constexpr uint32_t kFrame = 0x34465644;           // "DVF4"
constexpr uint64_t kNotice = 0x3453574E34565344;  // "DSV4NWS4"

// Looks at the sockets before a rank sleeps: a millisecond's where no other thread wants the core.
constexpr int kSocketSpins = 20;
constexpr int kPatientSocketSpins = 1500;
// For what is on its way from a rank of which it is known already that it has ended.
constexpr std::chrono::milliseconds kOnItsWay(1000);
// Pieces of memory that are handed to the system at a time.
constexpr size_t kMaxPieces = 128;

struct FrameHeader {
  uint32_t magic = kFrame;
  FrameKind kind = FrameKind::kBarrier;
  uint64_t group = 0;
  uint64_t num_bytes = 0;

  friend bool operator==(const FrameHeader& a, const FrameHeader& b) = default;
};

const char* NameOf(FrameKind kind) {
  switch (kind) {
    case FrameKind::kBarrier:
      return "a barrier";
    case FrameKind::kBroadcast:
      return "a broadcast";
    case FrameKind::kAllGather:
      return "an all-gather";
    case FrameKind::kAllToAll:
      return "an all-to-all";
    case FrameKind::kAllReduce:
      return "an all-reduce";
    case FrameKind::kReduceScatter:
      return "a reduce-scatter";
    case FrameKind::kSend:
      return "a message";
  }
  return "what is no frame";
}
std::string Describe(const FrameHeader& header) {
  if (header.magic != kFrame) return "what is no frame";
  return fmt::format("{} of {} (group {:x})", NameOf(header.kind), Counted(header.num_bytes, "byte"),
                     header.group);
}

void Set(const Socket& socket, int level, int option, int value) {
  (void)::setsockopt(socket.fd(), level, option, &value, sizeof(value));
}
// Frames are whole when they are sent; and a rank that has vanished with its machine is noticed within
// `timeout`.
void SetUp(const Link& link, std::chrono::milliseconds timeout) {
  for (const Socket* socket : {&link.data, &link.notices}) Set(*socket, IPPROTO_TCP, TCP_NODELAY, 1);
  const auto seconds = static_cast<int>(std::chrono::duration_cast<std::chrono::seconds>(timeout).count());
  Set(link.notices, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(link.notices, IPPROTO_TCP, TCP_KEEPIDLE, std::clamp(seconds / 2, 1, 30000));
  Set(link.notices, IPPROTO_TCP, TCP_KEEPINTVL, std::clamp(seconds / 6, 1, 30000));
  Set(link.notices, IPPROTO_TCP, TCP_KEEPCNT, 3);
  Set(link.notices, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout.count()));
}

}  // namespace

// One frame on its way to a rank or from one.
class SocketMesh::Transfer {
 public:
  Transfer(int rank, const FrameHeader& header, const ByteRows& rows, bool sends)
      : rank_(rank), sends_(sends), want_(header), header_(header), rows_(rows) {}

  int rank() const { return rank_; }
  bool sends() const { return sends_; }
  bool begun() const { return moved_ > 0; }
  bool complete() const { return moved_ == kHeaderBytes + rows_.num_bytes(); }
  // Nothing where the header that came is the one that was wanted, or has not come.
  const FrameHeader* Stray() const {
    return moved_ >= kHeaderBytes && !(header_ == want_) ? &header_ : nullptr;
  }
  const FrameHeader& wanted() const { return want_; }

  // Moves as much as the socket takes or has; adds to `moved`. Returns an error number, kEnded where nothing
  // more comes.
  static constexpr int kEnded = -1;
  int Move(int fd, int64_t& moved) {
    while (!complete() && Stray() == nullptr) {
      std::array<iovec, kMaxPieces> pieces;
      msghdr message = {};
      message.msg_iov = pieces.data();
      const int64_t wanted = Fill(pieces, message.msg_iovlen);
      const ssize_t count = sends_ ? ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
                                   : ::recvmsg(fd, &message, MSG_DONTWAIT);
      if (count == 0 && !sends_) return kEnded;
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : errno;
      moved_ += count;
      moved += count;
      if (count < wanted) return 0;
    }
    return 0;
  }

 private:
  static constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(FrameHeader));

  // Remaining pieces, or as much of it as fits into `pieces`; returns its bytes.
  int64_t Fill(std::array<iovec, kMaxPieces>& pieces, size_t& count) {
    int64_t bytes = 0;
    const auto add = [&](void* data, int64_t num_bytes) {
      pieces[count++] = {data, static_cast<size_t>(num_bytes)};
      bytes += num_bytes;
    };
    if (moved_ < kHeaderBytes) add(reinterpret_cast<char*>(&header_) + moved_, kHeaderBytes - moved_);
    int64_t at = std::max<int64_t>(0, moved_ - kHeaderBytes);
    const bool together = rows_.num_rows == 1 || rows_.stride == rows_.row_bytes;
    while (at < rows_.num_bytes() && count < pieces.size()) {
      const int64_t row = together ? 0 : at / rows_.row_bytes;
      const int64_t end = together ? rows_.num_bytes() : (row + 1) * rows_.row_bytes;
      add(rows_.data + row * rows_.stride + (at - row * rows_.row_bytes), end - at);
      at = end;
    }
    return bytes;
  }

  int rank_;
  bool sends_;
  FrameHeader want_;
  FrameHeader header_;  // As it goes or came.
  ByteRows rows_;
  int64_t moved_ = 0;  // Bytes of header and rows.
};

struct SocketMesh::Work {
  std::vector<Transfer> transfers;
  size_t num_left = 0;
  int64_t num_moved = 0;

  bool begun() const {
    return std::ranges::any_of(transfers, [](const Transfer& t) { return t.begun() && !t.complete(); });
  }
};

SocketMesh::SocketMesh(std::vector<Link> links, int rank, std::chrono::milliseconds timeout)
    : peers_(links.size()), rank_(rank), timeout_(timeout) {
  int num_here = 0;
  for (size_t r = 0; r < links.size(); ++r) {
    peers_[r].link = std::move(links[r]);
    num_here += peers_[r].link.here ? 1 : 0;
    if (static_cast<int>(r) != rank) SetUp(peers_[r].link, timeout);
  }
  num_spins_ = HasTwoCoresEach(num_here) ? kPatientSocketSpins : kSocketSpins;
}

SocketMesh::Work SocketMesh::Begin(FrameKind kind, uint64_t group, std::span<const Piece> out,
                                   std::span<const Piece> in) {
  Work work;
  work.transfers.reserve(out.size() + in.size());
  ++num_exchanges_;
  const auto add = [&](const Piece& piece, bool sends) {
    DSV4_CHECK(piece.rank != rank_) << piece.rank;
    const FrameHeader header = {
        .kind = kind, .group = group, .num_bytes = static_cast<uint64_t>(piece.rows.num_bytes())};
    work.transfers.emplace_back(piece.rank, header, piece.rows, sends);
    Peer& with = peer(piece.rank);
    if (std::exchange(with.last_exchange, num_exchanges_) != num_exchanges_) ++with.begun;
  };
  for (const Piece& piece : out) add(piece, true);
  for (const Piece& piece : in) add(piece, false);
  work.num_left = work.transfers.size();
  return work;
}

Status SocketMesh::Exchange(FrameKind kind, uint64_t group, std::span<const Piece> out,
                            std::span<const Piece> in, Wait wait) {
  if (failed_) return GiveUp();
  Work work = Begin(kind, group, out, in);
  WaitingTime waiting;
  for (int spins = 0;;) {
    work.num_moved = 0;
    DSV4_RETURN_IF_ERROR(Move(work));
    if (work.num_left == 0) break;
    if (work.num_moved > 0) {
      spins = 0;
      waiting.Restart();
    }
    if (spins++ < num_spins_) continue;
    Sleep(work);
    ReadNotices();
    if (failed_ && !MayStillCome(work)) {
      // A rank that ended after giving what we wait for has done its part: look again after finding it gone.
      DSV4_RETURN_IF_ERROR(Move(work));
      if (work.num_left == 0) break;
      return GiveUp();
    }
    if (waiting.Look() > timeout_ && (wait == Wait::kDeadline || work.begun())) return Late(work);
  }
  for (Peer& with : peers_) {
    if (with.last_exchange == num_exchanges_) with.done.store(with.begun);
  }
  return {};
}

Status SocketMesh::Move(Work& work) {
  for (Transfer& transfer : work.transfers) {
    if (transfer.complete()) continue;
    const int error = transfer.Move(peer(transfer.rank()).link.data.fd(), work.num_moved);
    if (error != 0) return DataEnded(transfer.rank(), error);
    if (const FrameHeader* const stray = transfer.Stray()) {
      return Fail(Internal(fmt::format("got {} from rank {}, want {}", Describe(*stray), transfer.rank(),
                                       Describe(transfer.wanted())))
                      .WithContext(fmt::format("rank {}", rank_)));
    }
    if (transfer.complete()) --work.num_left;
  }
  return {};
}

void SocketMesh::Sleep(const Work& work) const {
  std::vector<pollfd> wanted;
  for (const Transfer& transfer : work.transfers) {
    if (transfer.complete()) continue;
    wanted.push_back({.fd = peer(transfer.rank()).link.data.fd(),
                      .events = static_cast<short>(transfer.sends() ? POLLOUT : POLLIN),
                      .revents = 0});
  }
  {
    const std::lock_guard lock(mutex_);
    for (int r = 0; r < size(); ++r) {
      if (r != rank_ && !peer(r).ended)
        wanted.push_back({.fd = peer(r).link.notices.fd(), .events = POLLIN, .revents = 0});
    }
  }
  (void)::poll(wanted.data(), wanted.size(), static_cast<int>(kLook.count()));
}

// Whether what is missing of a group that has failed is on its way all the same.
bool SocketMesh::MayStillCome(const Work& work) {
  const std::lock_guard lock(mutex_);
  if (cause_ == rank_ || peer(cause_).last_exchange != num_exchanges_) return false;
  // A rank that has done all of this exchange has got every rank's part of it.
  if (cause_exchanges_ >= peer(cause_).begun) return true;
  return cause_may_send_until_ && std::chrono::steady_clock::now() < *cause_may_send_until_ &&
         std::ranges::any_of(work.transfers, [&](const Transfer& transfer) {
           return transfer.rank() == cause_ && !transfer.complete();
         });
}

Status SocketMesh::DataEnded(int rank, int error) {
  {
    // Its notice goes another way.
    pollfd notices{.fd = peer(rank).link.notices.fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&notices, 1, static_cast<int>(kOnItsWay.count()));
  }
  ReadNotices();
  {
    const std::lock_guard lock(mutex_);
    if (!failed_) RecordEnd(rank, error);
  }
  return GiveUp();
}

Status SocketMesh::Late(const Work& work) {
  std::vector<std::string> names;
  for (int r = 0; r < size(); ++r) {
    if (std::ranges::any_of(work.transfers,
                            [&](const Transfer& t) { return t.rank() == r && !t.complete(); })) {
      names.push_back(fmt::format("rank {} ({})", r, Name(r)));
    }
  }
  return Fail({StatusCode::kDeadlineExceeded,
               fmt::format("{}: not there within {} s, missed by rank {}", fmt::join(names, ", "),
                           static_cast<double>(timeout_.count()) / 1000.0, rank_)});
}

Status SocketMesh::Failure() const {
  if (!failed_) return {};
  const std::lock_guard lock(mutex_);
  return failure_;
}

Status SocketMesh::Check() {
  if (!failed_) ReadNotices();
  return Failure();
}

Status SocketMesh::Fail(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    Record(why, rank_, 0);
  }
  return GiveUp();
}

void SocketMesh::Leave() {
  if (failed_) {
    (void)GiveUp();
    return;
  }
  const std::lock_guard lock(mutex_);
  SendNotice({}, /*left=*/true);
}

Status SocketMesh::GiveUp() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(told_, true)) SendNotice(failure_, /*left=*/false);
  return failure_;
}

void SocketMesh::ReadNotices() {
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size(); ++r) {
    Peer& other = peer(r);
    if (r == rank_ || other.ended) continue;
    const auto state = other.notice.Look(other.link.notices);
    if (state == PartialRead<Notice>::State::kPending) continue;
    other.ended = true;
    const Notice& notice = other.notice.record();
    if (state == PartialRead<Notice>::State::kEnded || notice.magic != kNotice) {
      if (!failed_) RecordEnd(r, other.notice.error());
    } else if (notice.left != 0) {
      Record({StatusCode::kUnavailable, fmt::format("rank {} of {} ({}) left the group", r, size(), Name(r))},
             r, notice.exchanges);
    } else {
      // Whatever it says, it has ended, and this is no success.
      const auto code =
          static_cast<StatusCode>(std::clamp(notice.code, static_cast<uint32_t>(StatusCode::kOk) + 1,
                                             static_cast<uint32_t>(StatusCode::kInternal)));
      const std::string_view message = Get(notice.message);
      Record({code, message.empty()
                        ? fmt::format("rank {} of {} ({}) failed and does not say why", r, size(), Name(r))
                        : std::string(message)},
             r, notice.exchanges);
    }
  }
}

void SocketMesh::Record(const Status& why, int cause, uint64_t exchanges) {
  if (failed_) return;
  failure_ = why;
  cause_ = cause;
  cause_exchanges_ = exchanges;
  failed_ = true;
}

// Without a word of its own.
void SocketMesh::RecordEnd(int rank, int error) {
  const bool gone = error <= 0 || error == ECONNRESET || error == EPIPE;
  const std::string how = gone ? "ended" : fmt::format("is not reached any more: {}", std::strerror(error));
  const Status why(StatusCode::kUnavailable,
                   fmt::format("rank {} of {} ({}) {}", rank, size(), Name(rank), how));
  if (error == 0) cause_may_send_until_ = std::chrono::steady_clock::now() + kOnItsWay;
  Record(why, rank, 0);
}

void SocketMesh::SendNotice(const Status& why, bool left) {
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    Notice notice{.magic = kNotice,
                  .code = static_cast<uint32_t>(why.code()),
                  .left = left ? 1U : 0U,
                  .exchanges = peer(r).done.load()};
    Put(notice.message, why.message());
    // There is room for it: nothing else goes this way.
    (void)::send(peer(r).link.notices.fd(), &notice, sizeof(notice), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

std::string SocketMesh::Name(int rank) const {
  const Link& link = peer(rank).link;
  return fmt::format("process {}{}{}", link.process, link.host.empty() ? "" : " of ", link.host);
}

}  // namespace dsv4::comm
