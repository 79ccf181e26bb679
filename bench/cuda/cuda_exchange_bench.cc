// Exchanges between GPUs: every kind is compared with the hosts' group, byte for byte, then timed as a decode
// step uses it. One process a GPU, started here.
//
//   cuda_exchange_bench NUM_GPUS [check|times|long|hang|hang-long] [nccl|flags|packed]
//     check      compares only
//     times      compares, then times (the default)
//     long       times what is long, and compares that with what it must be
//     hang       rank 1 does not come: the others must end within the deadline of 3 s, by peer memory with its name
//     hang-long  rank 1 leaves in the middle of a long exchange: the same
//
// The ways, all of which are taken where none is named: by NCCL; over peer memory, with flags; the smallest
// of them packed. Microseconds are those of one of a hundred that follow each other.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_variables.h"
#include "backend/cuda/groups/cuda_group.h"
#include "bench/cuda/must.h"
#include "comm/bootstrap.h"
#include "comm/local_ranks.h"

namespace dsv4::bench {
namespace {

using comm::Communicator;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kNccl = "nccl";
constexpr std::string_view kFlags = "flags";
constexpr std::string_view kPacked = "packed";

class Ranks {
 public:
  Ranks(int size, int argc, char** argv) {
    std::optional<comm::RankEnvironment> environment = Must(comm::ReadRankEnvironment());
    std::optional<comm::RankListener> listener;
    if (!environment) {
      listener = Must(comm::RankListener::Open("127.0.0.1", 0));
      environment = comm::RankEnvironment{.rank = 0, .size = size, .port = listener->port()};
      started_ = Must(comm::LocalRanks::Start(size, listener->port(), {argv, argv + argc}));
    }
    hosts_ = Must(comm::JoinRanks(
        *environment, std::move(listener),
        {.timeout = std::chrono::seconds(60), .agreement = "exchange bench", .still_wanted = {}}));
    const auto devices = static_cast<int>(backend::CudaDevices().size());
    share_devices_ = devices > 0 && devices < environment->size && backend::DevicesAreShared();
    backend_ = Must(backend::MakeCudaBackend(
        {.device = share_devices_ ? environment->local_rank % devices : environment->local_rank}));
  }

  Communicator& hosts() { return *hosts_; }
  ops::Backend& backend() { return backend_; }
  Memory& memory() { return backend_.context->memory(); }
  bool first() const { return hosts_->rank() == 0; }
  bool share_devices() const { return share_devices_; }

  std::unique_ptr<Communicator> Group(std::string_view way,
                                      std::chrono::seconds timeout = std::chrono::seconds(20)) {
    return Must(backend::MakeCudaGroup(backend_, *hosts_,
                                       {.timeout = timeout,
                                        .peers = way != kNccl,
                                        .packed = way == kPacked,
                                        .without_peers = [&](const std::string& why) {
                                          if (first()) fmt::print("no peers: {}\n", why);
                                        }}));
  }
  Buffer Upload(const std::vector<std::byte>& bytes) {
    Buffer buffer = Must(memory().Allocate(std::max<size_t>(bytes.size(), 1)));
    Must(memory().CopyFromHost(buffer.data(), bytes.data(), bytes.size(), nullptr));
    return buffer;
  }
  std::vector<std::byte> Download(const Buffer& buffer, size_t num_bytes) {
    std::vector<std::byte> bytes(num_bytes);
    Must(memory().CopyToHost(bytes.data(), buffer.data(), num_bytes, nullptr));
    return bytes;
  }

 private:
  std::unique_ptr<comm::LocalRanks> started_;
  std::unique_ptr<Communicator> hosts_;
  ops::Backend backend_;
  bool share_devices_ = false;
};

std::vector<std::byte> Numbers(int64_t count, int seed) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i)
    numbers.push_back(static_cast<float>(seed + 1) * 0.37F + static_cast<float>(i % 1009));
  std::vector<std::byte> bytes(numbers.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}
std::span<float> Floats(void* data, int64_t count) {
  return {static_cast<float*>(data), static_cast<size_t>(count)};
}

// Says where two arrays of floats differ at first; whether they do.
bool Differs(const std::string& what, const std::vector<std::byte>& got, const std::vector<std::byte>& want) {
  if (got == want) return false;
  size_t first = got.size();
  size_t count = 0;
  for (size_t at = 0; at < got.size(); at += sizeof(float)) {
    if (std::memcmp(&got[at], &want[at], sizeof(float)) == 0) continue;
    ++count;
    first = std::min(first, at);
  }
  float numbers[2];
  std::memcpy(&numbers[0], &got[first], sizeof(float));
  std::memcpy(&numbers[1], &want[first], sizeof(float));
  fmt::print(stderr, "DIFFERS: {}: {} of {} numbers, the first at {}: got {}, want {}\n", what, count,
             got.size() / sizeof(float), first / sizeof(float), numbers[0], numbers[1]);
  return true;
}

// Output of `call(group, in, out)` on both groups; `in` may be changed in place.
template <typename Call>
int Compare(Ranks& ranks, Communicator& group, const std::string& what, const std::vector<std::byte>& in,
            size_t out_bytes, const Call& call) {
  std::vector<std::byte> want_in = in;
  std::vector<std::byte> want(out_bytes, std::byte{1});
  Must(call(ranks.hosts(), want_in.data(), want.data()));
  const Buffer device_in = ranks.Upload(in);
  const Buffer device_out = ranks.Upload(std::vector<std::byte>(out_bytes, std::byte{2}));
  int failures = 0;
  // Three times from the same input: a second list of launches equal to the first becomes a graph, the third
  // replays it.
  for (int round = 0; round < 3; ++round) {
    Must(ranks.memory().CopyFromHost(device_in.data(), in.data(), in.size(), nullptr));
    Must(call(group, static_cast<std::byte*>(device_in.data()), static_cast<std::byte*>(device_out.data())));
    const std::vector<std::byte> out = ranks.Download(device_out, out_bytes);
    const std::vector<std::byte> changed = ranks.Download(device_in, in.size());
    Must(group.Check());
    const std::string where = fmt::format("{}, rank {}, round {}", what, ranks.hosts().rank(), round);
    failures +=
        Differs(where + ", result", out, want) || Differs(where + ", in place", changed, want_in) ? 1 : 0;
  }
  return failures;
}

int CheckAll(Ranks& ranks, Communicator& group, std::string_view way) {
  const int size = group.size();
  const int rank = group.rank();
  int failures = 0;
  for (const bool even : {true, false}) {
    for (const int64_t rows : {1, 3, 64, 300}) {
      for (const int64_t unit : {1, 33, 4096}) {
        if (!even && rows == 300 && unit == 4096 && size > 4) continue;  // Half a gigabyte.
        std::vector<int64_t> counts;  // In the uneven case rank 0 has nothing.
        for (int r = 0; r < size; ++r) counts.push_back(even ? unit : r * unit);
        const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
        const int64_t mine = counts[static_cast<size_t>(rank)];
        std::vector<int64_t> row_bytes;
        for (const int64_t count : counts) row_bytes.push_back(count * 4);
        const std::string shape = fmt::format("{} {} rows of {}{}", way, rows, unit, even ? "" : ", uneven");
        const auto bytes = [](int64_t count) { return static_cast<size_t>(count * 4); };
        failures +=
            Compare(ranks, group, "all-gather, " + shape, Numbers(mine * rows, rank), bytes(all * rows),
                    [&](Communicator& g, std::byte* in, std::byte* out) {
                      return g.AllGather({in, bytes(mine * rows)}, rows, row_bytes, {out, bytes(all * rows)});
                    });
        failures += Compare(
            ranks, group, "all-to-all, " + shape, Numbers(all * rows, rank), bytes(size * mine * rows),
            [&](Communicator& g, std::byte* in, std::byte* out) {
              return g.AllToAll({in, bytes(all * rows)}, rows, row_bytes, {out, bytes(size * mine * rows)});
            });
      }
    }
  }
  for (const int64_t count : {1, 7, 4096, 16385, 65536, 65537, 131073, 1 << 20, 1000003, 5000000}) {
    failures += Compare(
        ranks, group, fmt::format("{} all-reduce of {}", way, count), Numbers(count, rank), 0,
        [&](Communicator& g, std::byte* in, std::byte*) { return g.AllReduceSum(Floats(in, count)); });
  }
  for (const int64_t count : {1, 1000, 1200000}) {
    std::vector<int64_t> counts;
    for (int r = 0; r < size; ++r) counts.push_back(count + 4 * r);
    const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int64_t mine = counts[static_cast<size_t>(rank)];
    failures +=
        Compare(ranks, group, fmt::format("{} reduce-scatter of {} and more", way, count), Numbers(all, rank),
                static_cast<size_t>(mine * 4), [&](Communicator& g, std::byte* in, std::byte* out) {
                  return g.ReduceScatterSum(Floats(in, all), counts, Floats(out, mine));
                });
  }
  for (int root = 0; root < size; ++root) {
    failures += Compare(ranks, group, fmt::format("{} broadcast of rank {}", way, root), Numbers(1003, rank),
                        0, [&](Communicator& g, std::byte* in, std::byte*) {
                          return g.Broadcast({in, size_t{4012}}, root);
                        });
  }
  if (way != kNccl) return failures;  // Only it sends.
  failures += Compare(ranks, group, fmt::format("{} send and receive", way), Numbers(1000, rank), 0,
                      [&](Communicator& g, std::byte* in, std::byte*) {
                        const std::span<std::byte> data(in, 4000);
                        if (rank > 0) DSV4_RETURN_IF_ERROR(g.Recv(data, rank - 1));
                        return rank + 1 < size ? g.Send(data, rank + 1) : Status();
                      });
  return failures;
}

// Microseconds of one call, as rank 0 sees them.
template <typename Call>
double Time(Ranks& ranks, const Buffer& any, const Call& call) {
  constexpr int kCalls = 100;
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    Must(ranks.hosts().Barrier());
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) Must(call());
    std::byte byte;
    Must(ranks.memory().CopyToHost(&byte, any.data(), 1, nullptr));
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / kCalls;
    if (round == 0 || us < best) best = us;
  }
  return best;
}

void TimeAll(Ranks& ranks, Communicator& group, std::string_view way) {
  const int size = group.size();
  for (const int64_t bytes : {64, 1 << 10, 8 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20,
                              4 << 20, 32 << 20, 128 << 20}) {
    const int64_t piece = bytes / size / 16 * 16;
    const Buffer values = Must(ranks.memory().Allocate(static_cast<size_t>(bytes)));
    const Buffer all = Must(ranks.memory().Allocate(static_cast<size_t>(bytes)));
    const std::vector<int64_t> row_bytes(static_cast<size_t>(size), piece);
    const double reduce =
        Time(ranks, values, [&] { return group.AllReduceSum(Floats(values.data(), bytes / 4)); });
    const double gather = Time(ranks, all, [&] {
      return group.AllGather({static_cast<std::byte*>(values.data()), static_cast<size_t>(piece)}, 1,
                             row_bytes,
                             {static_cast<std::byte*>(all.data()), static_cast<size_t>(piece * size)});
    });
    if (ranks.first())
      fmt::print("{:<6} {:>9} bytes  all-reduce {:>9.2f} us  all-gather {:>9.2f} us\n", way, bytes, reduce,
                 gather);
  }
}

// NVLink's rate of a GPU in one direction by the data sheets of H100 and H200 (18 links).
constexpr double kLinkGigabytes = 450.0;

// Number i of what `rank` has, as Numbers has it.
float NumberOf(int64_t i, int rank) {
  return static_cast<float>(rank + 1) * 0.37F + static_cast<float>(i % 1009);
}

// Times exchanges in which every GPU sends so many bytes, and looks at what they gave. How many were wrong.
int TimeLong(Ranks& ranks, Communicator& group, std::string_view way) {
  const int size = group.size();
  const int rank = group.rank();
  int failures = 0;
  constexpr int64_t kRows = 64;  // Rows of all-to-all, which takes columns.
  for (const int64_t bytes : {2 << 20, 4 << 20, 32 << 20, 64 << 20, 128 << 20}) {
    const int64_t count = bytes / 4 / (size - 1) / (kRows * 4) * (kRows * 4);  // Numbers for one other rank.
    const int64_t columns = count / kRows;
    const auto piece_bytes = static_cast<size_t>(count * 4);
    const Buffer in = ranks.Upload(Numbers(count * size, rank));
    const Buffer out = Must(ranks.memory().Allocate(piece_bytes * static_cast<size_t>(size)));
    auto* const from = static_cast<std::byte*>(in.data());
    auto* const to = static_cast<std::byte*>(out.data());
    const auto report = [&](const char* name, double us, size_t out_bytes, const auto& want) {
      const std::vector<std::byte> got = ranks.Download(out, out_bytes);
      int64_t wrong = 0;
      for (int64_t i = 0; i < static_cast<int64_t>(out_bytes / 4); ++i) {
        float number;
        std::memcpy(&number, &got[static_cast<size_t>(i * 4)], 4);
        wrong += number == want(i) ? 0 : 1;
      }
      failures += wrong == 0 ? 0 : 1;
      const double rate = static_cast<double>(count * 4 * (size - 1)) / us * 1e-3;
      if (wrong != 0) fmt::print(stderr, "DIFFERS: {}, rank {}: {} numbers\n", name, rank, wrong);
      if (!ranks.first()) return;
      fmt::print(
          "{:<6} {:>9} bytes sent  {:<14} {:>9.2f} us  {:>6.1f} GB/s a direction, {:>5.1f} % of NVLink's "
          "{}\n",
          way, count * 4 * (size - 1), name, us, rate, rate / kLinkGigabytes * 100.0, kLinkGigabytes);
    };
    const std::vector<int64_t> counts(static_cast<size_t>(size), count);
    const double scatter = Time(ranks, out, [&] {
      return group.ReduceScatterSum(Floats(in.data(), count * size), counts, Floats(out.data(), count));
    });
    report("reduce-scatter", scatter, piece_bytes, [&](int64_t i) {
      float sum = NumberOf(rank * count + i, 0);
      for (int r = 1; r < size; ++r) sum += NumberOf(rank * count + i, r);
      return sum;
    });
    const std::vector<int64_t> pieces(static_cast<size_t>(size), count * 4);
    const double gather = Time(ranks, out, [&] {
      return group.AllGather({from, piece_bytes}, 1, pieces, {to, piece_bytes * static_cast<size_t>(size)});
    });
    report("all-gather", gather, piece_bytes * static_cast<size_t>(size),
           [&](int64_t i) { return NumberOf(i % count, static_cast<int>(i / count)); });
    const std::vector<int64_t> row_bytes(static_cast<size_t>(size), columns * 4);
    const double all_to_all = Time(ranks, out, [&] {
      return group.AllToAll({from, piece_bytes * static_cast<size_t>(size)}, kRows, row_bytes,
                            {to, piece_bytes * static_cast<size_t>(size)});
    });
    report("all-to-all", all_to_all, piece_bytes * static_cast<size_t>(size), [&](int64_t i) {
      const int64_t row = i % count / columns;
      return NumberOf((row * size + rank) * columns + i % columns, static_cast<int>(i / count));
    });
  }
  return failures;
}

// 0 when the others were let go with an error that names the rank.
int Hang(Ranks& ranks, std::string_view way, bool in_the_middle) {
  constexpr std::chrono::seconds kDeadline(3);
  const std::unique_ptr<Communicator> group = ranks.Group(way, kDeadline);
  const Buffer values = ranks.Upload(Numbers(1000, group->rank()));
  // Rank 1 has less of a long one than the others, which wait for the rest.
  const int64_t long_count = group->rank() == 1 ? 1 << 20 : 1 << 24;
  const Buffer long_values = Must(ranks.memory().Allocate(static_cast<size_t>(long_count * 4)));
  const auto reduce_long = [&] {
    const int64_t piece = long_count / group->size();
    const std::vector<int64_t> counts(static_cast<size_t>(group->size()), piece);
    return group->ReduceScatterSum(
        Floats(long_values.data(), piece * group->size()), counts,
        Floats(long_values.data(), piece * group->size())
            .subspan(static_cast<size_t>(group->rank() * piece), static_cast<size_t>(piece)));
  };
  if (group->rank() == 1) {
    if (in_the_middle && reduce_long().ok()) (void)ranks.Download(long_values, 4);
    for (int i = 0; i < 600 && group->Check().ok(); ++i) ::usleep(50000);
    return group->Check().ok() ? 1 : 0;
  }
  const auto begin = Clock::now();
  // By NCCL the call itself may wait for rank 1, to connect.
  const Status queued = in_the_middle ? reduce_long() : group->AllReduceSum(Floats(values.data(), 1000));
  if (queued.ok()) (void)ranks.Download(values, 4);
  for (int i = 0; i < 200 && group->Check().ok(); ++i) ::usleep(10000);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const Status status = group->Check();
  fmt::print("{}: rank {} was let go after {:.1f} s of a deadline of {}: {}\n", way, group->rank(), seconds,
             kDeadline.count(), status.ToString());
  return status.code() == StatusCode::kDeadlineExceeded && seconds < 10 ? 0 : 1;
}

int Main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 0;
  const std::string what = argc > 2 ? argv[2] : "times";
  const std::string named = argc > 3 ? argv[3] : "";
  if (size < 2) Die("want NUM_GPUS, 2 or more, and check, times, long, hang or hang-long");
  Ranks ranks(size, argc, argv);
  if (what == "hang" || what == "hang-long")
    return Hang(ranks, named.empty() ? kPacked : named, what == "hang-long");
  int failures = 0;
  for (const std::string_view way : {kPacked, kFlags, kNccl}) {
    if (named.empty() ? what == "long" && way == kPacked : way != named) continue;
    if (named.empty() && way == kNccl && ranks.share_devices()) continue;  // It wants a device a rank.
    const std::unique_ptr<Communicator> group = ranks.Group(way);
    if (what != "long") failures += CheckAll(ranks, *group, way);
    if (what == "times") TimeAll(ranks, *group, way);
    // A long piece does not take the LL protocol, so that would be flags' again.
    if (what == "long" || (what == "times" && way != kPacked)) failures += TimeLong(ranks, *group, way);
    Must(ranks.hosts().Barrier());
  }
  std::vector<float> all = {static_cast<float>(failures)};
  Must(ranks.hosts().AllReduceSum(all));
  if (ranks.first()) fmt::print("{} exchanges differ from what they must be\n", all[0]);
  std::fflush(stdout);
  return all[0] == 0 ? 0 : 1;
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) { return dsv4::bench::Main(argc, argv); }
