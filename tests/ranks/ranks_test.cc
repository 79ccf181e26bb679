// Matters of several ranks alone: states that are copied and taken back, a rank without memory, a rank that
// fails, misfits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "base/temporary_directory_testing.h"
#include "comm/collectives.h"
#include "comm/null_group.h"
#include "io/checkpoint.h"
#include "tensor/host_memory_testing.h"
#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kGolden = "fp8_mxfp4";

std::vector<float> Feed(model::Model& model, kv::SequenceState& state, std::vector<int32_t> tokens) {
  const model::SequenceChunk chunk{.state = &state, .tokens = tokens};
  auto output = model.Step({&chunk, 1});
  EXPECT_TRUE(output.has_value()) << output.error().ToString();
  if (!output) return {};
  return {output->logits.begin(), output->logits.end()};
}

// Forks, rewinds, snapshots, restores and resets between steps: the others' copies follow.
std::vector<std::vector<float>> Wander(model::Model& model) {
  std::vector<std::vector<float>> seen;
  auto first = model.NewSequence().value();
  seen.push_back(Feed(model, first, {1, 2, 3, 4, 5, 6, 7, 8, 9}));
  auto fork = first.Fork().value();
  seen.push_back(Feed(model, first, {10, 11}));
  seen.push_back(Feed(model, fork, {12, 13, 14}));  // As if first had not moved.
  {
    const auto snapshot = fork.Snapshot().value();
    seen.push_back(Feed(model, fork, {15}));
    EXPECT_TRUE(fork.Restore(snapshot).ok());
    seen.push_back(Feed(model, fork, {16}));
  }
  EXPECT_TRUE(first.Rewind(4).ok());
  seen.push_back(Feed(model, first, {17, 18}));
  first.Reset();
  seen.push_back(Feed(model, first, {19}));
  fork = std::move(first);
  seen.push_back(Feed(model, fork, {20, 21}));
  return seen;
}

TEST(Ranks, CopiesOfStatesFollow) {
  RanksRun run{.directory = ModelDirectory(kGolden).string(), .options = {}};
  std::vector<std::vector<float>> alone;
  RunModel(run, [&](model::Model& model) { alone = Wander(model); });
  for (const char* placement : {"pipeline", "expert", "expert,sequences"}) {
    run.num_ranks = 2;
    run.placement = placement;
    RunModel(run, [&](model::Model& model) { EXPECT_EQ(Wander(model), alone) << placement; });
  }
}

// The same where every rank keeps a part of a state's entries.
TEST(Ranks, CopiesOfPartsOfStatesFollow) {
  RanksRun run{.directory = ModelDirectory(kGolden).string(),
               .options = {.numerics = model::Numerics::kPlain}};
  std::vector<std::vector<float>> alone;
  RunModel(run, [&](model::Model& model) { alone = Wander(model); });
  for (const char* placement : {"tensor,entries", "expert,entries"}) {
    run.num_ranks = 3;
    run.placement = placement;
    RunModel(run, [&](model::Model& model) {
      const std::vector<std::vector<float>> seen = Wander(model);
      ASSERT_EQ(seen.size(), alone.size());
      for (size_t i = 0; i < seen.size(); ++i)
        EXPECT_LT(RelativeError(seen[i], alone[i]), kCutSums) << placement << ", step " << i;
    });
  }
}

TEST(Ranks, ARaggedBatchIsTheSame) {
  RanksRun run{.directory = ModelDirectory(kGolden).string(), .options = {.max_chunk_tokens = 8}};
  const auto batch = [](model::Model& model) {
    auto a = model.NewSequence().value();
    auto b = model.NewSequence().value();
    Feed(model, b, {9, 8, 7});
    const std::vector<int32_t> long_one(21, 5);  // Three passes.
    const std::vector<int32_t> short_one = {3};
    const std::vector<model::SequenceChunk> chunks = {
        {.state = &a, .tokens = long_one, .logits = model::LogitsRows::kAll},
        {.state = &b, .tokens = short_one, .logits = model::LogitsRows::kLast}};
    auto output = model.Step(chunks);
    EXPECT_TRUE(output.has_value()) << output.error().ToString();
    return std::vector<float>(output->logits.begin(), output->logits.end());
  };
  std::vector<float> alone;
  RunModel(run, [&](model::Model& model) { alone = batch(model); });
  for (const char* placement : {"pipeline", "expert", "expert,sequences", "tensor", "tensor,entries"}) {
    run.num_ranks = 3;
    run.placement = placement;
    RunModel(run, [&](model::Model& model) {
      const std::vector<float> logits = batch(model);
      ASSERT_EQ(logits.size(), alone.size());
      if (!std::string(placement).starts_with("tensor")) {
        EXPECT_EQ(logits, alone) << placement;
      }
    });
  }
}

TEST(Ranks, WrongArgumentsChangeNothing) {
  RanksRun run{.directory = ModelDirectory(kGolden).string(), .options = {}, .num_ranks = 2};
  RunModel(run, [&](model::Model& model) {
    auto state = model.NewSequence().value();
    const std::vector<int32_t> bad = {-1};
    const model::SequenceChunk chunk{.state = &state, .tokens = bad};
    EXPECT_EQ(model.Step({&chunk, 1}).error().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(Feed(model, state, {1}).size(), static_cast<size_t>(model.config().vocab_size));
    const auto snapshot = state.Snapshot().value();
    EXPECT_EQ(snapshot.Serialize(0).error().code(), StatusCode::kUnimplemented);
    EXPECT_EQ(model.DeserializeSnapshot({}, 0).error().code(), StatusCode::kUnimplemented);
  });
}

// The host's memory, but for one rank that has none left when told so.
class ShortMemory final : public ForwardingHostMemory {
 public:
  Result<Buffer> Allocate(size_t num_bytes) override {
    if (empty) return Error(ResourceExhausted("no memory left"));
    return HostMemory().Allocate(num_bytes);
  }
  std::atomic<bool> empty = false;
};
// Two ranks with backends of their choice; work(model, group) on rank 0, end(status) on rank 1 when Follow
// returns.
void RunTwo(const ops::Backend& one, const std::function<void(model::Model&)>& work,
            const std::function<void(const Status&)>& end) {
  comm::testing::RunRanks(
      2,
      [&](comm::Communicator& group) {
        model::ModelOptions options;
        options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
        options.placement = model::ParsePlacement("pipeline", 2).value();
        auto model = model::Model::Load(ModelDirectory(kGolden).string(),
                                        group.rank() == 1 ? one : MakeGoldenBackend("reference", 1), options);
        ASSERT_TRUE(model.has_value()) << model.error().ToString();
        if (group.rank() == 0) {
          work(**model);
        } else {
          end((*model)->Follow());
        }
      },
      std::chrono::minutes(10));
}

TEST(Ranks, WithoutMemoryTheStepFailsAndTheGroupGoesOn) {
  ShortMemory memory;
  ops::Backend backend = MakeGoldenBackend("reference", 1);
  backend.context = std::make_shared<MemoryContext>(backend.context, memory);
  RunTwo(
      backend,
      [&](model::Model& model) {
        auto state = model.NewSequence().value();
        const std::vector<float> before = Feed(model, state, {1, 2, 3});
        memory.empty = true;
        auto other = model.NewSequence().value();  // Rank 0 has memory for it.
        const std::vector<int32_t> tokens = {1, 2, 3};
        const model::SequenceChunk chunk{.state = &other, .tokens = tokens};
        for (int attempt = 0; attempt < 2; ++attempt) {
          const auto output = model.Step({&chunk, 1});
          ASSERT_FALSE(output.has_value());
          EXPECT_EQ(output.error().code(), StatusCode::kResourceExhausted);
          EXPECT_THAT(output.error().message(), HasSubstr("rank 1: no memory left"));
          EXPECT_EQ(other.length(), 0);
        }
        memory.empty = false;
        EXPECT_EQ(Feed(model, other, {1, 2, 3}), before);
        Feed(model, state, {4});
      },
      [](const Status& end) { EXPECT_TRUE(end.ok()) << end.ToString(); });
}

TEST(Ranks, AnOpThatFailsEndsTheGroup) {
  ops::Backend backend = MakeGoldenBackend("reference", 1);
  backend.table.swiglu = [](ops::OpContext&, const ops::SwigluArgs&) {
    return Internal("broken on purpose");
  };
  RunTwo(
      backend,
      [&](model::Model& model) {
        auto state = model.NewSequence().value();
        const std::vector<int32_t> tokens = {1, 2, 3};
        const model::SequenceChunk chunk{.state = &state, .tokens = tokens};
        for (int attempt = 0; attempt < 2; ++attempt) {
          const auto output = model.Step({&chunk, 1});
          ASSERT_FALSE(output.has_value());
          EXPECT_THAT(output.error().message(), HasSubstr("rank 1: layer"));
          EXPECT_THAT(output.error().message(), HasSubstr("broken on purpose"));
          EXPECT_EQ(state.length(), 0);
        }
      },
      [](const Status& end) { EXPECT_THAT(end.message(), HasSubstr("broken on purpose")); });
}

// Status of a load on every rank, with options made for each.
std::vector<Status> LoadOnRanks(int num_ranks, const std::function<void(int, model::ModelOptions&)>& edit,
                                const std::function<std::string(int)>& directory_of = {}) {
  std::vector<Status> statuses(static_cast<size_t>(num_ranks));
  comm::testing::RunRanks(num_ranks, [&](comm::Communicator& group) {
    model::ModelOptions options;
    options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
    options.placement = model::ParsePlacement("expert", num_ranks).value();
    edit(group.rank(), options);
    const std::string directory =
        directory_of ? directory_of(group.rank()) : ModelDirectory(kGolden).string();
    const auto model = model::Model::Load(directory, MakeGoldenBackend("reference", 1), options);
    if (!model) statuses[static_cast<size_t>(group.rank())] = model.error();
    if (model && group.rank() > 0) (void)(*model)->Follow();
  });
  return statuses;
}

TEST(Ranks, OpsForShardsAreMissedByName) {
  ops::Backend backend = MakeGoldenBackend("reference", 1);
  backend.table.merge_attention = nullptr;
  model::ModelOptions options;
  options.group = comm::ImagineGroup(0, 2, 2);
  options.placement = model::ParsePlacement("tensor,entries", 2).value();
  const auto model = model::Model::Load(ModelDirectory(kGolden).string(), backend, options);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(model.error().message(),
              HasSubstr("lacks ops that placement tensor,entries needs: merge_attention"));
  options.placement = model::ParsePlacement("pipeline", 2).value();
  options.group = comm::ImagineGroup(0, 2, 1);
  EXPECT_TRUE(model::Model::Load(ModelDirectory(kGolden).string(), backend, options).has_value());
}

// Ranks that read files of their own: those of copies run, and one byte of a large tensor is found.
TEST(Ranks, OtherBytesOfTheWeightsFailOnEveryRank) {
  const TemporaryDirectory directory;
  const std::filesystem::path copy = directory / "copy";
  std::filesystem::copy(ModelDirectory(kGolden), copy, std::filesystem::copy_options::recursive);
  const auto load = [&] {
    return LoadOnRanks(
        3, [](int, model::ModelOptions&) {},
        [&](int rank) { return rank == 2 ? copy.string() : ModelDirectory(kGolden).string(); });
  };
  for (const Status& status : load()) EXPECT_TRUE(status.ok()) << status.ToString();
  size_t offset = 0;
  std::filesystem::path file;
  {
    const auto checkpoint = *io::Checkpoint::Open(copy.string());
    const io::StoredTensor* tensor = checkpoint->Find("layers.1.attn.wo_b.weight");
    ASSERT_NE(tensor, nullptr);
    const io::MappedFile& mapped = checkpoint->files()[static_cast<size_t>(tensor->file)];
    file = mapped.path();
    offset = static_cast<size_t>(tensor->bytes.data() - mapped.bytes().data()) + 7;
  }
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(stream.get() ^ 1);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(byte);
  stream.close();
  for (const Status& status : load()) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("rank 2 has other weights than rank 0"));
  }
}

TEST(Ranks, MisfitsFailOnEveryRank) {
  for (const Status& status : LoadOnRanks(2, [](int rank, model::ModelOptions&options) {
         if (rank == 1) options.clamp_shared_expert = false;
       })) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("rank 1 runs another model, or with other options"));
  }
  for (const Status& status : LoadOnRanks(2, [](int rank, model::ModelOptions&options) {
         if (rank == 1) options.max_gathered_terms = 0;  // It would exchange other things than rank 0.
       })) {
    EXPECT_THAT(status.message(), HasSubstr("rank 1 runs another model, or with other options"));
  }
  for (const Status& status : LoadOnRanks(4, [](int, model::ModelOptions& options) {
         options.placement = model::ParsePlacement("pipeline", 4).value();  // The model has 3 layers.
       })) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("got 4 stages, want at most 3 of 3 layers"));
  }
  for (const Status& status : LoadOnRanks(2, [](int, model::ModelOptions& options) {
         options.placement = model::ParsePlacement("expert", 3).value();
       })) {
    EXPECT_THAT(status.message(), HasSubstr("for 3 ranks, want 2"));
  }
}

}  // namespace
}  // namespace dsv4::testing
