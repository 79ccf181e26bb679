// Parts of the CUDA backend alone: memory, faults that arrive late, and tables that outgrow their memory.
// Also a model whose rows do not depend on their neighbours.
#include "backend/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "formats/number_formats.h"
#include "model/runtime/model.h"

namespace dsv4::testing {
namespace {

ops::Backend Make(const backend::CudaOptions& options) {
  auto made = backend::MakeCudaBackend(options);
  DSV4_CHECK(made.has_value()) << made.error().ToString();
  return std::move(*made);
}
ops::Backend Make(bool synchronous = false) { return Make(backend::CudaOptions{.synchronous = synchronous}); }

// A tensor on the device; its buffer must outlive the view.
struct DeviceTensor {
  Buffer buffer;
  TensorView view;
};

template <typename T>
DeviceTensor ToDevice(ops::OpContext& context, DType dtype, const Shape& shape,
                      const std::vector<T>& values) {
  auto buffer = context.memory().Allocate(values.size() * sizeof(T));
  DSV4_CHECK(buffer.has_value()) << buffer.error().ToString();
  const Status status = context.memory().CopyFromHost(buffer->data(), values.data(),
                                                      values.size() * sizeof(T), context.stream());
  DSV4_CHECK(status.ok()) << status.ToString();
  const TensorView view = TensorView::Contiguous(buffer->data(), dtype, shape, context.memory().device());
  return {std::move(*buffer), view};
}

template <typename T>
std::vector<T> ToHost(ops::OpContext& context, const TensorView& view) {
  std::vector<T> values(static_cast<size_t>(view.num_elements()));
  const Status status =
      context.memory().CopyToHost(values.data(), view.data, values.size() * sizeof(T), context.stream());
  EXPECT_TRUE(status.ok()) << status.ToString();
  return values;
}

TEST(CudaMemory, IsZeroedAlignedAndCopies) {
  const ops::Backend backend = Make();
  Memory& memory = backend.context->memory();
  EXPECT_EQ(memory.device().type, DeviceType::kCuda);
  for (const size_t num_bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{3} << 20}) {
    // Twice, so that the second comes from memory that was written.
    for (int round = 0; round < 2; ++round) {
      auto buffer = memory.Allocate(num_bytes);
      ASSERT_TRUE(buffer.has_value()) << buffer.error().ToString();
      EXPECT_EQ(buffer->num_bytes(), num_bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 256, 0U);
      std::vector<std::byte> bytes(num_bytes, std::byte{7});
      ASSERT_TRUE(memory.CopyToHost(bytes.data(), buffer->data(), num_bytes, nullptr).ok());
      EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), static_cast<int64_t>(num_bytes));
      std::fill(bytes.begin(), bytes.end(), std::byte{0xAB});
      ASSERT_TRUE(memory.CopyFromHost(buffer->data(), bytes.data(), num_bytes, nullptr).ok());
    }
  }
  auto from = memory.Allocate(64);
  auto to = memory.Allocate(64);
  ASSERT_TRUE(from.has_value() && to.has_value());
  std::vector<std::byte> bytes(64, std::byte{9});
  ASSERT_TRUE(memory.CopyFromHost(from->data(), bytes.data(), 64, nullptr).ok());
  ASSERT_TRUE(memory.Copy(to->data(), from->data(), 64, nullptr).ok());
  std::vector<std::byte> back(64);
  ASSERT_TRUE(memory.CopyToHost(back.data(), to->data(), 64, nullptr).ok());
  EXPECT_EQ(back, bytes);
}

// Copies into memory that the device writes to itself and into any other. They lie at both ends of the sizes
// for kernels and for TMA, and have addresses that are no multiple of anything.
TEST(CudaMemory, CopiesToTheHostAreWhole) {
  const ops::Backend backend = Make();
  Memory& memory = backend.context->memory();
  constexpr size_t kMost = (size_t{1} << 20) + 64;
  std::vector<std::byte> want(kMost);
  for (size_t i = 0; i < want.size(); ++i) want[i] = static_cast<std::byte>(i * 7 + i / 251);
  const auto device = memory.Allocate(kMost);
  const auto pinned = memory.AllocateOnHost(kMost);
  ASSERT_TRUE(device.has_value() && pinned.has_value());
  EXPECT_EQ(pinned->device().type, DeviceType::kHost);
  ASSERT_TRUE(memory.CopyFromHost(device->data(), want.data(), kMost, nullptr).ok());
  std::vector<std::byte> ordinary(kMost);
  for (std::byte* const to : {static_cast<std::byte*>(pinned->data()), ordinary.data()}) {
    for (const size_t num_bytes :
         {size_t{0}, size_t{1}, size_t{40}, size_t{517120}, size_t{1} << 20, (size_t{1} << 20) + 1}) {
      for (const size_t shift : {size_t{0}, size_t{16}, size_t{3}}) {
        std::fill_n(to, kMost, std::byte{0xEE});
        const Status status = memory.CopyToHost(to + shift, static_cast<std::byte*>(device->data()) + shift,
                                                num_bytes, nullptr);
        ASSERT_TRUE(status.ok()) << status.ToString();
        EXPECT_EQ(std::memcmp(to + shift, want.data() + shift, num_bytes), 0) << num_bytes << " at " << shift;
        EXPECT_EQ(std::count(to, to + shift, std::byte{0xEE}), static_cast<int64_t>(shift));
        EXPECT_EQ(to[shift + num_bytes], std::byte{0xEE}) << num_bytes << " at " << shift;
      }
    }
  }
  // A source in such memory has been read at return.
  std::memcpy(pinned->data(), want.data(), kMost);
  ASSERT_TRUE(memory.CopyFromHost(device->data(), pinned->data(), kMost, nullptr).ok());
  std::memset(pinned->data(), 0, kMost);
  ASSERT_TRUE(memory.CopyToHost(ordinary.data(), device->data(), kMost, nullptr).ok());
  EXPECT_EQ(ordinary, want);
}

// Through pinned blocks that are used again and again, filled by several threads.
TEST(CudaMemory, LargeCopiesFromTheHostAreWhole) {
  const ops::Backend backend = Make();
  Memory& memory = backend.context->memory();
  constexpr size_t kMost = (size_t{48} << 20) + 12345;
  const auto device = memory.Allocate(kMost);
  ASSERT_TRUE(device.has_value());
  std::vector<std::byte> want(kMost);
  std::vector<std::byte> got(kMost);
  for (size_t round = 0; round < 6; ++round) {
    for (size_t i = 0; i < kMost; ++i) want[i] = static_cast<std::byte>(i * 7 + i / 251 + round);
    const size_t shift = 3 * round;
    ASSERT_TRUE(memory.CopyFromHost(device->data(), want.data() + shift, kMost - shift, nullptr).ok());
    const std::vector<std::byte> before(want.begin() + static_cast<std::ptrdiff_t>(shift), want.end());
    std::fill(want.begin(), want.end(), std::byte{0xEE});  // It has been read at return.
    ASSERT_TRUE(memory.CopyToHost(got.data(), device->data(), kMost - shift, nullptr).ok());
    EXPECT_EQ(std::memcmp(got.data(), before.data(), before.size()), 0) << round;
  }
}

TEST(CudaMemory, TooMuchIsRefusedAndTheDeviceGoesOn) {
  const ops::Backend backend = Make();
  Memory& memory = backend.context->memory();
  const auto huge = memory.Allocate(size_t{1} << 46);
  ASSERT_FALSE(huge.has_value());
  EXPECT_EQ(huge.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(huge.error().message().find("could not allocate 70368744177664 bytes"), std::string::npos)
      << huge.error().message();
  auto small = memory.Allocate(16);
  ASSERT_TRUE(small.has_value());
  std::vector<std::byte> bytes(16);
  EXPECT_TRUE(memory.CopyToHost(bytes.data(), small->data(), 16, nullptr).ok());
}

TEST(CudaBackend, ADeviceThatIsNotThereIsNamed) {
  const auto made = backend::MakeCudaBackend({.device = 99});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(made.error().message().find("device 99"), std::string::npos) << made.error().message();
}

TEST(CudaBackend, OperandsInHostMemoryAreRefused) {
  const ops::Backend backend = Make();
  std::vector<float> x(8, 1.0F);
  const TensorView view = TensorView::Contiguous(static_cast<void*>(x.data()), DType::kF32, {8});
  const Status status = backend.table.scale(*backend.context, {.x = view, .y = view, .factor = 2.0F});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("op scale: operands are not in the memory of CUDA device 0"),
            std::string::npos)
      << status.message();
}

// An id outside the table is seen on the device only: queued, the next wait names it, once; op by op, the op
// does.
TEST(CudaFaults, ArriveWithTheNextWaitAndAreTakenOnce) {
  for (const bool synchronous : {false, true}) {
    const ops::Backend backend = Make(synchronous);
    ops::OpContext& context = *backend.context;
    const auto table = ToDevice(context, DType::kF32, {4, 2}, std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7});
    const auto streams = ToDevice(context, DType::kF32, {2, 1, 2}, std::vector<float>(4));
    const auto bad = ToDevice(context, DType::kI32, {2}, std::vector<int32_t>{1, 4});
    const auto good = ToDevice(context, DType::kI32, {2}, std::vector<int32_t>{3, 0});
    const auto embed = [&](const DeviceTensor& ids) {
      return backend.table.embed(context,
                                 {.token_ids = ids.view, .table = table.view, .streams = streams.view});
    };
    Status status = embed(bad);
    EXPECT_EQ(status.ok(), !synchronous);
    std::vector<float> values(4);
    if (status.ok())
      status = context.memory().CopyToHost(values.data(), streams.view.data, 16, context.stream());
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
    EXPECT_NE(status.message().find("op embed: token_ids[1]: 4, want 0 to 3"), std::string::npos)
        << status.message();
    ASSERT_TRUE(embed(good).ok());
    EXPECT_EQ(ToHost<float>(context, streams.view), (std::vector<float>{6, 7, 0, 1}));
  }
}

TEST(CudaFaults, EveryKindIsNamed) {
  const ops::Backend backend = Make(true);
  ops::OpContext& context = *backend.context;
  const auto ids = [&](std::vector<int32_t> values) {
    const auto count = static_cast<int64_t>(values.size());
    return ToDevice(context, DType::kI32, {count}, values);
  };
  {
    const auto x = ToDevice(context, DType::kF32, {2, 1, 2}, std::vector<float>(4));
    const auto frequencies = ToDevice(context, DType::kF32, {1}, std::vector<float>{1});
    const auto positions = ids({5, -3});
    const Status status = backend.table.rope(
        context, {.x = x.view, .positions = positions.view, .frequencies = frequencies.view});
    EXPECT_NE(status.message().find("op rope: positions[1]: -3, want 0 or more"), std::string::npos)
        << status.message();
  }
  {
    const auto logits = ToDevice(context, DType::kF32, {1, 4}, std::vector<float>(4));
    const auto hash = ToDevice(context, DType::kI32, {2, 2}, std::vector<int32_t>{0, 1, 2, 4});
    const auto indices = ToDevice(context, DType::kI32, {1, 2}, std::vector<int32_t>(2));
    const auto weights = ToDevice(context, DType::kF32, {1, 2}, std::vector<float>(2));
    const auto route = [&](int32_t id) {
      const auto token = ids({id});
      return backend.table.router(context, {.logits = logits.view,
                                            .hash_table = hash.view,
                                            .token_ids = token.view,
                                            .indices = indices.view,
                                            .weights = weights.view});
    };
    EXPECT_TRUE(route(0).ok());
    EXPECT_NE(route(2).message().find("op router: token_ids[0]: 2, want 0 to 1"), std::string::npos);
    EXPECT_NE(route(1).message().find("op router: hash_table[1, 1]: 4, want 0 to 3"), std::string::npos);
  }
  {
    std::vector<ops::ExpertWeights> experts(2);
    std::vector<Buffer> owners;
    for (ops::ExpertWeights& expert : experts) {
      for (Weight* weight : {&expert.w1, &expert.w2, &expert.w3}) {
        weight->rows = weight->cols = 32;
        auto data = ToDevice(context, DType::kBF16, {32, 32}, std::vector<uint16_t>(32 * 32));
        weight->data = data.view;
        weight->owner = std::move(data.buffer);
      }
    }
    const auto x = ToDevice(context, DType::kBF16, {1, 32}, std::vector<uint16_t>(32));
    const auto weights = ToDevice(context, DType::kF32, {1, 2}, std::vector<float>{1, 1});
    const auto y = ToDevice(context, DType::kF32, {1, 32}, std::vector<float>(32));
    for (const int32_t bad : {-1, 2}) {
      const auto indices = ToDevice(context, DType::kI32, {1, 2}, std::vector<int32_t>{0, bad});
      const Status status = backend.table.routed_experts(context, {.x = x.view,
                                                                   .indices = indices.view,
                                                                   .weights = weights.view,
                                                                   .experts = experts,
                                                                   .limit = 1.0F,
                                                                   .y = y.view});
      EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
      EXPECT_NE(
          status.message().find("op routed_experts: indices[0, 1]: " + std::to_string(bad) + ", want 0 to 1"),
          std::string::npos)
          << status.message();
    }
    // The first of two experts on this rank, and terms of two ranks.
    const auto terms = ToDevice(context, DType::kBF16, {1, 2, 32}, std::vector<uint16_t>(2 * 32));
    const auto parts = ToDevice(context, DType::kBF16, {2, 1, 2, 32}, std::vector<uint16_t>(4 * 32));
    const std::vector<int64_t> begins = {0, 1, 2};
    for (const int32_t index : {-1, 1, 2}) {
      const auto indices = ToDevice(context, DType::kI32, {1, 2}, std::vector<int32_t>{0, index});
      const Status of_terms = backend.table.expert_terms(
          context, {.x = x.view,
                    .indices = indices.view,
                    .weights = weights.view,
                    .experts = std::span<const ops::ExpertWeights>(experts).first(1),
                    .first_expert = 0,
                    .num_experts = 2,
                    .limit = 1.0F,
                    .terms = terms.view});
      const Status of_sum = backend.table.sum_terms(
          context, {.parts = parts.view, .indices = indices.view, .begins = begins, .y = y.view});
      if (index == 1) {  // Elsewhere is no mistake.
        EXPECT_TRUE(of_terms.ok()) << of_terms.ToString();
        EXPECT_TRUE(of_sum.ok()) << of_sum.ToString();
        continue;
      }
      const std::string wrong = "indices[0, 1]: " + std::to_string(index) + ", want 0 to 1";
      EXPECT_NE(of_terms.message().find("op expert_terms: " + wrong), std::string::npos)
          << of_terms.message();
      EXPECT_NE(of_sum.message().find("op sum_terms: " + wrong), std::string::npos) << of_sum.message();
    }
  }
}

TEST(CudaFaults, ListsOfEntriesAreChecked) {
  const ops::Backend backend = Make(true);
  ops::OpContext& context = *backend.context;
  const auto ones = [&](Shape shape) {
    return ToDevice(context, DType::kBF16, shape,
                    std::vector<uint16_t>(static_cast<size_t>(shape.num_elements()), Bf16FromFloat(1.0F)));
  };
  const auto q = ones({1, 1, 4});
  const auto o = ones({1, 1, 4});
  const auto ring = ones({64, 4});
  const auto page = ones({32, 4});
  const auto sink = ToDevice(context, DType::kF32, {1}, std::vector<float>{0});
  void* const pages[] = {page.view.data};
  const auto attend = [&](std::vector<int32_t> list, int64_t position) {
    const auto count = static_cast<int64_t>(list.size());
    const auto selected = ToDevice(context, DType::kI32, {1, count}, list);
    const ops::AttentionSequence sequence = {.token_begin = 0,
                                             .num_tokens = 1,
                                             .first_position = position,
                                             .window = {ring.view.data, 64, 4, DType::kBF16},
                                             .entries = {pages, 32, 32, 4, DType::kBF16}};
    return backend.table.attention(context, {.q = q.view,
                                             .sink = sink.view,
                                             .selected = selected.view,
                                             .o = o.view,
                                             .softmax_scale = 1.0F,
                                             .window_size = 32,
                                             .ratio = 4,
                                             .sequences = {&sequence, 1}});
  };
  EXPECT_TRUE(attend({-1, 3, 0, -1}, 15).ok());
  EXPECT_NE(attend({0, 4}, 15).message().find("selected[0, 1]: 4, want -1 or 0 to 3"), std::string::npos);
  EXPECT_NE(attend({-2}, 15).message().find("selected[0, 0]: -2"), std::string::npos);
  EXPECT_NE(attend({1, -1, 1}, 15).message().find("entry 1 more than once"), std::string::npos);
  EXPECT_FALSE(attend({0}, 2).ok());  // No entry is complete at position 2.
}

// More runs than travel in a kernel's argument, often enough that the staging memory is used again while
// copies are in flight. Then more runs than it held.
TEST(CudaStaging, ManyTablesInFlightKeepTheirContents) {
  const ops::Backend backend = Make();
  ops::OpContext& context = *backend.context;
  for (const int64_t num_rows : {int64_t{1000}, int64_t{100000}}) {
    std::vector<float> values(static_cast<size_t>(num_rows));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const auto source = ToDevice(context, DType::kF32, {num_rows, 1}, values);
    constexpr int kRounds = 100;
    std::vector<DeviceTensor> targets;
    const int rounds = num_rows > 1000 ? 3 : kRounds;
    for (int round = 0; round < rounds; ++round) {
      targets.push_back(
          ToDevice(context, DType::kF32, {num_rows, 1}, std::vector<float>(values.size(), -1.0F)));
      std::vector<RowRun> runs;
      for (int64_t i = 0; i < num_rows; ++i) {
        // Rotated by the round, so that a table of another round would show.
        runs.push_back({i, 1, targets.back().view.as<float>() + (i + round) % num_rows});
      }
      const Status status = backend.table.store_rows(context, {.source = source.view, .runs = runs});
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    for (int round = 0; round < rounds; ++round) {
      std::vector<float> want = values;
      std::rotate(want.begin(), want.end() - round, want.end());
      EXPECT_EQ(ToHost<float>(context, targets[static_cast<size_t>(round)].view), want) << round;
    }
  }
}

// --- A model ---------------------------------------------------------------------------------------------------------

std::unique_ptr<model::Model> LoadTiny(const ops::Backend& backend = Make()) {
  auto loaded = model::Model::Load("models/tiny", backend, {});  // Tests run in the source root.
  DSV4_CHECK(loaded.has_value()) << loaded.error().ToString();
  return std::move(*loaded);
}

std::vector<int32_t> Tokens(size_t count, int32_t seed) {
  std::vector<int32_t> tokens(count);
  int64_t state = seed;
  for (int32_t& token : tokens) {
    state = (state * 6364136223846793005 + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF;
    token = static_cast<int32_t>(state >> 33) % 5120;
  }
  return tokens;
}

std::vector<float> StepAll(model::Model& model, std::vector<kv::SequenceState*> states,
                           const std::vector<std::vector<int32_t>>& tokens, model::LogitsRows rows) {
  std::vector<model::SequenceChunk> chunks;
  for (size_t i = 0; i < states.size(); ++i)
    chunks.push_back({.state = states[i], .tokens = tokens[i], .logits = rows});
  auto output = model.Step(chunks);
  EXPECT_TRUE(output.has_value()) << output.error().ToString();
  if (!output.has_value()) return {};
  return {output->logits.begin(), output->logits.end()};
}

kv::SequenceState NewState(model::Model& model) {
  auto state = model.NewSequence();
  DSV4_CHECK(state.has_value()) << state.error().ToString();
  return std::move(*state);
}

TEST(CudaModel, ASequenceAloneIsTheSameInABatchAndInAnyChunks) {
  const auto model = LoadTiny();
  const std::vector<std::vector<int32_t>> prompts = {Tokens(300, 1), Tokens(1, 2), Tokens(129, 3),
                                                     Tokens(40, 4)};
  std::vector<float> alone;
  std::vector<float> alone_next;
  for (size_t i = 0; i < prompts.size(); ++i) {
    kv::SequenceState state = NewState(*model);
    // In pieces of 37.
    for (size_t at = 0; at < prompts[i].size(); at += 37) {
      const std::vector<int32_t> piece(
          prompts[i].begin() + static_cast<int64_t>(at),
          prompts[i].begin() + static_cast<int64_t>(std::min(prompts[i].size(), at + 37)));
      const auto logits = StepAll(*model, {&state}, {piece}, model::LogitsRows::kAll);
      alone.insert(alone.end(), logits.begin(), logits.end());
    }
    const auto next = StepAll(*model, {&state}, {{17}}, model::LogitsRows::kLast);
    alone_next.insert(alone_next.end(), next.begin(), next.end());
  }
  std::vector<kv::SequenceState> states;
  std::vector<kv::SequenceState*> pointers;
  for (size_t i = 0; i < prompts.size(); ++i) states.push_back(NewState(*model));
  for (kv::SequenceState& state : states) pointers.push_back(&state);
  const auto together = StepAll(*model, pointers, prompts, model::LogitsRows::kAll);
  const auto together_next = StepAll(*model, pointers, {{17}, {17}, {17}, {17}}, model::LogitsRows::kLast);
  ASSERT_EQ(together.size(), alone.size());
  EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0);
  ASSERT_EQ(together_next.size(), alone_next.size());
  EXPECT_EQ(std::memcmp(together_next.data(), alone_next.data(), alone_next.size() * sizeof(float)), 0);
}

// Decode steps of one and of several sequences, over page and entry borders. The bits are the same as graphs
// and as plain launches, with kernels that start early and without. Most steps do run as graphs.
TEST(CudaModel, GraphsReplayWhatLaunchesDo) {
  const auto run = [](const ops::Backend& backend) {
    const auto model = LoadTiny(backend);
    std::vector<float> all;
    for (const size_t batch : {size_t{1}, size_t{3}}) {
      std::vector<kv::SequenceState> states;
      std::vector<kv::SequenceState*> pointers;
      std::vector<std::vector<int32_t>> tokens;
      for (size_t i = 0; i < batch; ++i) states.push_back(NewState(*model));
      for (size_t i = 0; i < batch; ++i) {
        pointers.push_back(&states[i]);
        tokens.push_back(Tokens(1100 + 70 * i, static_cast<int32_t>(i) + 11));
      }
      StepAll(*model, pointers, tokens, model::LogitsRows::kLast);
      for (int32_t step = 0; step < 150; ++step) {
        for (std::vector<int32_t>& next : tokens) next = {step * 31 % 5000};
        const auto logits = StepAll(*model, pointers, tokens, model::LogitsRows::kLast);
        all.insert(all.end(), logits.begin(), logits.end());
      }
    }
    return all;
  };
  const ops::Backend graphs = Make();
  const std::vector<float> want = run(Make(backend::CudaOptions{.graphs = false}));
  for (int round = 0; round < 2; ++round) {
    const std::vector<float> got = run(graphs);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << "round " << round;
  }
  const std::vector<float> early = run(Make(backend::CudaOptions{.overlap = false}));
  EXPECT_EQ(std::memcmp(early.data(), want.data(), want.size() * sizeof(float)), 0);
  const backend::CudaCounters counters = backend::CountersOf(graphs);
  EXPECT_GT(counters.replayed_lists, counters.lists * 7 / 10)
      << counters.lists << " lists, " << counters.graphs_captured << " graphs";
  EXPECT_LT(counters.graphs_captured, 400);
}

// State on the device goes through everything a state can do.
TEST(CudaModel, StatesForkRewindAndTravelAsBytes) {
  const auto model = LoadTiny();
  const std::vector<int32_t> prompt = Tokens(200, 5);
  kv::SequenceState state = NewState(*model);
  StepAll(*model, {&state}, {prompt}, model::LogitsRows::kNone);
  auto fork = state.Fork();
  auto snapshot = state.Snapshot();
  ASSERT_TRUE(fork.has_value() && snapshot.has_value());
  const auto want = StepAll(*model, {&state}, {{7, 8, 9}}, model::LogitsRows::kAll);
  EXPECT_EQ(StepAll(*model, {&*fork}, {{7, 8, 9}}, model::LogitsRows::kAll), want);

  ASSERT_TRUE(state.Rewind(3).ok());
  EXPECT_EQ(StepAll(*model, {&state}, {{7, 8, 9}}, model::LogitsRows::kAll), want);

  const auto bytes = snapshot->Serialize(model->recipe());
  ASSERT_TRUE(bytes.has_value()) << bytes.error().ToString();
  const auto back = model->DeserializeSnapshot(*bytes, model->recipe());
  ASSERT_TRUE(back.has_value()) << back.error().ToString();
  kv::SequenceState restored = NewState(*model);
  ASSERT_TRUE(restored.Restore(*back).ok());
  EXPECT_EQ(StepAll(*model, {&restored}, {{7, 8, 9}}, model::LogitsRows::kAll), want);
}

}  // namespace
}  // namespace dsv4::testing
