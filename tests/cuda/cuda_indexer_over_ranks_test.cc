// Ranks that divide a sequence's entries and choose among them in one launch. The bits are those of the ops
// one by one, whatever of them each rank has fused. Here ranks are streams of one device, which see each
// other's mailboxes as they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/collectives/ll_exchange.h"
#include "backend/cuda/kernels/indexer/indexer_over_ranks.h"
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
using backend::cuda::PeerLinks;

constexpr int64_t kHeads = 64;
constexpr int64_t kWidth = 128;
constexpr int64_t kRatio = 4;
constexpr int64_t kRowsPerPage = 61;

struct Case {
  int ranks;
  int64_t num_entries;
  int64_t top_k;
  bool tied;  // Small integers make many equal scores.
  int64_t tokens = 1;
};

// How much of the exchange and of the choice joins indexer_candidates.
enum class Joins : uint8_t { kAll, kGather, kNothing };

std::vector<uint16_t> Numbers(const Case& c, int64_t count, uint32_t seed) {
  std::vector<float> values = Normals(count, seed);
  if (c.tied) {
    for (float& value : values) value = std::nearbyint(value);
  }
  return Bf16s(values);
}

// The entries of a sequence that `shard` has, on a device.
class Keys {
 public:
  Keys(Device& device, const std::vector<uint16_t>& all, const EntryShard& shard) {
    num_rows_ = shard.NumRows(static_cast<int64_t>(all.size()) / kWidth);
    for (int64_t first = 0; first < num_rows_; first += kRowsPerPage) {
      std::vector<uint16_t> page;
      for (int64_t row = first; row < std::min(num_rows_, first + kRowsPerPage); ++row) {
        const auto key = all.begin() + shard.Entry(row) * kWidth;
        page.insert(page.end(), key, key + kWidth);
      }
      page.resize(kRowsPerPage * kWidth, 0x7FC0);  // NaN, which nobody may look at.
      tensors_.push_back(device.Copy(DType::kBF16, {kRowsPerPage, kWidth}, page));
      pages_.push_back(tensors_.back().view.data);
    }
  }
  PagedRows rows() const {
    return {.pages = pages_, .rows_per_page = kRowsPerPage, .num_rows = num_rows_, .width = kWidth};
  }

 private:
  std::vector<DeviceTensor> tensors_;
  std::vector<void*> pages_;
  int64_t num_rows_ = 0;
};

template <typename T>
std::vector<T> Read(Device& device, const TensorView& view) {
  const std::vector<std::byte> bytes = device.Bytes(view);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void Must(const Status& status) { DSV4_CHECK(status.ok()) << status.ToString(); }

// The last tokens of a sequence, with queries of their own.
struct Query {
  Query(const Case& c, Device& device)
      : q(device.Copy(DType::kBF16, {c.tokens, kHeads, kWidth}, Numbers(c, c.tokens * kHeads * kWidth, 5))),
        weights(device.Copy(DType::kBF16, {c.tokens, kHeads}, Numbers(c, c.tokens * kHeads, 6))) {}
  DeviceTensor q;
  DeviceTensor weights;
};
// Entries of the first token: the last one sees all entries, those before it as many as there were then.
int64_t PositionOf(const Case& c) { return c.num_entries * kRatio - (c.tokens - 1); }

class Rank {
 public:
  Rank(const Case& c, const std::vector<uint16_t>& keys, int rank)
      : case_(c),
        // With more than two ranks, several tokens, or a launch in front that scores, kernels do not begin
        // early. Kernels that wait behind others would take up the room of a rank whose first one has yet to
        // begin. Seen: an exchange that broke by its deadline.
        device_({.overlap = c.ranks == 2 && c.tokens == 1 && c.num_entries <= int64_t{4096} * c.ranks}),
        shard_{rank, c.ranks},
        query_(c, device_),
        keys_(device_, keys, shard_),
        candidates_(device_.New(DType::kI64, {c.tokens, c.top_k})),
        all_(device_.New(DType::kI64, {c.tokens, c.ranks * c.top_k})),
        selected_(device_.New(DType::kI32, {c.tokens, c.top_k})),
        mailbox_(device_.New(DType::kU8, {backend::cuda::kMailboxBytes})),
        state_(device_.New(DType::kU8, {sizeof(ExchangeState)})),
        words_(device_.New(DType::kU8, {sizeof(ExchangeWords)})) {
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

  // Queues the three ops, of which `joins` says how many are one launch.
  void Choose(Joins joins) {
    Must(device_.table().indexer_candidates(
        device_.context(),
        Candidates(query_.q.view, query_.weights.view, candidates_.view, PositionOf(case_), case_.tokens)));
    if (joins == Joins::kNothing) HandOver();
    CudaContext& context = this->context();
    const int64_t bytes = candidates_.view.num_bytes() / case_.tokens;
    ExchangeParams p = {{links_}};
    p.num_rows = case_.tokens;
    p.share = candidates_.view.num_bytes() / 16 * 16 + 16;
    for (int r = 0; r < case_.ranks; ++r) {
      p.send[r] = {candidates_.view.as<std::byte>(), bytes, bytes};
      p.receive[r] = {all_.view.as<std::byte>() + r * bytes, case_.ranks * bytes, bytes};
    }
    Must(context.queue().BeginOp({"all-gather", {}}));
    backend::cuda::RecordGather(context, {.params = p,
                                          .kernel = backend::cuda::LlKernelFor(8),
                                          .blocks = 1,
                                          .mine = candidates_.view.data,
                                          .all = all_.view.data,
                                          .piece_bytes = bytes});
    Must(context.queue().EndOp());
    if (joins != Joins::kAll) HandOver();
    Must(device_.table().merge_candidates(device_.context(), {all_.view, selected_.view}));
    rows_ = backend::cuda::FindRowsChosenHere(context, Part());
    EXPECT_EQ(rows_.rows != nullptr, joins == Joins::kAll && device_.runs_hopper_code());
  }
  void HandOver() {
    Must(context().queue().OnStream("test", [](cudaStream_t) { return Status(); }));
  }

  // Results of the ops where nothing is fused, by the kernels for many tokens. The last tokens are the ones
  // that are asked for.
  std::vector<int64_t> CandidatesOfManyTokens() {
    constexpr int64_t kMany = backend::cuda::kMaxOverRanksTokens + 1;
    const int64_t before = kMany - case_.tokens;
    const auto behind_others = [&](const TensorView& view) {
      const std::vector<uint16_t> values = Read<uint16_t>(device_, view);
      std::vector<uint16_t> many(values.size() / static_cast<size_t>(case_.tokens) *
                                 static_cast<size_t>(before));
      many.insert(many.end(), values.begin(), values.end());
      return many;
    };
    const DeviceTensor many =
        device_.Copy(DType::kBF16, {kMany, kHeads, kWidth}, behind_others(query_.q.view));
    const DeviceTensor many_weights =
        device_.Copy(DType::kBF16, {kMany, kHeads}, behind_others(query_.weights.view));
    const DeviceTensor out = device_.New(DType::kI64, {kMany, case_.top_k});
    Must(device_.table().indexer_candidates(
        device_.context(),
        Candidates(many.view, many_weights.view, out.view, PositionOf(case_) - before, kMany)));
    return Read<int64_t>(device_, out.view.Rows(before, kMany));
  }

  Device& device() { return device_; }
  std::vector<int64_t> candidates() { return Read<int64_t>(device_, candidates_.view); }
  std::vector<int64_t> all() { return Read<int64_t>(device_, all_.view); }
  std::vector<int32_t> selected() { return Read<int32_t>(device_, selected_.view); }
  // Rows of the last choice of a token, if it was one launch.
  std::vector<int32_t> rows(int64_t token) {
    const auto view = [&](const int32_t* data, int64_t count) {
      return TensorView::Contiguous(const_cast<int32_t*>(data), DType::kI32, {count},
                                    device_.memory().device());
    };
    const int32_t count = Read<int32_t>(device_, view(rows_.num_rows + token, 1))[0];
    EXPECT_LE(count, case_.top_k);
    return count == 0 ? std::vector<int32_t>()
                      : Read<int32_t>(device_, view(rows_.rows + token * case_.top_k, count));
  }
  ExchangeState state() {
    ExchangeState state;
    const std::vector<std::byte> bytes = device_.Bytes(state_.view);
    std::memcpy(&state, bytes.data(), sizeof(state));
    return state;
  }

 private:
  CudaContext& context() { return static_cast<CudaContext&>(device_.context()); }
  ops::IndexerCandidatesArgs Candidates(const TensorView& q, const TensorView& weights, const TensorView& out,
                                        int64_t position, int64_t num_tokens) {
    sequences_ = {
        {.token_begin = 0, .num_tokens = num_tokens, .first_position = position, .keys = keys_.rows()}};
    return {.q = q,
            .weights = weights,
            .candidates = out,
            .ratio = kRatio,
            .shard = shard_,
            .sequences = sequences_};
  }
  ops::AttentionPartArgs Part() {
    attended_ = {{.token_begin = 0,
                  .num_tokens = case_.tokens,
                  .first_position = PositionOf(case_),
                  .window = {},
                  .entries = {}}};
    return {.q = {},
            .selected = selected_.view,
            .part = {},
            .ratio = kRatio,
            .shard = shard_,
            .sequences = attended_};
  }

  const Case case_;
  Device device_;
  const EntryShard shard_;
  Query query_;
  Keys keys_;
  DeviceTensor candidates_;
  DeviceTensor all_;
  DeviceTensor selected_;
  DeviceTensor mailbox_;
  DeviceTensor state_;
  DeviceTensor words_;
  PeerLinks links_;
  backend::cuda::RowsChosenHere rows_;
  std::vector<ops::IndexerSequence> sequences_;
  std::vector<ops::AttentionSequence> attended_;
};

// The choice of one rank that has all entries, token by token.
std::vector<int32_t> ChoiceAlone(const Case& c, const std::vector<uint16_t>& keys) {
  Device device;
  const Query query(c, device);
  const Keys all(device, keys, {});
  const DeviceTensor selected = device.New(DType::kI32, {c.tokens, c.top_k});
  for (int64_t token = 0; token < c.tokens; ++token) {
    const std::vector<ops::IndexerSequence> sequences = {
        {.token_begin = 0, .num_tokens = 1, .first_position = PositionOf(c) + token, .keys = all.rows()}};
    Must(
        device.table().indexer_select(device.context(), {.q = query.q.view.Rows(token, token + 1),
                                                         .weights = query.weights.view.Rows(token, token + 1),
                                                         .selected = selected.view.Rows(token, token + 1),
                                                         .ratio = kRatio,
                                                         .sequences = sequences}));
  }
  return Read<int32_t>(device, selected.view);
}

constexpr Case kCases[] = {
    {2, 2048, 512, false},
    {2, 2048, 512, true},
    {2, 513, 512, true},
    {2, 8192, 512, false},
    {3, 1501, 512, true},
    {4, 600, 512, false},
    {4, 9000, 1024, true},
    {8, 4096, 512, true},
    {8, 32768, 1024, false},
    {7, 65, 64, true},
    {8, 5, 4, false},
    {2, 8193, 512, true},
    {2, 32768, 512, true},
    {4, 40000, 1, false},
    {4, 65536, 1024, true},
    {8, 3, 2, true},
    // Rows of one sequence: the first see as many entries as are chosen, or one row less on some ranks. Not
    // more ranks times tokens than one device has room for.
    {2, 2048, 512, false, 8},
    {2, 514, 512, true, 8},
    {2, 513, 512, false, 2},
    {2, 5000, 512, true, 5},
    {3, 1501, 512, true, 4},
    {4, 600, 512, false, 3},
    {4, 2048, 512, false, 2},
    {2, 9000, 512, true, 3},
};

TEST(CudaIndexerOverRanks, ChoosesAsTheOpsOneByOne) {
  for (const Case& c : kCases) {
    const std::vector<uint16_t> keys = Numbers(c, c.num_entries * kWidth, 7);
    const std::vector<int32_t> want = ChoiceAlone(c, keys);
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int r = 0; r < c.ranks; ++r) ranks.push_back(std::make_unique<Rank>(c, keys, r));
    std::vector<int64_t> want_all;
    std::vector<std::vector<int64_t>> want_candidates;
    for (int r = 0; r < c.ranks; ++r) {
      for (int other = 0; other < c.ranks; ++other)
        ranks[static_cast<size_t>(r)]->Meet(other, *ranks[static_cast<size_t>(other)]);
      want_candidates.push_back(ranks[static_cast<size_t>(r)]->CandidatesOfManyTokens());
    }
    for (int64_t token = 0; token < c.tokens; ++token) {
      for (const std::vector<int64_t>& of_rank : want_candidates)
        want_all.insert(want_all.end(), of_rank.begin() + token * c.top_k,
                        of_rank.begin() + (token + 1) * c.top_k);
    }
    // All ranks alike, and each another way than its neighbours. Both halves of a mailbox are used again, by
    // as many rounds a list as are handed over at once. Where too many launches wait on the device the host
    // waits too, and those of later ranks never come. Ops one by one are five launches a round. The third
    // list is a graph.
    const bool one_by_one = !ranks[0]->device().runs_hopper_code();
    const uint64_t rounds_of_list =
        one_by_one && c.ranks > 4 ? 1 : (one_by_one || c.num_entries > 4096 * c.ranks ? 3 : 6);
    uint64_t rounds = 0;
    ASSERT_TRUE(kRanksHaveChannels);
    for (const bool mixed : {false, true}) {
      for (int list = 0; list < 3; ++list) {
        const std::string what = std::to_string(c.ranks) + " ranks, " + std::to_string(c.num_entries) +
                                 " entries, top " + std::to_string(c.top_k) + ", " +
                                 std::to_string(c.tokens) + " tokens" + (c.tied ? ", tied" : "") +
                                 (mixed ? ", mixed" : "") + ", list " + std::to_string(list);
        std::vector<int64_t> replayed;
        for (int r = 0; r < c.ranks; ++r) {
          Rank& rank = *ranks[static_cast<size_t>(r)];
          replayed.push_back(rank.device().replayed_lists());
          for (uint64_t round = 0; round < rounds_of_list; ++round)
            rank.Choose(mixed ? static_cast<Joins>((r + static_cast<int>(round)) % 3) : Joins::kAll);
        }
        rounds += rounds_of_list;
        for (const auto& rank : ranks) rank->HandOver();
        for (int r = 0; r < c.ranks; ++r) {
          Rank& rank = *ranks[static_cast<size_t>(r)];
          const std::string of_rank = what + ", rank " + std::to_string(r);
          EXPECT_EQ(rank.candidates(), want_candidates[static_cast<size_t>(r)]) << of_rank;
          EXPECT_EQ(rank.all(), want_all) << of_rank;
          EXPECT_EQ(rank.selected(), want) << of_rank;
          EXPECT_EQ(rank.state().round, rounds) << of_rank;
          EXPECT_EQ(rank.state().broken, 0) << of_rank;
          if (mixed || !rank.device().runs_hopper_code()) continue;
          for (int64_t token = 0; token < c.tokens; ++token) {
            std::vector<int32_t> want_rows;
            for (int64_t i = token * c.top_k; i < (token + 1) * c.top_k; ++i) {
              const int32_t entry = want[static_cast<size_t>(i)];
              if (entry >= 0 && entry % c.ranks == r) want_rows.push_back(entry / c.ranks);
            }
            EXPECT_EQ(rank.rows(token), want_rows) << of_rank << ", token " << token;
          }
          if (list < 2) continue;
          EXPECT_GT(rank.device().replayed_lists(), replayed[static_cast<size_t>(r)]) << of_rank;
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
