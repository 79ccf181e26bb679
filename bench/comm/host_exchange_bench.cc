// Exchanges between the hosts of a group, in shared memory and over TCP. It prints microseconds of one of
// many that follow each other, as rank 0 sees them. One process a rank, started here, or elsewhere with RANK,
// WORLD_SIZE and so on to measure a network.
//
//   build/release/host_exchange_bench [NUM_RANKS]        two by default
//   RANK=0 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500 build/release/host_exchange_bench
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/local_ranks.h"

namespace dsv4::bench {
namespace {

using comm::Communicator;
using Clock = std::chrono::steady_clock;

void Must(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "host_exchange_bench: {}\n", status.ToString());
  std::exit(1);
}
template <typename T>
T Must(Result<T> result) {
  Must(result ? Status() : result.error());
  return std::move(*result);
}

// Microseconds of one call: the best of five rounds.
template <typename Call>
double Time(Communicator& group, int64_t num_bytes, const Call& call) {
  const auto num_calls = std::clamp<int64_t>((int64_t{64} << 20) / std::max<int64_t>(num_bytes, 1), 10, 1000);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    Must(group.Barrier());
    const auto begin = Clock::now();
    for (int64_t i = 0; i < num_calls; ++i) Must(call());
    const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
    const double us = time.count() / static_cast<double>(num_calls);
    if (round == 0 || us < best) best = us;
  }
  return best;
}

void TimeAll(Communicator& group, const char* way) {
  const bool first = group.rank() == 0;
  const double barrier = Time(group, 0, [&] { return group.Barrier(); });
  if (first) fmt::print("{:<14} barrier {:>9.2f} us\n", way, barrier);
  for (const int64_t num_bytes : {64, 8 << 10, 64 << 10, 1 << 20, 16 << 20}) {
    std::vector<float> values(static_cast<size_t>(num_bytes) / sizeof(float), 1.0F);
    const std::vector<int64_t> row_bytes(static_cast<size_t>(group.size()), num_bytes / group.size());
    std::vector<std::byte> all(static_cast<size_t>(row_bytes[0] * group.size()));
    const auto mine = std::as_bytes(std::span(values)).first(static_cast<size_t>(row_bytes[0]));
    const double reduce = Time(group, num_bytes, [&] { return group.AllReduceSum(values); });
    const double gather = Time(group, num_bytes, [&] { return group.AllGather(mine, 1, row_bytes, all); });
    if (first) {
      fmt::print("{:<14} {:>9} bytes  all-reduce {:>9.2f} us  all-gather {:>9.2f} us\n", way, num_bytes,
                 reduce, gather);
    }
  }
}

int Main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  if (size < 2 || size > 64) Must(InvalidArgument("want NUM_RANKS, 2 to 64"));
  std::optional<comm::RankEnvironment> environment = Must(comm::ReadRankEnvironment());
  std::optional<comm::RankListener> listener;
  std::unique_ptr<comm::LocalRanks> started;
  if (!environment) {
    listener = Must(comm::RankListener::Open("127.0.0.1", 0));
    environment = comm::RankEnvironment{.rank = 0, .size = size, .port = listener->port()};
    started = Must(comm::LocalRanks::Start(size, listener->port(), {argv, argv + argc}));
  }
  const comm::JoinOptions options{
      .timeout = std::chrono::seconds(60), .agreement = "exchanges", .still_wanted = {}};
  const auto hosts = Must(comm::JoinRanks(*environment, std::move(listener), options));
  // The way they have met, and TCP, which may be the same: rank 0 opens another listener, and they meet once
  // more.
  comm::JoinOptions over_tcp = options;
  over_tcp.always_tcp = true;
  int32_t port = 0;
  std::optional<comm::RankListener> other_listener;
  if (environment->rank == 0) {
    other_listener = Must(comm::RankListener::Open(environment->address, 0));
    port = other_listener->port();
  }
  Must(hosts->Broadcast(std::as_writable_bytes(std::span(&port, 1)), 0));
  comm::RankEnvironment again = *environment;
  again.port = port;
  const auto tcp = Must(comm::JoinRanks(again, std::move(other_listener), over_tcp));
  TimeAll(*hosts, started == nullptr ? "as they met" : "memory");
  TimeAll(*tcp, "TCP");
  Must(hosts->Barrier());
  return 0;
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) { return dsv4::bench::Main(argc, argv); }
