// Attention of up to eight tokens over ranks that divide a sequence's entries, in one launch. It has the bits
// of the ops one by one, token by token, whatever of them each rank has fused. Here ranks are streams of one
// device, which see each other's mailboxes as they are. A loopback rank, whose exchanges come back to it,
// tests more ranks and as many tokens as a model's step has. Several such ranks would not fit on one device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/collectives/ll_exchange.h"
#include "backend/cuda/lowering/record/over_ranks.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "tests/cuda/device_tensors.h"
#include "tests/cuda/ranks_on_one_device.h"

namespace dsv4::testing {
namespace {

using backend::cuda::CudaContext;
using backend::cuda::ExchangeParams;
using backend::cuda::ExchangeState;
using backend::cuda::ExchangeWords;
using backend::cuda::ExchangeWork;
using backend::cuda::PeerLinks;

constexpr int64_t kOwnHeads = 16;
constexpr int64_t kWindow = 128;
constexpr int64_t kRowsPerPage = 61;
constexpr int64_t kFrequencies = 32;
constexpr float kScale = 0.05F;

void Must(const Status& status) { DSV4_CHECK(status.ok()) << status.ToString(); }
size_t At(int64_t i) { return static_cast<size_t>(i); }

struct Tokens {
  int64_t first_position;
  int64_t count;
};
struct Case {
  int ranks;
  int64_t dim;
  std::vector<Tokens> sequences;
  int64_t ratio;
  int64_t top_k;  // 0: every visible entry.

  int64_t num_tokens() const {
    int64_t count = 0;
    for (const Tokens& tokens : sequences) count += tokens.count;
    return count;
  }
  std::string Text() const {
    return std::to_string(ranks) + " ranks, width " + std::to_string(dim) + ", " +
           std::to_string(num_tokens()) + " tokens of " + std::to_string(sequences.size()) + " from " +
           std::to_string(sequences[0].first_position) + ", ratio " + std::to_string(ratio) + ", top " +
           std::to_string(top_k);
  }
};

// Part of a rank: which entries it has, whether it has the window, and which queries are its own.
struct Place {
  EntryShard shard;
  bool window;
  uint32_t seed;
};

std::vector<uint16_t> Queries(const Case& c, const Place& place) {
  return Bf16s(Normals(c.num_tokens() * kOwnHeads * c.dim, place.seed));
}
std::vector<float> Sinks() { return Normals(kOwnHeads, 3); }

// Lists of chosen entries, ascending: of those that each token sees about as many as there are places.
std::vector<int32_t> Lists(const Case& c) {
  std::vector<int32_t> lists;
  uint32_t number = 1;
  for (const Tokens& tokens : c.sequences) {
    for (int64_t i = 0; i < tokens.count; ++i) {
      const int64_t visible = (tokens.first_position + i + 1) / c.ratio;
      std::vector<int32_t> list;
      for (int64_t entry = 0; entry < visible && std::ssize(list) < c.top_k; ++entry) {
        number = number * 1664525 + 1013904223;
        const int64_t rest = visible - entry;
        if (rest <= c.top_k - std::ssize(list) ||
            static_cast<int64_t>(number >> 8) * visible < (c.top_k << 24)) {
          list.push_back(static_cast<int32_t>(entry));
        }
      }
      list.resize(At(c.top_k), -1);
      lists.insert(lists.end(), list.begin(), list.end());
    }
  }
  return lists;
}

// The caches of a case's sequences as one rank has them.
class Caches {
 public:
  Caches(Device& device, const Case& c, const EntryShard& shard) {
    pages_.resize(c.sequences.size());  // They are borrowed.
    int64_t begin = 0;
    for (size_t s = 0; s < c.sequences.size(); ++s) {
      const auto [first_position, count] = c.sequences[s];
      const auto seed = static_cast<uint32_t>(100 + 2 * s);
      const int64_t capacity = kWindow + count;
      const int64_t num_entries = (first_position + count) / c.ratio;
      const std::vector<uint16_t> all = Bf16s(Normals(num_entries * c.dim, seed));
      tensors_.push_back(
          device.Copy(DType::kBF16, {capacity, c.dim}, Bf16s(Normals(capacity * c.dim, seed + 1))));
      const RingRows window = {
          .data = tensors_.back().view.data, .capacity = capacity, .width = c.dim, .format = {}};
      const int64_t num_rows = shard.NumRows(num_entries);
      for (int64_t first = 0; first < num_rows; first += kRowsPerPage) {
        std::vector<uint16_t> page;
        for (int64_t row = first; row < std::min(num_rows, first + kRowsPerPage); ++row) {
          const auto entry = all.begin() + shard.Entry(row) * c.dim;
          page.insert(page.end(), entry, entry + c.dim);
        }
        page.resize(At(kRowsPerPage * c.dim), 0x7FC0);  // NaN, which no kernel may look at.
        tensors_.push_back(device.Copy(DType::kBF16, {kRowsPerPage, c.dim}, page));
        pages_[s].push_back(tensors_.back().view.data);
      }
      sequences_.push_back({.token_begin = begin,
                            .num_tokens = count,
                            .first_position = first_position,
                            .window = window,
                            .entries = {.pages = pages_[s],
                                        .rows_per_page = kRowsPerPage,
                                        .num_rows = num_rows,
                                        .width = c.dim,
                                        .format = {}}});
      begin += count;
    }
  }
  const std::vector<ops::AttentionSequence>& sequences() const { return sequences_; }
  // The one token of a step that has no other.
  std::vector<ops::AttentionSequence> Of(int64_t token) const {
    for (ops::AttentionSequence sequence : sequences_) {
      const int64_t place = token - sequence.token_begin;
      if (place >= sequence.num_tokens) continue;
      sequence.token_begin = 0;
      sequence.num_tokens = 1;
      sequence.first_position += place;
      return {sequence};
    }
    return {};
  }
  std::vector<int32_t> Positions() const {
    std::vector<int32_t> positions;
    for (const ops::AttentionSequence& sequence : sequences_) {
      for (int64_t i = 0; i < sequence.num_tokens; ++i)
        positions.push_back(static_cast<int32_t>(sequence.first_position + i));
    }
    return positions;
  }

 private:
  std::vector<DeviceTensor> tensors_;
  std::vector<std::vector<void*>> pages_;
  std::vector<ops::AttentionSequence> sequences_;
};

ops::AttentionPartArgs PartArgs(const Case& c, const Place& place, const TensorView& q,
                                const TensorView& selected, const TensorView& part,
                                std::span<const ops::AttentionSequence> sequences) {
  return {.q = q,
          .selected = selected,
          .part = part,
          .softmax_scale = kScale,
          .window_size = place.window ? kWindow : 0,
          .ratio = c.ratio,
          .shard = place.shard,
          .sequences = sequences};
}
DeviceTensor Frequencies(Device& device) {
  return device.Copy(DType::kF32, {kFrequencies}, Normals(kFrequencies, 4, 0.01F));
}

// Output of a rank.
struct Output {
  std::vector<std::byte> parts;  // [ranks, tokens, own heads, dim + 2], f32
  std::vector<std::byte> o;      // [tokens, own heads, dim], bf16
  friend bool operator==(const Output&, const Output&) = default;
};

// The same by the ops one by one, a token at a time, on a device of its own. It gives the output of each of
// `places`, whose neighbours are the others.
std::vector<Output> OneByOne(const Case& c, const std::vector<Place>& places) {
  Device device;
  const int64_t n = c.num_tokens();
  const int64_t width = c.dim + 2;
  const std::vector<int32_t> lists = Lists(c);
  const DeviceTensor sink = device.Copy(DType::kF32, {kOwnHeads}, Sinks());
  const DeviceTensor frequencies = Frequencies(device);
  const auto bytes_of_part = At(kOwnHeads * width * 4);
  std::vector<Output> outputs(places.size());
  for (Output& output : outputs) output.parts.resize(At(c.ranks * n) * bytes_of_part);
  std::vector<std::vector<uint16_t>> queries;
  std::vector<std::unique_ptr<Caches>> caches;
  for (const Place& place : places) {
    queries.push_back(Queries(c, place));
    caches.push_back(std::make_unique<Caches>(device, c, place.shard));
  }
  for (int64_t token = 0; token < n; ++token) {
    std::vector<uint16_t> all_q;
    for (const std::vector<uint16_t>& q : queries) {
      const auto first = q.begin() + token * kOwnHeads * c.dim;
      all_q.insert(all_q.end(), first, first + kOwnHeads * c.dim);
    }
    const DeviceTensor q = device.Copy(DType::kBF16, {1, c.ranks * kOwnHeads, c.dim}, all_q);
    DeviceTensor selected;
    if (c.top_k > 0) {
      selected = device.Copy(
          DType::kI32, {1, c.top_k},
          std::vector<int32_t>(lists.begin() + token * c.top_k, lists.begin() + (token + 1) * c.top_k));
    }
    for (int from = 0; from < c.ranks; ++from) {
      const DeviceTensor part = device.New(DType::kF32, {1, c.ranks * kOwnHeads, width});
      const std::vector<ops::AttentionSequence> sequences = caches[At(from)]->Of(token);
      Must(device.table().attention_part(
          device.context(), PartArgs(c, places[At(from)], q.view, selected.view, part.view, sequences)));
      const std::vector<std::byte> bytes = device.Bytes(part.view);
      for (int to = 0; to < c.ranks; ++to) {
        std::copy_n(
            bytes.begin() + static_cast<int64_t>(At(to) * bytes_of_part), bytes_of_part,
            outputs[At(to)].parts.begin() + static_cast<int64_t>(At(from * n + token) * bytes_of_part));
      }
    }
    const std::vector<int32_t> position = {caches[0]->Positions()[At(token)]};
    const DeviceTensor positions = device.Copy(DType::kI32, {1}, position);
    for (Output& output : outputs) {
      std::vector<std::byte> of_token;
      for (int from = 0; from < c.ranks; ++from) {
        const auto first = output.parts.begin() + static_cast<int64_t>(At(from * n + token) * bytes_of_part);
        of_token.insert(of_token.end(), first, first + static_cast<int64_t>(bytes_of_part));
      }
      const DeviceTensor parts = device.Copy(DType::kF32, {c.ranks, 1, kOwnHeads, width}, of_token);
      const DeviceTensor o = device.New(DType::kBF16, {1, kOwnHeads, c.dim});
      Must(device.table().merge_attention(device.context(), {parts.view, sink.view, o.view}));
      Must(device.table().rope(
          device.context(),
          {.x = o.view, .positions = positions.view, .frequencies = frequencies.view, .inverse = true}));
      const std::vector<std::byte> bytes = device.Bytes(o.view);
      output.o.insert(output.o.end(), bytes.begin(), bytes.end());
    }
  }
  return outputs;
}

// Behind which of the five ops a launch ends early; none: all are one.
enum class EndsBehind : uint8_t { kNone, kGather, kPart, kAllToAll, kMerge };
constexpr int kNumEnds = 5;

class Rank {
 public:
  Rank(const Case& c, const Place& place, int rank)
      : case_(c),
        place_(place),
        device_({.overlap = false}),  // As in cuda_indexer_over_ranks_test.
        caches_(device_, c, place.shard),
        q_(device_.Copy(DType::kBF16, {c.num_tokens(), kOwnHeads, c.dim}, Queries(c, place))),
        all_q_(device_.New(DType::kBF16, {c.num_tokens(), c.ranks * kOwnHeads, c.dim})),
        part_(device_.New(DType::kF32, {c.num_tokens(), c.ranks * kOwnHeads, c.dim + 2})),
        parts_(device_.New(DType::kF32, {c.ranks, c.num_tokens(), kOwnHeads, c.dim + 2})),
        o_(device_.New(DType::kBF16, {c.num_tokens(), kOwnHeads, c.dim})),
        sink_(device_.Copy(DType::kF32, {kOwnHeads}, Sinks())),
        positions_(device_.Copy(DType::kI32, {c.num_tokens()}, caches_.Positions())),
        frequencies_(Frequencies(device_)),
        mailbox_(device_.New(DType::kU8, {backend::cuda::kMailboxBytes})),
        state_(device_.New(DType::kU8, {sizeof(ExchangeState)})),
        words_(device_.New(DType::kU8, {sizeof(ExchangeWords)})) {
    if (c.top_k > 0) selected_ = device_.Copy(DType::kI32, {c.num_tokens(), c.top_k}, Lists(c));
    links_.state = static_cast<ExchangeState*>(state_.view.data);
    links_.words = static_cast<ExchangeWords*>(words_.view.data);
    links_.deadline_ns = int64_t{5000000000};
    links_.rank = rank;
    links_.size = c.ranks;
    (void)device_.Bytes(state_.view);  // All memory is there, and zero, before anybody writes.
  }
  void Meet(int rank, const Rank& other) {
    links_.mailboxes[rank] = static_cast<std::byte*>(other.mailbox_.view.data);
  }
  // A piece for another rank comes back as if from it (comm/loopback_group.h).
  void MeetItself() {
    for (int r = 0; r < case_.ranks; ++r) {
      links_.mailboxes[r] =
          static_cast<std::byte*>(mailbox_.view.data) + (r - links_.rank) * backend::cuda::kSourceBytes;
    }
  }

  void Attend(EndsBehind end) {
    const auto behind = [&](EndsBehind op) {
      if (op == end) HandOver();
    };
    Exchange(/*gathers=*/true, q_.view, all_q_.view);
    behind(EndsBehind::kGather);
    Must(device_.table().attention_part(
        device_.context(),
        PartArgs(case_, place_, all_q_.view, selected_.view, part_.view, caches_.sequences())));
    behind(EndsBehind::kPart);
    Exchange(/*gathers=*/false, part_.view, parts_.view);
    behind(EndsBehind::kAllToAll);
    Must(device_.table().merge_attention(device_.context(), {parts_.view, sink_.view, o_.view}));
    behind(EndsBehind::kMerge);
    Must(device_.table().rope(
        device_.context(),
        {.x = o_.view, .positions = positions_.view, .frequencies = frequencies_.view, .inverse = true}));
  }
  void HandOver() {
    Must(context().queue().OnStream("test", [](cudaStream_t) { return Status(); }));
  }

  Device& device() { return device_; }
  Output output() { return {.parts = device_.Bytes(parts_.view), .o = device_.Bytes(o_.view)}; }
  ExchangeState state() {
    ExchangeState state;
    const std::vector<std::byte> bytes = device_.Bytes(state_.view);
    std::memcpy(&state, bytes.data(), sizeof(state));
    return state;
  }

 private:
  CudaContext& context() { return static_cast<CudaContext&>(device_.context()); }
  // As groups/peer_group.cc makes it.
  void Exchange(bool gathers, const TensorView& mine, const TensorView& all) {
    ExchangeParams p = {{links_}};
    p.num_rows = case_.num_tokens();
    const int64_t bytes = mine.num_bytes() / p.num_rows / (gathers ? 1 : case_.ranks);
    p.share = (bytes * p.num_rows + 15) / 16 * 16;
    const int64_t all_bytes = case_.ranks * bytes;
    for (int r = 0; r < case_.ranks; ++r) {
      auto* const from = mine.as<std::byte>();
      auto* const to = all.as<std::byte>();
      p.send[r] = gathers ? backend::cuda::ExchangePiece{from, bytes, bytes}
                          : backend::cuda::ExchangePiece{from + r * bytes, all_bytes, bytes};
      p.receive[r] = gathers ? backend::cuda::ExchangePiece{to + r * bytes, all_bytes, bytes}
                             : backend::cuda::ExchangePiece{to + r * bytes * p.num_rows, bytes, bytes};
    }
    const ExchangeWork work = {.params = p,
                               .kernel = backend::cuda::LlKernelFor(8),
                               .blocks = 1,
                               .mine = mine.data,
                               .all = all.data,
                               .piece_bytes = bytes};
    Must(context().queue().BeginOp({"an exchange", {}}));
    if (gathers) {
      backend::cuda::RecordGather(context(), work);
    } else if (!backend::cuda::FuseAllToAll(context(), work)) {
      context().Launch(work.kernel, dim3(work.blocks), dim3(backend::cuda::kExchangeThreads), 0, p);
    }
    Must(context().queue().EndOp());
  }

  const Case case_;
  const Place place_;
  Device device_;
  Caches caches_;
  DeviceTensor q_;
  DeviceTensor all_q_;
  DeviceTensor part_;
  DeviceTensor parts_;
  DeviceTensor o_;
  DeviceTensor sink_;
  DeviceTensor positions_;
  DeviceTensor frequencies_;
  DeviceTensor selected_;
  DeviceTensor mailbox_;
  DeviceTensor state_;
  DeviceTensor words_;
  PeerLinks links_;
};

// Three lists of so many steps that both halves of a mailbox are used again; the third one is a graph.
// Whether all came out as `want`.
constexpr uint64_t kSteps = 3;
bool ExpectOutputs(const Case& c, const std::vector<std::unique_ptr<Rank>>& ranks,
                   const std::vector<Output>& want) {
  uint64_t rounds = 0;
  for (const bool mixed : {false, true}) {
    for (int list = 0; list < 3; ++list) {
      const std::string what = c.Text() + (mixed ? ", mixed" : "") + ", list " + std::to_string(list);
      std::vector<int64_t> launches;
      std::vector<int64_t> replayed;
      for (size_t r = 0; r < ranks.size(); ++r) {
        launches.push_back(ranks[r]->device().launches());
        replayed.push_back(ranks[r]->device().replayed_lists());
        for (uint64_t step = 0; step < kSteps; ++step) {
          const uint64_t end = (r + step + static_cast<uint64_t>(list)) % kNumEnds;
          ranks[r]->Attend(mixed ? static_cast<EndsBehind>(end) : EndsBehind::kNone);
        }
      }
      rounds += 2 * kSteps;
      for (const auto& rank : ranks) rank->HandOver();
      for (size_t r = 0; r < ranks.size(); ++r) {
        const std::string of_rank = what + ", rank " + std::to_string(r);
        Rank& rank = *ranks[r];
        const Output output = rank.output();
        if (c.ranks == 8 && rank.state().broken != 0) {
          std::cout << "  this GPU has no room for the clusters of eight ranks at once\n";
          return true;
        }
        EXPECT_EQ(rank.state().round, rounds) << of_rank;
        EXPECT_EQ(rank.state().broken, 0) << of_rank;
        EXPECT_TRUE(output.parts == want[r].parts) << of_rank;
        EXPECT_TRUE(output.o == want[r].o) << of_rank;
        if (mixed || !rank.device().runs_hopper_code()) continue;
        const int64_t of_step = c.top_k > 0 ? 2 : 1;  // The list of what is here comes in front.
        EXPECT_EQ(rank.device().launches() - launches[r], of_step * static_cast<int64_t>(kSteps)) << of_rank;
        if (list < 2) continue;
        EXPECT_GT(rank.device().replayed_lists(), replayed[r]) << of_rank;
      }
      if (::testing::Test::HasFailure()) return false;
    }
  }
  return true;
}

// Not more ranks times tokens than run at once: a token's clusters of the last rank must find room beside all
// of the others.
TEST(CudaAttentionOverRanks, HasTheBitsOfTheOpsOneByOneTokenByToken) {
  ASSERT_TRUE(kRanksHaveChannels);
  const Case cases[] = {
      {2, 128, {{0, 8}}, 4, 0},      {2, 128, {{125, 8}}, 4, 0},
      {2, 128, {{1021, 8}}, 4, 0},   {2, 128, {{2000, 8}}, 4, 96},
      {2, 128, {{8189, 5}}, 128, 0}, {2, 128, {{900, 3}, {37, 1}, {4093, 4}}, 4, 64},
      {2, 512, {{1021, 4}}, 4, 0},   {2, 512, {{6141, 5}}, 4, 512},
      {2, 512, {{8190, 3}}, 128, 0}, {4, 128, {{1021, 2}}, 4, 0},
      {4, 128, {{1022, 4}}, 4, 0},   {4, 128, {{130, 1}}, 4, 16},
      {8, 128, {{700, 1}}, 4, 0},
  };
  for (const Case& c : cases) {
    std::vector<Place> places;
    for (int r = 0; r < c.ranks; ++r)
      places.push_back({.shard = {r, c.ranks}, .window = r == 1, .seed = static_cast<uint32_t>(10 + r)});
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int r = 0; r < c.ranks; ++r) ranks.push_back(std::make_unique<Rank>(c, places[At(r)], r));
    for (const auto& rank : ranks) {
      for (int r = 0; r < c.ranks; ++r) rank->Meet(r, *ranks[At(r)]);
    }
    if (!ExpectOutputs(c, ranks, OneByOne(c, places))) return;
  }
}

// Every rank has what this one has.
TEST(CudaAttentionOverRanks, AsManyTokensAsAStepHasOfMoreRanks) {
  for (const int num_ranks : {2, 4, 8}) {
    for (const int64_t dim : {512, 128}) {
      for (int64_t tokens = 1; tokens <= backend::cuda::kMaxOverRanksTokens; ++tokens) {
        const Case c = tokens % 2 == 0 ? Case{num_ranks, dim, {{2043, tokens}}, 4, 0}
                                       : Case{num_ranks, dim, {{5117, tokens}}, 4, 512};
        const Place place = {.shard = {1, num_ranks}, .window = true, .seed = 10};
        std::vector<std::unique_ptr<Rank>> alone;
        alone.push_back(std::make_unique<Rank>(c, place, 1));
        alone[0]->MeetItself();
        if (!ExpectOutputs(c, alone, OneByOne(c, std::vector<Place>(static_cast<size_t>(num_ranks), place))))
          return;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
