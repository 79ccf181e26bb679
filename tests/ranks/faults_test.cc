// The comparisons of several ranks with one can fail. Each mistake that ranks invite is seeded into the ops
// of some of them, or between them and their group. The comparison that passes without it must not pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <numeric>

#include "backend/reference/reference_backend.h"
#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

// The reference ops, without mistakes.
const ops::OpTable& Right() {
  static const ops::Backend backend = backend::MakeReferenceBackend(1);
  return backend.table;
}

// A copy of a contiguous host tensor to make a mistake in.
template <typename T>
struct Copy {
  explicit Copy(const TensorView& of)
      : values(of.as<T>(), of.as<T>() + of.num_elements()),
        view(TensorView::Contiguous(static_cast<void*>(values.data()), of.dtype, of.shape)) {}
  std::vector<T> values;
  TensorView view;
};

// --- ops ---

Status SinkOfEveryPart(ops::OpContext& context, const ops::MergeAttentionArgs& args) {
  Copy<float> sink(args.sink);
  for (float& logit : sink.values) logit += std::log(static_cast<float>(args.parts.shape[0]));
  return Right().merge_attention(context, {args.parts, sink.view, args.o});
}

Status MergeWithoutMaxima(ops::OpContext& context, const ops::MergeAttentionArgs& args) {
  Copy<float> parts(args.parts);
  const auto width = static_cast<size_t>(args.parts.shape[3]);
  for (size_t row = 0; row < parts.values.size(); row += width) {
    if (parts.values[row + width - 1] > 0) parts.values[row + width - 2] = 0;
  }
  return Right().merge_attention(context, {parts.view, args.sink, args.o});
}

Status MeanOfParts(ops::OpContext& context, const ops::MergeAttentionArgs& args) {
  Copy<float> parts(args.parts);  // Softmax of each part, then their mean.
  const auto width = static_cast<size_t>(args.parts.shape[3]);
  for (size_t row = 0; row < parts.values.size(); row += width) {
    const float sum = parts.values[row + width - 1];
    for (size_t d = 0; sum > 0 && d < width; ++d)
      if (d != width - 2) parts.values[row + d] /= sum;
  }
  return Right().merge_attention(context, {parts.view, args.sink, args.o});
}

// A part that is in two ranks' sums.
void Double(const TensorView& part) {
  const int64_t width = part.shape[2];
  for (int64_t i = 0; i < part.num_elements(); ++i)
    if (i % width != width - 2) part.as<float>()[i] *= 2;
}
Status WindowTwice(ops::OpContext& context, const ops::AttentionPartArgs& args) {
  const Status status = Right().attention_part(context, args);
  if (args.window_size > 0) Double(args.part);
  return status;
}
Status EntriesTwice(ops::OpContext& context, const ops::AttentionPartArgs& args) {
  const Status status = Right().attention_part(context, args);
  if (args.ratio > 0) Double(args.part);
  return status;
}
Status NewestEntryUnseen(ops::OpContext& context, const ops::AttentionPartArgs& args) {
  if (args.ratio == 0 || args.selected.is_null()) return Right().attention_part(context, args);
  Copy<int32_t> selected(args.selected);
  const int64_t top_k = args.selected.shape[1];
  for (int64_t token = 0; token < args.selected.shape[0]; ++token) {
    const auto begin = selected.values.begin() + token * top_k;
    const auto newest = std::max_element(begin, begin + top_k);
    if (*newest >= 0 && args.shard.Has(*newest)) *newest = -1;
  }
  ops::AttentionPartArgs changed = args;
  changed.selected = selected.view;
  return Right().attention_part(context, changed);
}

// As many of each rank's candidates as make top_k together.
Status FewCandidates(ops::OpContext& context, const ops::MergeCandidatesArgs& args) {
  Copy<int64_t> candidates(args.candidates);
  const auto top_k = static_cast<size_t>(args.selected.shape[1]);
  const size_t num_ranks = static_cast<size_t>(args.candidates.shape[1]) / top_k;
  for (size_t i = 0; i < candidates.values.size(); ++i) {
    if (i % top_k >= top_k / num_ranks) candidates.values[i] = 0;
  }
  return Right().merge_candidates(context, {candidates.view, args.selected});
}

Status CandidatesWithoutScores(ops::OpContext& context, const ops::IndexerCandidatesArgs& args) {
  const Status status = Right().indexer_candidates(context, args);
  for (int64_t i = 0; i < args.candidates.num_elements(); ++i) {
    uint64_t& candidate = args.candidates.as<uint64_t>()[i];
    if (candidate != 0) candidate = ops::MakeCandidate(0.0F, ops::EntryOfCandidate(candidate));
  }
  return status;
}

// The terms of a rank's first expert are those of weight 0.
Status FirstTermsLeftOut(ops::OpContext& context, const ops::ExpertTermsArgs& args) {
  Copy<float> weights(args.weights);
  for (size_t i = 0; i < weights.values.size(); ++i) {
    if (args.indices.as<int32_t>()[i] == static_cast<int32_t>(args.first_expert)) weights.values[i] = 0;
  }
  ops::ExpertTermsArgs changed = args;
  changed.weights = weights.view;
  return Right().expert_terms(context, changed);
}

// Wrong owner of terms: a rank begins with another expert than it has.
Status TermsOfTheNextExpert(ops::OpContext& context, const ops::ExpertTermsArgs& args) {
  ops::ExpertTermsArgs changed = args;
  ++changed.first_expert;
  changed.experts = args.experts.first(args.experts.size() - 1);
  return Right().expert_terms(context, changed);
}

// Order of the ranks from the last to the first.
Status PartsInReverse(ops::OpContext& context, const ops::SumTermsArgs& args) {
  Copy<float> parts(args.parts);
  const int64_t num_parts = args.parts.shape[0];
  const int64_t size = args.parts.num_elements() / num_parts;
  for (int64_t part = 0; part < num_parts; ++part) {
    std::copy_n(args.parts.as<const float>() + part * size, size,
                parts.values.begin() + (num_parts - 1 - part) * size);
  }
  ops::SumTermsArgs changed = args;
  changed.parts = parts.view;
  return Right().sum_terms(context, changed);
}

// One rank believes that the first part has one expert more than it has.
Status PartsShiftedByAnExpert(ops::OpContext& context, const ops::SumTermsArgs& args) {
  std::vector<int64_t> begins(args.begins.begin(), args.begins.end());
  ++begins[1];
  ops::SumTermsArgs changed = args;
  changed.begins = begins;
  return Right().sum_terms(context, changed);
}

Status FirstExpertLeftOut(ops::OpContext& context, const ops::RoutedExpertsArgs& args) {
  Copy<float> weights(args.weights);
  for (size_t i = 0; i < weights.values.size(); ++i) {
    if (args.indices.as<int32_t>()[i] == 0) weights.values[i] = 0;
  }
  ops::RoutedExpertsArgs changed = args;
  changed.weights = weights.view;
  return Right().routed_experts(context, changed);
}

// --- the group ---

enum class GroupFault : uint8_t {
  kNone,
  kLastRankNotSummed,
  kTermsInReverse,
  kOwnColumnsOnly,
  kPartsOfTheFirst
};

// Stands between a rank and its group; the mistake is made among the shards, which Split gives.
class FaultyGroup final : public comm::Communicator {
 public:
  FaultyGroup(comm::Communicator& group, GroupFault in_shards) : group_(group), in_shards_(in_shards) {}
  FaultyGroup(std::unique_ptr<comm::Communicator> shards, GroupFault fault)
      : owned_(std::move(shards)), group_(*owned_), fault_(fault) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  Status Barrier(comm::Wait wait) override { return group_.Barrier(wait); }
  Status Broadcast(std::span<std::byte> data, int root, comm::Wait wait) override {
    return group_.Broadcast(data, root, wait);
  }
  Status AllGather(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                   std::span<std::byte> all) override {
    const Status status = group_.AllGather(mine, num_rows, row_bytes, all);
    if (fault_ == GroupFault::kTermsInReverse) Reverse(num_rows, row_bytes, all);
    if (fault_ == GroupFault::kOwnColumnsOnly && num_rows > 1) KeepOwn(num_rows, row_bytes, all);
    return status;
  }
  Status AllToAll(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                  std::span<std::byte> parts) override {
    const Status status = group_.AllToAll(mine, num_rows, row_bytes, parts);
    const size_t part = parts.size() / static_cast<size_t>(size());
    for (size_t r = 1; fault_ == GroupFault::kPartsOfTheFirst && r < static_cast<size_t>(size()); ++r)
      std::memcpy(parts.data() + r * part, parts.data(), part);
    return status;
  }
  Status AllReduceSum(std::span<float> values) override {
    if (fault_ == GroupFault::kLastRankNotSummed && rank() == size() - 1) {
      std::vector<float> nothing(values.size(), 0.0F);
      std::copy(nothing.begin(), nothing.end(), values.begin());
    }
    return group_.AllReduceSum(values);
  }
  Status ReduceScatterSum(std::span<const float> values, std::span<const int64_t> counts,
                          std::span<float> mine) override {
    return group_.ReduceScatterSum(values, counts, mine);
  }
  Status Send(std::span<const std::byte> data, int to) override { return group_.Send(data, to); }
  Status Recv(std::span<std::byte> data, int from) override { return group_.Recv(data, from); }
  Status Check() override { return group_.Check(); }
  void Fail(const Status& why) override { group_.Fail(why); }
  Result<std::unique_ptr<comm::Communicator>> Split(int colour) override {
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> part, group_.Split(colour));
    return std::make_unique<FaultyGroup>(std::move(part), in_shards_);
  }

 private:
  // The terms of experts, with their targets, are gathered after their counts, one number a rank. Here they
  // come in the order of the ranks from the last to the first.
  void Reverse(int64_t num_rows, std::span<const int64_t> row_bytes, std::span<std::byte> all) {
    const bool counts = num_rows == 1 && std::all_of(row_bytes.begin(), row_bytes.end(),
                                                     [](int64_t bytes) { return bytes == sizeof(int64_t); });
    if (counts) {
      to_reverse_ = 2;
      return;
    }
    if (to_reverse_ == 0) return;
    --to_reverse_;
    const std::vector<std::byte> in_order(all.begin(), all.end());
    size_t end = all.size();
    size_t begin = 0;
    for (const int64_t bytes : row_bytes) {
      end -= static_cast<size_t>(bytes);
      std::memcpy(all.data() + end, in_order.data() + begin, static_cast<size_t>(bytes));
      begin += static_cast<size_t>(bytes);
    }
  }
  void KeepOwn(int64_t num_rows, std::span<const int64_t> row_bytes, std::span<std::byte> all) const {
    const int64_t width = std::accumulate(row_bytes.begin(), row_bytes.end(), int64_t{0});
    const int64_t first = std::accumulate(row_bytes.begin(), row_bytes.begin() + rank(), int64_t{0});
    for (int64_t i = 0; i < num_rows * width; ++i) {
      const int64_t column = i % width;
      if (column < first || column >= first + row_bytes[static_cast<size_t>(rank())])
        all[static_cast<size_t>(i)] = std::byte{0};
    }
  }

  std::unique_ptr<comm::Communicator> owned_;
  comm::Communicator& group_;
  GroupFault in_shards_ = GroupFault::kNone;
  GroupFault fault_ = GroupFault::kNone;
  int to_reverse_ = 0;
};

// --- the list ---

struct Fault {
  const char* name;
  const char* placement;
  std::function<void(int rank, ops::OpTable&)> ops;
  GroupFault group = GroupFault::kNone;
  bool listed = false;  // Terms go by lists, as those of many tokens do.
};

// Fault of every rank, or of one.
template <typename Args>
std::function<void(int, ops::OpTable&)> Everywhere(ops::OpFunction<Args> ops::OpTable::*member,
                                                   ops::OpFunction<Args> wrong) {
  return [=](int, ops::OpTable& table) { table.*member = wrong; };
}
template <typename Args>
std::function<void(int, ops::OpTable&)> On(int rank, ops::OpFunction<Args> ops::OpTable::*member,
                                           ops::OpFunction<Args> wrong) {
  return [=](int at, ops::OpTable& table) {
    if (at == rank) table.*member = wrong;
  };
}

std::vector<Fault> Faults() {
  using T = ops::OpTable;
  return {
      {"SinkOfEveryPart", "tensor,entries", Everywhere(&T::merge_attention, SinkOfEveryPart)},
      {"SinkOfEveryPartOnOneRank", "expert,entries", On(1, &T::merge_attention, SinkOfEveryPart)},
      {"MergeWithoutMaxima", "tensor,entries", Everywhere(&T::merge_attention, MergeWithoutMaxima)},
      {"MeanOfParts", "tensor,entries", Everywhere(&T::merge_attention, MeanOfParts)},
      {"WindowTwice", "tensor,entries", Everywhere(&T::attention_part, WindowTwice)},
      {"EntriesOfOneRankTwice", "expert,entries", On(2, &T::attention_part, EntriesTwice)},
      {"NewestEntryUnseen", "tensor,entries", Everywhere(&T::attention_part, NewestEntryUnseen)},
      {"PartsOfTheFirstRankOnly", "tensor,entries", {}, GroupFault::kPartsOfTheFirst},
      {"FewCandidates", "tensor,entries", Everywhere(&T::merge_candidates, FewCandidates)},
      {"CandidatesOfOneRankWithoutScores", "expert,entries",
       On(1, &T::indexer_candidates, CandidatesWithoutScores)},
      {"ExpertOfOneRankLeftOut", "expert", On(1, &T::expert_terms, FirstTermsLeftOut)},
      {"TermsOfTheNextExpert", "expert", On(2, &T::expert_terms, TermsOfTheNextExpert)},
      {"PartsInReverse", "expert", Everywhere(&T::sum_terms, PartsInReverse)},
      {"PartsShiftedByAnExpert", "expert", On(1, &T::sum_terms, PartsShiftedByAnExpert)},
      {"ListedExpertOfOneRankLeftOut", "expert", On(1, &T::routed_experts, FirstExpertLeftOut),
       GroupFault::kNone, true},
      {"ColumnsOfOneExpertLeftOut", "tensor", On(2, &T::routed_experts, FirstExpertLeftOut)},
      {"LastRankNotSummed", "tensor", {}, GroupFault::kLastRankNotSummed},
      {"ListedTermsInReverse", "expert", {}, GroupFault::kTermsInReverse, true},
      {"OwnColumnsOnly", "expert", {}, GroupFault::kOwnColumnsOnly},
      {"TokensOfOwnSequencesOnly", "expert,sequences", {}, GroupFault::kOwnColumnsOnly},
      {"TermsOfTheFirstRankOnly", "expert,sequences", {}, GroupFault::kPartsOfTheFirst},
  };
}

class SeededRanks : public ::testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(Faults, SeededRanks, ::testing::ValuesIn(Faults()),
                         [](const auto& fault) { return std::string(fault.param.name); });

// The comparison of placements_test: bits where no sum is cut, and its bound where one is.
TEST_P(SeededRanks, AreNoticed) {
  const Fault& fault = GetParam();
  RanksRun run{.directory = ModelDirectory("fp8_mxfp4").string(),
               .options = {.numerics = model::Numerics::kPlain}};
  if (fault.listed) run.options.max_gathered_terms = 0;
  std::vector<int32_t> tokens(60);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * 7919 + 3) % 64);
  const auto logits = [&] {
    std::vector<float> all;
    RunModel(run, [&](model::Model& model) { all = RunPieces(model, tokens, {7, 13, 3, 1, 1, 24, 1}); });
    return all;
  };
  const std::vector<float> alone = logits();
  run.num_ranks = 3;
  run.placement = fault.placement;
  run.wrap_group = [&](comm::Communicator& group) {
    return std::make_shared<FaultyGroup>(group, GroupFault::kNone);
  };
  const bool cuts_no_sum = run.placement == "expert" || run.placement == "expert,sequences";
  const float bound = cuts_no_sum ? 0 : kCutSums;
  EXPECT_LE(RelativeError(logits(), alone), bound) << "without the mistake";
  run.edit_ops = fault.ops;
  run.wrap_group = [&](comm::Communicator& group) {
    return std::make_shared<FaultyGroup>(group, fault.group);
  };
  const float error = RelativeError(logits(), alone);
  EXPECT_GT(error, bound) << fault.name << " went unnoticed";
  std::cout << "  " << fault.name << ": " << error << " of the largest logit\n";
}

}  // namespace
}  // namespace dsv4::testing
