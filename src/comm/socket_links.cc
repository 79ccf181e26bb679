// Connections of every rank to every other, introduced by the group's token.
#include "comm/socket_links.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

namespace dsv4::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLink = 0x344B4E494C345644;  // "DV4LINK4"

enum class LinkKind : uint32_t { kData, kNotice };

// Greeting of a rank when it calls another.
struct LinkHello {
  uint64_t magic = kLink;
  GroupToken token = {};
  int32_t rank = 0;
  LinkKind kind = LinkKind::kData;
};

Socket& Of(Link& link, LinkKind kind) { return kind == LinkKind::kData ? link.data : link.notices; }

Status Call(const RankMap& map, int rank, int other, Clock::time_point end, Link& link) {
  for (const LinkKind kind : {LinkKind::kData, LinkKind::kNotice}) {
    // Not all the time there is, so that rank 0 hears which rank is not reached before it gives up itself.
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()) / 2;
    const RankPlace& place = map.ranks[static_cast<size_t>(other)];
    Result<Socket> socket = ConnectTo(place.endpoint, std::max(left, std::chrono::milliseconds(1)));
    const LinkHello hello{.token = map.token, .rank = rank, .kind = kind};
    if (socket && !socket->Write(hello)) {
      socket = Error(StatusCode::kUnavailable,
                     fmt::format("{}: {}", place.endpoint.ToString(), std::strerror(errno)));
    }
    if (!socket) {
      return socket.error().WithContext(
          fmt::format("rank {} does not reach rank {} on {}", rank, other, Get(place.host)));
    }
    Of(link, kind) = std::move(*socket);
  }
  return {};
}

}  // namespace

Result<GroupToken> MakeGroupToken() {
  GroupToken token;
  if (::getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size())) return token;
  return Error(StatusCode::kUnavailable, fmt::format("random numbers for a group: {}", std::strerror(errno)));
}

Result<std::vector<Link>> ConnectRanks(const RankMap& map, int rank, int size, int listener,
                                       Clock::time_point end, const std::function<Status()>& still_wanted) {
  std::vector<Link> links(static_cast<size_t>(size));
  const std::span<const RankPlace> places = std::span(map.ranks).first(links.size());
  const bool several =
      std::ranges::any_of(places, [&](const RankPlace& place) { return place.machine != places[0].machine; });
  for (int r = 0; r < size; ++r) {
    const RankPlace& place = places[static_cast<size_t>(r)];
    Link& link = links[static_cast<size_t>(r)];
    link.process = place.process;
    link.here = place.machine == places[static_cast<size_t>(rank)].machine;
    if (several) link.host = Get(place.host);
    // A call is taken by the system, so no rank waits here for another's answer.
    if (r < rank) DSV4_TRY(Call(map, rank, r, end, link));
  }
  AcceptQueue<LinkHello> queue(listener);
  for (int left = 2 * (size - 1 - rank); left > 0;) {
    if (still_wanted) DSV4_TRY(still_wanted());
    if (Clock::now() > end) {
      std::vector<int> missing;
      for (int r = rank + 1; r < size; ++r) {
        const Link& link = links[static_cast<size_t>(r)];
        if (link.data.fd() < 0 || link.notices.fd() < 0) missing.push_back(r);
      }
      return Error(StatusCode::kDeadlineExceeded,
                   fmt::format("rank {}: ranks {} did not connect in time", rank, fmt::join(missing, ", ")));
    }
    auto caller = queue.Next(std::chrono::milliseconds(50));
    if (!caller) continue;
    const LinkHello& hello = caller->second;
    const bool known = hello.magic == kLink && hello.token == map.token && hello.rank > rank &&
                       hello.rank < size && hello.kind <= LinkKind::kNotice;
    if (!known) continue;  // A stranger.
    Socket& place = Of(links[static_cast<size_t>(hello.rank)], hello.kind);
    if (place.fd() >= 0) continue;
    place = std::move(caller->first);
    --left;
  }
  return links;
}

}  // namespace dsv4::comm
