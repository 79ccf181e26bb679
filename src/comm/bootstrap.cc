// Meeting of ranks at rank 0's port: greetings, checks that all run the same, and the map of machines.
#include "comm/bootstrap.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "comm/machine.h"
#include "comm/shared_memory.h"
#include "comm/shared_memory_layout.h"
#include "comm/socket_group.h"
#include "comm/socket_links.h"

namespace dsv4::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kHello = 0x344F4C4C45485634;  // "4VHELLO4"

// Ranks on machines of one byte order tell rank 0 their number:
struct Hello {
  uint64_t magic = kHello;
  int32_t size = 0;
  int32_t rank = 0;
  int32_t process = 0;
  MachineId machine = {};
  std::array<char, 64> host = {};
  std::array<char, 512> agreement = {};
};
// how far one has come, or why not further:
struct Word {
  uint32_t code = 0;
  std::array<char, 508> message = {};
};
// and rank 0 answers with what the group is made of.
struct Reply {
  uint64_t magic = kHello;
  Word word;
  uint32_t over_tcp = 0;
  int32_t creator = 0;  // Creator of the shared memory, which it has open as `fd`.
  int32_t fd = 0;
};
// Over TCP ranks then say where they listen, hear where all do, connect, and say that they have.
struct Place {
  Word word;
  uint16_t port = 0;
};
struct MapReply {
  Word word;
  RankMap map;
};

Word ToWord(const Status& status) {
  Word word{.code = static_cast<uint32_t>(status.code())};
  Put(word.message, status.message());
  return word;
}
Status FromWord(const Word& word) {
  const auto last = static_cast<uint32_t>(StatusCode::kInternal);
  const auto code = static_cast<StatusCode>(std::min(word.code, last));
  if (code == StatusCode::kOk) return {};
  const std::string_view message = Get(word.message);
  return {code, std::string(message.empty() ? "another rank failed and does not say why" : message)};
}
double Seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000.0; }

// A rank that has come to rank 0.
struct JoiningRank {
  int rank = 0;
  pid_t process = 0;
  MachineId machine = {};
  std::array<char, 64> host = {};
  Socket socket;
};

// All other ranks, once each; or why not.
Status AcceptRanks(const RankEnvironment& environment, const RankListener& listener,
                   const JoinOptions& options, std::vector<JoiningRank>& joining) {
  const Clock::time_point begin = Clock::now();
  std::vector<bool> here(static_cast<size_t>(environment.size), false);
  here[0] = true;
  AcceptQueue<Hello> queue(listener.socket());
  while (joining.size() + 1 < here.size()) {
    if (options.still_wanted) DSV4_RETURN_IF_ERROR(options.still_wanted());
    if (Clock::now() - begin > options.timeout) {
      std::vector<size_t> missing;
      for (size_t r = 0; r < here.size(); ++r) {
        if (!here[r]) missing.push_back(r);
      }
      // The usual surprise: a name that the machine's own table of hosts gives a loopback address.
      const bool hidden = listener.end().IsLoopback() &&
                          environment.address.find_first_not_of("0123456789.:") != std::string::npos;
      return {StatusCode::kDeadlineExceeded,
              fmt::format("ranks {} of {} did not come to {} port {} within {} s{}", fmt::join(missing, ", "),
                          here.size(), environment.address, listener.port(), Seconds(options.timeout),
                          hidden ? fmt::format(" (here it stands for {}, which is this machine's own)",
                                               listener.end().ToString())
                                 : "")};
    }
    auto caller = queue.Next(std::chrono::milliseconds(50));
    if (!caller || caller->second.magic != kHello) continue;  // No caller, or a stranger.
    const Hello& hello = caller->second;
    const int rank = hello.rank;
    joining.push_back({rank, hello.process, hello.machine, hello.host, std::move(caller->first)});
    if (hello.size != environment.size || rank < 1 || rank >= environment.size) {
      return InvalidArgument(fmt::format("rank {} of {} came to rank 0 of {}: WORLD_SIZE differs", rank,
                                         hello.size, environment.size));
    }
    if (here[static_cast<size_t>(rank)]) {
      return InvalidArgument(fmt::format("two processes say they are rank {}", rank));
    }
    if (Get(hello.agreement) != std::string_view(options.agreement).substr(0, hello.agreement.size() - 1)) {
      return InvalidArgument(
          fmt::format("rank {} runs '{}', rank 0 '{}'", rank, Get(hello.agreement), options.agreement));
    }
    here[static_cast<size_t>(rank)] = true;
  }
  std::ranges::sort(joining, {}, &JoiningRank::rank);
  return {};
}

// Records of the joining ranks, once each, as rank 0 hears them while it does something else.
template <typename Record>
class Words {
 public:
  explicit Words(const std::vector<JoiningRank>& joining) : joining_(joining), reads_(joining.size()) {}

  // The first failure; Ok where there is none.
  Status Look() {
    num_here_ = 0;
    for (size_t i = 0; i < joining_.size(); ++i) {
      const auto state = reads_[i].Look(joining_[i].socket);
      if (state == PartialRead<Record>::State::kEnded) {
        return {StatusCode::kUnavailable,
                fmt::format("rank {} of {} (process {} of {}) ended", joining_[i].rank, joining_.size() + 1,
                            joining_[i].process, Get(joining_[i].host))};
      }
      if (state == PartialRead<Record>::State::kPending) continue;
      ++num_here_;
      DSV4_RETURN_IF_ERROR(FromWord(WordOf(reads_[i].record())));
    }
    return {};
  }
  Status AwaitAll(Clock::time_point end, const JoinOptions& options) {
    for (;;) {
      DSV4_RETURN_IF_ERROR(Look());
      if (num_here_ == joining_.size()) return {};
      if (options.still_wanted) DSV4_RETURN_IF_ERROR(options.still_wanted());
      if (Clock::now() > end) {
        return {StatusCode::kDeadlineExceeded,
                fmt::format("{} of {} did not connect within {} s", joining_.size() - num_here_,
                            Counted(joining_.size() + 1, "rank"), Seconds(options.timeout))};
      }
      ::usleep(1000);
    }
  }
  const Record& of(size_t joiner) const { return reads_[joiner].record(); }

 private:
  static const Word& WordOf(const Word& word) { return word; }
  static const Word& WordOf(const Place& place) { return place.word; }

  const std::vector<JoiningRank>& joining_;
  std::vector<PartialRead<Record>> reads_;
  size_t num_here_ = 0;
};

// "node1: 0, 1; node2: 2": the machine of each rank, for the log.
std::string ToString(const RankMap& map, int size) {
  std::vector<std::string> machines;
  for (int machine = 0; machine < size; ++machine) {
    std::vector<int> ranks;
    for (int r = 0; r < size; ++r) {
      if (map.ranks[static_cast<size_t>(r)].machine == machine) ranks.push_back(r);
    }
    if (ranks.empty()) continue;
    const RankPlace& first = map.ranks[static_cast<size_t>(ranks.front())];
    machines.push_back(fmt::format("{}: {}", Get(first.host), fmt::join(ranks, ", ")));
  }
  return fmt::format("{}", fmt::join(machines, "; "));
}

Result<RankMap> MakeMap(const RankListener& listener, const std::vector<JoiningRank>& joining,
                        const Words<Place>& places) {
  RankMap map;
  DSV4_ASSIGN_OR_RETURN(map.token, MakeGroupToken());
  std::vector<MachineId> machines = {ThisMachine()};
  map.ranks[0] = {.endpoint = listener.end(), .process = ::getpid(), .machine = 0, .host = {}};
  Put(map.ranks[0].host, HostName());
  for (size_t i = 0; i < joining.size(); ++i) {
    // Address that it came from, which others reach if rank 0 does.
    std::optional<Endpoint> end = FarEnd(joining[i].socket);
    if (!end) {
      return Error(StatusCode::kUnavailable,
                   fmt::format("rank {} (process {}) ended", joining[i].rank, joining[i].process));
    }
    end->port = places.of(i).port;
    const auto known = std::ranges::find(machines, joining[i].machine);
    const auto machine = static_cast<int32_t>(known - machines.begin());
    if (known == machines.end()) machines.push_back(joining[i].machine);
    map.ranks[static_cast<size_t>(joining[i].rank)] = {
        .endpoint = *end, .process = joining[i].process, .machine = machine, .host = joining[i].host};
  }
  return map;
}

// Rank 0's part in connecting all with all.
Result<std::vector<Link>> ConnectJoining(const RankEnvironment& environment, const RankListener& listener,
                                         const JoinOptions& options,
                                         const std::vector<JoiningRank>& joining) {
  const Clock::time_point end = Clock::now() + options.timeout;
  Words<Place> places(joining);
  const Status placed = places.AwaitAll(end, options);
  Result<RankMap> map = placed.ok() ? MakeMap(listener, joining, places) : Error(placed);
  const MapReply reply{.word = ToWord(map ? Status() : map.error()), .map = map ? *map : RankMap()};
  for (const JoiningRank& joiner : joining) (void)joiner.socket.Write(reply);
  if (!map) return Error(map.error());
  Words<Word> connected(joining);
  Result<std::vector<Link>> links =
      ConnectRanks(*map, 0, environment.size, listener.socket(), end, [&]() -> Status {
        if (options.still_wanted) DSV4_RETURN_IF_ERROR(options.still_wanted());
        return connected.Look();
      });
  if (links) {
    const Status all = connected.AwaitAll(end, options);
    if (!all.ok()) links = Error(all);
  }
  const Word verdict = ToWord(links ? Status() : links.error());
  for (const JoiningRank& joiner : joining) (void)joiner.socket.Write(verdict);
  if (links) LogInfo(fmt::format("ranks exchange over TCP ({})", ToString(*map, environment.size)));
  return links;
}

// Another rank's.
Result<std::vector<Link>> ConnectToAll(const RankEnvironment& environment, const JoinOptions& options,
                                       const Socket& rank_zero) {
  const Clock::time_point end = Clock::now() + options.timeout;
  const auto silent = [&](const Status& status) {
    return Error(status.WithContext(fmt::format("rank {}: rank 0 at {} port {}", environment.rank,
                                                environment.address, environment.port)));
  };
  // It listens where it reaches rank 0 from: on the network that the ranks have in common.
  std::optional<Endpoint> own = LocalEnd(rank_zero);
  const std::optional<Endpoint> far = FarEnd(rank_zero);
  if (!own || !far) return silent({StatusCode::kUnavailable, "ended"});
  own->port = 0;
  Result<Socket> listener = ListenAt(*own);
  const std::optional<Endpoint> listens = listener ? LocalEnd(*listener) : std::nullopt;
  const Status status = listener ? Status() : listener.error();
  const Place place{.word = ToWord(status.WithContext(fmt::format("rank {}", environment.rank))),
                    .port = listens ? listens->port : uint16_t{0}};
  if (!rank_zero.Write(place)) return silent({StatusCode::kUnavailable, "ended"});
  Result<MapReply> reply = Await<MapReply>(rank_zero, end, {});
  if (!reply) return silent(reply.error());
  DSV4_TRY(FromWord(reply->word));
  reply->map.ranks[0].endpoint = *far;
  PartialRead<Word> verdict;
  Result<std::vector<Link>> links =
      ConnectRanks(reply->map, environment.rank, environment.size, listener->fd(), end, [&]() -> Status {
        switch (verdict.Look(rank_zero)) {
          case PartialRead<Word>::State::kPending:
            return {};
          case PartialRead<Word>::State::kComplete:
            return FromWord(verdict.record());
          case PartialRead<Word>::State::kEnded:
            break;
        }
        return {StatusCode::kUnavailable, "rank 0 ended"};
      });
  (void)rank_zero.Write(ToWord(links ? Status() : links.error()));
  while (verdict.Look(rank_zero) == PartialRead<Word>::State::kPending && Clock::now() < end) ::usleep(1000);
  switch (verdict.Look(rank_zero)) {
    case PartialRead<Word>::State::kComplete:
      DSV4_TRY(FromWord(verdict.record()));
      break;
    case PartialRead<Word>::State::kPending:
      return silent({StatusCode::kDeadlineExceeded, "gave no answer"});
    case PartialRead<Word>::State::kEnded:
      return silent({StatusCode::kUnavailable, "ended"});
  }
  return links;
}

Result<std::unique_ptr<Communicator>> Receive(const RankEnvironment& environment,
                                              std::optional<RankListener> listener,
                                              const JoinOptions& options) {
  if (!listener) {
    DSV4_ASSIGN_OR_RETURN(listener, RankListener::Open(environment.address, environment.port));
  }
  std::vector<JoiningRank> joining;
  Status status = AcceptRanks(environment, *listener, options, joining);
  const MachineId mine = ThisMachine();
  const bool over_tcp = options.always_tcp || std::ranges::any_of(joining, [&](const JoiningRank& joiner) {
                          return joiner.machine != mine;
                        });
  Reply reply;
  reply.over_tcp = over_tcp ? 1 : 0;
  std::shared_ptr<SharedMemory> memory;
  if (status.ok() && !over_tcp) {
    auto created = SharedMemory::Create(environment.size);
    if (created) {
      memory = std::move(*created);
      // From here on all know all. A rank that ends before it opens the memory is missed at once, not when
      // the deadline has passed.
      const Layout layout(memory->data(), environment.size);
      for (const JoiningRank& joiner : joining) layout.control(joiner.rank).process.store(joiner.process);
      reply.creator = ::getpid();
      reply.fd = memory->fd();
    } else {
      status = created.error();
    }
  }
  reply.word = ToWord(status);
  for (const JoiningRank& joiner : joining) (void)joiner.socket.Write(reply);
  if (!status.ok()) return Error(status);
  if (!over_tcp) return JoinSharedMemory(std::move(memory), 0, environment.size, options.timeout);
  DSV4_ASSIGN_OR_RETURN(std::vector<Link> links, ConnectJoining(environment, *listener, options, joining));
  return MakeSocketGroup(std::move(links), 0, options.timeout);
}

Result<std::unique_ptr<Communicator>> Visit(const RankEnvironment& environment, const JoinOptions& options) {
  Hello hello{.size = environment.size, .rank = environment.rank, .process = ::getpid()};
  hello.machine = ThisMachine();
  Put(hello.host, HostName());
  Put(hello.agreement, options.agreement);
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const Result<Socket> socket =
        ForAddress(environment.address, environment.port, false, [&](const Socket& s, const addrinfo& a) {
          s.SetTimeout(options.timeout);
          return ::connect(s.fd(), a.ai_addr, a.ai_addrlen) == 0;
        });
    if (!socket && socket.error().code() != StatusCode::kUnavailable) return Error(socket.error());
    if (socket) {
      const bool said = socket->Write(hello);
      const Result<Reply> reply = Await<Reply>(*socket, Clock::now() + options.timeout, {});
      if (!said || !reply || reply->magic != kHello) {
        return Error(StatusCode::kUnavailable,
                     fmt::format("rank {}: rank 0 at {} port {} gave no answer", environment.rank,
                                 environment.address, environment.port));
      }
      DSV4_TRY(FromWord(reply->word));
      if (reply->over_tcp != 0) {
        DSV4_ASSIGN_OR_RETURN(std::vector<Link> links, ConnectToAll(environment, options, *socket));
        return MakeSocketGroup(std::move(links), environment.rank, options.timeout);
      }
      DSV4_ASSIGN_OR_RETURN(auto memory, SharedMemory::Open(reply->creator, reply->fd, environment.size));
      return JoinSharedMemory(std::move(memory), environment.rank, environment.size, options.timeout);
    }
    if (Clock::now() - begin > options.timeout) {
      return Error(Status(StatusCode::kDeadlineExceeded, socket.error().message())
                       .WithContext(fmt::format("rank {}: no rank 0", environment.rank)));
    }
    ::usleep(20000);
  }
}

}  // namespace

Result<RankListener> RankListener::Open(const std::string& address, int port) {
  DSV4_ASSIGN_OR_RETURN(
      Socket socket, ForAddress(address, port, true, [](const Socket& s, const addrinfo& a) {
        const int on = 1;
        (void)::setsockopt(s.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        return ::bind(s.fd(), a.ai_addr, a.ai_addrlen) == 0 && ::listen(s.fd(), kBacklog) == 0;
      }));
  const std::optional<Endpoint> end = LocalEnd(socket);
  if (!end)
    return Error(StatusCode::kUnavailable, fmt::format("{} port {}: no local address", address, port));
  return RankListener(std::move(socket), *end);
}

Result<std::unique_ptr<Communicator>> JoinRanks(const RankEnvironment& environment,
                                                std::optional<RankListener> listener,
                                                const JoinOptions& options) {
  return environment.rank == 0 ? Receive(environment, std::move(listener), options)
                               : Visit(environment, options);
}

}  // namespace dsv4::comm
