// Exchanges of long pieces by one launch (chunked_exchange.h), between LL exchanges and those by flags, which
// count the same rounds. The bytes are those of the hosts' exchange. Here ranks are streams of one device,
// which see each other's mailboxes as they are. Launches are small enough that those of all ranks run at
// once. So parts are many, and words of mailboxes are used again and again.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/collectives/chunked_exchange.h"
#include "backend/cuda/collectives/ll_exchange.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "tests/cuda/device_tensors.h"
#include "tests/cuda/ranks_on_one_device.h"

namespace dsv4::testing {
namespace {

using backend::cuda::CudaContext;
using backend::cuda::ExchangeParams;
using backend::cuda::ExchangeState;
using backend::cuda::ExchangeWords;
using backend::cuda::PeerLinks;
using backend::cuda::StreamParams;
using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

constexpr int kFewBlocks = 4;

enum class Kind : uint8_t { kAllGather, kAllToAll, kReduceScatter };
enum class Way : uint8_t { kStream, kFlags, kPacked };

// One exchange of all ranks.
struct Step {
  Way way;
  Kind kind;
  int64_t num_rows;
  std::vector<int64_t> row_bytes;  // Bytes that every rank gives (all-gather) or gets.
  int unit;
  bool in_place = false;  // All-gathers of one row, and sums.
};

size_t At(int64_t i) { return static_cast<size_t>(i); }
int64_t Total(const Step& step) {
  return std::accumulate(step.row_bytes.begin(), step.row_bytes.end(), int64_t{0});
}
int64_t Most(const Step& step) { return *std::ranges::max_element(step.row_bytes) * step.num_rows; }
// Bytes in front of rank r's in a row of all ranks'.
int64_t Before(const Step& step, int rank) {
  return std::accumulate(step.row_bytes.begin(), step.row_bytes.begin() + rank, int64_t{0});
}

// Input of `rank`.
Bytes Input(const Step& step, int rank, uint32_t seed) {
  const int64_t mine = step.row_bytes[At(rank)] * step.num_rows;
  const int64_t size = step.kind == Kind::kAllGather ? mine : Total(step) * step.num_rows;
  Bytes bytes(At(size));
  std::mt19937 random(seed * 64 + static_cast<uint32_t>(rank));
  if (step.kind == Kind::kReduceScatter) {
    std::uniform_real_distribution<float> of(-1.0F, 1.0F);
    std::vector<float> values(At(size / 4));
    for (float& value : values) value = of(random);
    if (size > 0) std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  }
  return bytes;
}

// Output of `rank`, from all ranks' inputs.
Bytes Output(const Step& step, int rank, const std::vector<Bytes>& inputs) {
  const auto size = static_cast<int>(inputs.size());
  const int64_t all = Total(step);
  const int64_t mine = step.row_bytes[At(rank)];
  Bytes out;
  const auto append = [&](const Bytes& from, int64_t begin, int64_t count) {
    out.insert(out.end(), from.begin() + begin, from.begin() + begin + count);
  };
  switch (step.kind) {
    case Kind::kAllGather:
      for (int64_t row = 0; row < step.num_rows; ++row) {
        for (int r = 0; r < size; ++r)
          append(inputs[At(r)], row * step.row_bytes[At(r)], step.row_bytes[At(r)]);
      }
      break;
    case Kind::kAllToAll:
      for (int r = 0; r < size; ++r) {
        for (int64_t row = 0; row < step.num_rows; ++row)
          append(inputs[At(r)], row * all + Before(step, rank), mine);
      }
      break;
    case Kind::kReduceScatter:
      out.resize(At(mine));
      for (int64_t at = 0; at < mine; at += 4) {
        float sum = 0.0F;
        for (int r = 0; r < size; ++r) {
          float value;
          std::memcpy(&value, &inputs[At(r)][At(Before(step, rank) + at)], 4);
          sum = r == 0 ? value : sum + value;
        }
        std::memcpy(&out[At(at)], &sum, 4);
      }
      break;
  }
  return out;
}

uint64_t RoundsOf(const Step& step, int num_blocks) {
  if (step.way != Way::kStream) return 1;
  const StreamParams p = backend::cuda::PlanStream({}, Most(step), num_blocks);
  return static_cast<uint64_t>((p.num_parts + backend::cuda::kPartsOfRound - 1) /
                               backend::cuda::kPartsOfRound);
}

void Must(const Status& status) { DSV4_CHECK(status.ok()) << status.ToString(); }

class Rank {
 public:
  Rank(int size, int rank, std::chrono::milliseconds deadline, bool overlap)
      : device_({.overlap = overlap}),
        mailbox_(device_.New(DType::kU8, {backend::cuda::kMailboxBytes})),
        state_(device_.New(DType::kU8, {sizeof(ExchangeState)})),
        words_(device_.New(DType::kU8, {sizeof(ExchangeWords)})) {
    links_.state = static_cast<ExchangeState*>(state_.view.data);
    links_.words = static_cast<ExchangeWords*>(words_.view.data);
    links_.deadline_ns = std::chrono::nanoseconds(deadline).count();
    links_.rank = rank;
    links_.size = size;
    (void)device_.Bytes(state_.view);  // All memory is there, and zero, before anybody writes.
  }
  void Meet(int rank, const Rank& other) {
    links_.mailboxes[rank] = static_cast<std::byte*>(other.mailbox_.view.data);
  }

  // Buffers of one more step, on the device.
  void Add(const Step& step, const Bytes& input) {
    const int64_t mine = step.row_bytes[At(links_.rank)];
    int64_t out_bytes = mine;
    if (step.kind == Kind::kAllGather) out_bytes = Total(step) * step.num_rows;
    if (step.kind == Kind::kAllToAll) out_bytes = mine * step.num_rows * links_.size;
    inputs_.push_back(New(static_cast<int64_t>(input.size())));
    outputs_.push_back(New(out_bytes));
    out_bytes_.push_back(At(out_bytes));
  }
  // Memory as it is at first, and nothing of the old bytes.
  void Reset(size_t step_number, const Step& step, const Bytes& input) {
    Upload(inputs_[step_number], input);
    Bytes output(out_bytes_[step_number], std::byte{0xAB});
    if (step.in_place && step.kind == Kind::kAllGather)
      std::ranges::copy(input, output.begin() + Before(step, links_.rank));
    Upload(outputs_[step_number], output);
  }
  void Queue(size_t step_number, const Step& step, int num_blocks) {
    ExchangeParams p = {{links_}};
    p.num_rows = step.num_rows;
    const int64_t all = Total(step);
    const int64_t mine = step.row_bytes[At(links_.rank)];
    auto* in = inputs_[step_number].view.as<std::byte>();
    auto* out = outputs_[step_number].view.as<std::byte>();
    for (int r = 0; r < links_.size; ++r) {
      const int64_t bytes = step.row_bytes[At(r)];
      const int64_t before = Before(step, r);
      switch (step.kind) {
        case Kind::kAllGather:
          p.send[r] = {step.in_place ? out + Before(step, links_.rank) : in, mine, mine};
          p.receive[r] = {out + before, all, bytes};
          break;
        case Kind::kAllToAll:
          p.send[r] = {in + before, all, bytes};
          p.receive[r] = {out + r * mine * step.num_rows, mine, mine};
          break;
        case Kind::kReduceScatter:
          p.send[r] = {in + before, bytes, bytes};
          break;
      }
    }
    const bool sum = step.kind == Kind::kReduceScatter;
    if (sum) p.sum = reinterpret_cast<float*>(step.in_place ? in + Before(step, links_.rank) : out);
    Launch(p, step, num_blocks);
  }
  // The launch of a rank that leaves after some parts.
  void QueuePartOf(const StreamParams& p) {
    StreamParams mine = p;
    static_cast<PeerLinks&>(mine) = links_;
    Must(context().queue().BeginOp({"a part of an exchange", {}}));
    context().Launch(backend::cuda::StreamKernelFor(16, false), kFewBlocks,
                     backend::cuda::kChunkedExchangeThreads, 0, mine);
    Must(context().queue().EndOp());
  }
  void HandOver() {
    Must(context().queue().OnStream("test", [](cudaStream_t) { return Status(); }));
  }

  Bytes output(size_t step_number, const Step& step) {
    const bool in_input = step.in_place && step.kind == Kind::kReduceScatter;
    Bytes bytes = device_.Bytes((in_input ? inputs_ : outputs_)[step_number].view);
    if (in_input) bytes.erase(bytes.begin(), bytes.begin() + Before(step, links_.rank));
    bytes.resize(out_bytes_[step_number]);
    return bytes;
  }
  ExchangeState state() { return Read<ExchangeState>(state_); }
  ExchangeWords words() { return Read<ExchangeWords>(words_); }
  void Abort() {
    const ExchangeWords words = {.abort = 1};
    Must(device_.memory().CopyFromHost(words_.view.data, &words, sizeof(words), nullptr));
  }

 private:
  CudaContext& context() { return static_cast<CudaContext&>(device_.context()); }
  DeviceTensor New(int64_t num_bytes) { return device_.New(DType::kU8, {std::max(num_bytes, int64_t{16})}); }
  void Upload(const DeviceTensor& to, const Bytes& bytes) {
    if (!bytes.empty())
      Must(device_.memory().CopyFromHost(to.view.data, bytes.data(), bytes.size(), nullptr));
  }
  template <typename T>
  T Read(const DeviceTensor& tensor) {
    T value;
    const Bytes bytes = device_.Bytes(tensor.view);
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  void Launch(ExchangeParams p, const Step& step, int num_blocks) {
    Must(context().queue().BeginOp({"an exchange", {}}));
    const bool sum = step.kind == Kind::kReduceScatter;
    const int64_t most = Most(step);
    const auto grid = static_cast<unsigned>(num_blocks);
    if (step.way == Way::kStream) {
      context().Launch(backend::cuda::StreamKernelFor(step.unit, sum), grid,
                       backend::cuda::kChunkedExchangeThreads, 0,
                       backend::cuda::PlanStream(p, most, num_blocks));
    } else {
      p.share = (most + num_blocks - 1) / num_blocks / 16 * 16 + 16;
      context().Launch(step.way == Way::kPacked ? backend::cuda::LlKernelFor(step.unit)
                                                : backend::cuda::ExchangeKernelFor(step.unit, sum),
                       grid, backend::cuda::kExchangeThreads, 0, p);
    }
    Must(context().queue().EndOp());
  }

  Device device_;
  DeviceTensor mailbox_;
  DeviceTensor state_;
  DeviceTensor words_;
  PeerLinks links_;
  std::vector<DeviceTensor> inputs_;
  std::vector<DeviceTensor> outputs_;
  std::vector<size_t> out_bytes_;
};

std::vector<std::unique_ptr<Rank>> Ranks(int size, std::chrono::milliseconds deadline, bool overlap) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<Rank>(size, r, deadline, overlap));
  for (const auto& rank : ranks) {
    for (int r = 0; r < size; ++r) rank->Meet(r, *ranks[At(r)]);
  }
  return ranks;
}

std::vector<int64_t> Even(int size, int64_t bytes) { return std::vector<int64_t>(At(size), bytes); }
// Rank `without` has nothing, and nobody as much as another.
std::vector<int64_t> Uneven(int size, int64_t bytes, int64_t more, int without) {
  std::vector<int64_t> row_bytes;
  for (int r = 0; r < size; ++r) row_bytes.push_back(r == without ? 0 : bytes + r * more);
  return row_bytes;
}

// Lists of at most six, which are handed over at once.
std::vector<std::vector<Step>> Lists(int size, int num_blocks) {
  const int64_t of_part = num_blocks * backend::cuda::kMaxPartBytes;
  const int last = size - 1;
  using enum Way;
  using enum Kind;
  return {
      {{kStream, kAllGather, 77, Uneven(size, 16 * 301, 48, 0), 16},
       {kPacked, kAllGather, 1, Even(size, 4096), 8},
       {kStream, kReduceScatter, 1, Uneven(size, of_part + 4, 20, last), 4},
       {kFlags, kReduceScatter, 1, Even(size, of_part), 16},
       {kStream, kAllToAll, 191, Uneven(size, 16 * 200, 16, last), 16},
       {kStream, kReduceScatter, 1, Even(size, 5 * of_part + 16), 16, true}},
      {{kStream, kAllGather, 1, Even(size, of_part), 16, true},
       {kStream, kAllGather, 1, Even(size, 2 * of_part), 16},
       {kFlags, kAllToAll, 33, Uneven(size, 64, 16, 0), 16},
       {kStream, kAllGather, 1, Uneven(size, 2 * of_part + 16, 16, -1), 16, true},
       {kPacked, kAllToAll, 3, Even(size, 808), 8},
       {kStream, kAllGather, 1, Uneven(size, 4 * of_part, 16, 0), 16}},
      {{kStream, kAllGather, 5, Uneven(size, of_part / 40 * 8 + 8, 8, last), 8},
       {kStream, kAllToAll, 7001, Uneven(size, 12, 4, 0), 4},
       {kStream, kAllGather, 40001, Uneven(size, 3, 2, 0), 1},
       {kStream, kReduceScatter, 1, Uneven(size, 16, 3 * of_part, -1), 4},
       {kStream, kReduceScatter, 1, Even(size, 16), 16},
       {kStream, kAllToAll, 3, Uneven(size, 3 * of_part, 1024, -1), 16}},
      {{kPacked, kAllGather, 1, Even(size, 8), 8},
       {kStream, kReduceScatter, 1, Uneven(size, 3 * of_part + 48, 16, -1), 16, true},
       {kPacked, kAllGather, 1, Even(size, 64), 8},
       {kPacked, kAllGather, 1, Even(size, 640), 8},
       {kStream, kReduceScatter, 1, Uneven(size, 11 * of_part + 48, 160, -1), 16},
       {kFlags, kAllGather, 1, Even(size, of_part), 16}},
  };
}

void ExpectExchanges(int size, int num_blocks) {
  ASSERT_TRUE(kRanksHaveChannels);
  // Kernels that begin early and wait must leave room for those of other ranks that they wait for.
  const auto ranks = Ranks(size, std::chrono::seconds(10), size == 2 && num_blocks <= kFewBlocks);
  uint64_t rounds = 0;
  size_t first_step = 0;
  uint32_t seed = 0;
  for (const std::vector<Step>& list : Lists(size, num_blocks)) {
    std::vector<std::vector<Bytes>> inputs(list.size());
    for (size_t s = 0; s < list.size(); ++s) {
      ++seed;
      for (int r = 0; r < size; ++r) {
        inputs[s].push_back(Input(list[s], r, seed));
        ranks[At(r)]->Add(list[s], inputs[s].back());
      }
    }
    // The second list of the same launches becomes a graph, the third replays it.
    for (int time = 0; time < 3; ++time) {
      for (int r = 0; r < size; ++r) {
        for (size_t s = 0; s < list.size(); ++s)
          ranks[At(r)]->Reset(first_step + s, list[s], inputs[s][At(r)]);
      }
      for (const auto& rank : ranks) {
        for (size_t s = 0; s < list.size(); ++s) rank->Queue(first_step + s, list[s], num_blocks);
      }
      for (const auto& rank : ranks) rank->HandOver();
      for (const Step& step : list) rounds += RoundsOf(step, num_blocks);
      for (int r = 0; r < size; ++r) {
        Rank& rank = *ranks[At(r)];
        const std::string of_rank = std::to_string(size) + " ranks, " + std::to_string(num_blocks) +
                                    " blocks, time " + std::to_string(time) + ", rank " + std::to_string(r);
        for (size_t s = 0; s < list.size(); ++s) {
          EXPECT_TRUE(rank.output(first_step + s, list[s]) == Output(list[s], r, inputs[s]))
              << of_rank << ", exchange " << first_step + s;
        }
        EXPECT_EQ(rank.state().round, rounds) << of_rank;
        EXPECT_EQ(rank.state().broken, 0) << of_rank;
        EXPECT_EQ(rank.words().late, 0U) << of_rank;
      }
      if (::testing::Test::HasFailure()) return;
    }
    first_step += list.size();
  }
}

TEST(CudaPeerStream, GivesWhatHostsWould) {
  for (const int size : {2, 3, 4}) ExpectExchanges(size, kFewBlocks);
}
TEST(CudaPeerStream, OfOneBlock) { ExpectExchanges(3, 1); }
// As many as one device has room for, of two ranks.
TEST(CudaPeerStream, OfManyBlocks) { ExpectExchanges(2, 48); }

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
constexpr Step kLong = {Way::kStream, Kind::kAllGather, 1, {}, 16};

// The second of two ranks leaves after `num_parts`. The first ends by the deadline, says so, and exchanges
// nothing any more.
void ExpectRankIsMissed(int64_t num_parts) {
  ASSERT_TRUE(kRanksHaveChannels);
  const auto ranks = Ranks(2, std::chrono::milliseconds(300), true);
  Step step = kLong;
  step.row_bytes = Even(2, 20 * kFewBlocks * backend::cuda::kMaxPartBytes);
  const Bytes input = Input(step, 0, 1);
  for (const auto& rank : ranks) {
    rank->Add(step, input);
    rank->Reset(0, step, input);
  }
  if (num_parts > 0) {
    StreamParams p = backend::cuda::PlanStream({}, Most(step), kFewBlocks);
    p.num_parts = num_parts;
    p.num_rows = 0;  // It sends nothing but flags, in time.
    ranks[1]->QueuePartOf(p);
  }
  const auto begin = Clock::now();
  ranks[0]->Queue(0, step, kFewBlocks);
  ranks[0]->HandOver();
  if (num_parts > 0) ranks[1]->HandOver();
  EXPECT_EQ(ranks[0]->state().broken, 1);
  EXPECT_EQ(ranks[0]->words().late, 2U);
  EXPECT_LT(SecondsSince(begin), 5.0);
  if (num_parts > 0) {
    EXPECT_EQ(ranks[1]->state().broken, 0);
    EXPECT_EQ(ranks[1]->words().late, 0U);
  }
  const auto again = Clock::now();
  for (int i = 0; i < 20; ++i) ranks[0]->Queue(0, step, kFewBlocks);
  ranks[0]->HandOver();
  EXPECT_EQ(ranks[0]->state().broken, 1);
  EXPECT_LT(SecondsSince(again), 3.0);  // Each of these would wait for as long.
}

TEST(CudaPeerStream, MissesARankThatDoesNotCome) { ExpectRankIsMissed(0); }
TEST(CudaPeerStream, MissesARankThatLeavesInTheMiddle) {
  for (const int64_t num_parts : {1, 2, 3, 7}) ExpectRankIsMissed(num_parts);
}

TEST(CudaPeerStream, EndsWhenTheHostSaysSo) {
  ASSERT_TRUE(kRanksHaveChannels);
  const auto ranks = Ranks(2, std::chrono::minutes(5), true);
  Step step = kLong;
  step.row_bytes = Even(2, 20 * kFewBlocks * backend::cuda::kMaxPartBytes);
  const Bytes input = Input(step, 0, 1);
  ranks[0]->Add(step, input);
  ranks[0]->Reset(0, step, input);
  ranks[0]->Abort();
  const auto begin = Clock::now();
  ranks[0]->Queue(0, step, kFewBlocks);
  ranks[0]->HandOver();
  EXPECT_EQ(ranks[0]->state().broken, 1);
  EXPECT_EQ(ranks[0]->words().late, 0U);
  EXPECT_LT(SecondsSince(begin), 30.0);
}

}  // namespace
}  // namespace dsv4::testing
