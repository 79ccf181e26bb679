// Which ops share a launch: every rule from both sides, of ops that are described and memory that is not
// there.
#include "backend/cuda/lowering/launch/fusion_rules.h"

#include "backend/cuda/lowering/launch/fusion_rules_testing.h"

namespace dsv4::backend::cuda {
namespace {

// --- Accesses --------------------------------------------------------------------------------------------------------

TEST(MayShareLaunch, UnlessOneWritesWhatTheOtherTouches) {
  const Access a = Bytes(At('a'), 100);
  const Access end_of_a = Bytes(At('a', 99), 1);
  const Access behind_a = Bytes(At('a', 100), 1);
  const auto reads = [](const Access& access) { return OpAccesses{.reads = {access}, .writes = {}}; };
  const auto writes = [](const Access& access) { return OpAccesses{.reads = {}, .writes = {access}}; };
  EXPECT_TRUE(MayShareLaunch(reads(a), reads(a)));
  EXPECT_FALSE(MayShareLaunch(writes(a), reads(end_of_a))) << "read after write";
  EXPECT_FALSE(MayShareLaunch(reads(end_of_a), writes(a))) << "write after read";
  EXPECT_FALSE(MayShareLaunch(writes(a), writes(end_of_a))) << "write after write";
  EXPECT_TRUE(MayShareLaunch(writes(a), writes(behind_a))) << "side by side";
  EXPECT_TRUE(MayShareLaunch(writes(Bytes(nullptr, 100)), writes(a))) << "null";
  EXPECT_TRUE(MayShareLaunch(writes(Bytes(At('a'), 0)), writes(a))) << "nothing";
}

TEST(MayShareLaunch, TheSameBytesDividedAlike) {
  const Access heads = Bytes(At('a'), 100, Division::kHeads);
  const auto reads = [](const Access& access) { return OpAccesses{.reads = {access}, .writes = {}}; };
  const auto writes = [](const Access& access) { return OpAccesses{.reads = {}, .writes = {access}}; };
  EXPECT_TRUE(MayShareLaunch(writes(heads), reads(heads)));
  EXPECT_TRUE(MayShareLaunch(writes(heads), writes(heads)));
  EXPECT_FALSE(MayShareLaunch(writes(heads), reads(Bytes(At('a'), 100)))) << "any block reads it";
  EXPECT_FALSE(MayShareLaunch(writes(heads), reads(Bytes(At('a'), 100, Division::kTokenColumns))));
  EXPECT_FALSE(MayShareLaunch(writes(heads), reads(Bytes(At('a', 2), 98, Division::kHeads)))) << "shifted";
  EXPECT_FALSE(MayShareLaunch(writes(Bytes(At('a'), 100)), writes(Bytes(At('a'), 100))));
}

// --- Rules -----------------------------------------------------------------------------------------------------------

RecordedOp Swiglu(char y = 'y', char gate = 'g') {
  return {
      .kind = OpKind::kSwiglu,
      .accesses = {.reads = {Bytes(At(gate), 4096), Bytes(At('u'), 4096)}, .writes = {Bytes(At(y), 4096)}},
      .work = SwigluWork{.gate = At(gate),
                         .up = At('u'),
                         .row_weights = nullptr,
                         .y = At(y),
                         .count = 2048,
                         .width = 2048,
                         .limit = 10,
                         .dtype = DType::kBF16}};
}
RecordedOp Router(int64_t num_tokens, char logits = 'l', char indices = 'i') {
  return {.kind = OpKind::kRouter,
          .accesses = {.reads = {Bytes(At(logits), 1024)},
                       .writes = {Bytes(At(indices), 24), Bytes(At('w'), 24)}},
          .work = RouterWork{.params = {}, .num_tokens = num_tokens}};
}

TEST(FusionRules, SwigluThenRouter) {
  const auto rule = FusionRule::kSwigluRouter;
  Expect({{"one token", {Swiglu()}, Router(1), rule},
          {"eight tokens", {Swiglu()}, Router(8), rule},
          {"nine tokens", {Swiglu()}, Router(9), std::nullopt},
          {"logits are what swiglu writes", {Swiglu('y')}, Router(1, 'y'), std::nullopt},
          {"indices go where swiglu reads", {Swiglu('y', 'g')}, Router(1, 'l', 'g'), std::nullopt},
          {"indices go where swiglu writes", {Swiglu('y')}, Router(1, 'l', 'y'), std::nullopt},
          {"the other way round", {Router(1)}, Swiglu(), std::nullopt},
          {"nothing before", {}, Router(1), std::nullopt}});
}

RecordedOp Attention(int num_tokens = 1) {
  AttentionWork work = {};
  work.params.o = At('o');
  work.params.num_tokens = num_tokens;
  work.params.num_heads = 64;
  work.params.head_dim = 512;
  work.max_keys = 640;
  const auto bytes = static_cast<size_t>(num_tokens) * 64 * 512 * 2;
  return {.kind = OpKind::kAttention,
          .accesses = {.reads = {}, .writes = {Bytes(At('o'), bytes, Division::kHeads)}},
          .work = work};
}
RecordedOp Rope(const void* x, const Shape& shape, int frequencies = 32, const void* positions = At('p'),
                DType dtype = DType::kBF16) {
  return {.kind = OpKind::kRope,
          .accesses = {.reads = {Bytes(At('f'), 128), Bytes(positions, 4)},
                       .writes = {Bytes(x, static_cast<size_t>(shape.num_elements() * 2), Division::kHeads)}},
          .work = RopeWork{.x = x,
                           .dtype = dtype,
                           .shape = shape,
                           .rotation = {.frequencies = As<const float>('f'),
                                        .positions = static_cast<const int32_t*>(positions),
                                        .fault = nullptr,
                                        .num_frequencies = frequencies,
                                        .inverse = true}}};
}

TEST(FusionRules, AttentionThenRopeOfItsOutput) {
  const auto rule = FusionRule::kAttentionRope;
  const Shape shape = {1, 64, 512};
  Expect({{"its output", {Attention()}, Rope(At('o'), shape), rule},
          {"eight tokens", {Attention(8)}, Rope(At('o'), {8, 64, 512}), rule},
          {"another tensor", {Attention()}, Rope(At('q'), shape), std::nullopt},
          {"some of the tokens", {Attention(8)}, Rope(At('o'), {4, 64, 512}), std::nullopt},
          {"other heads", {Attention()}, Rope(At('o'), {1, 128, 256}), std::nullopt},
          {"fp32", {Attention()}, Rope(At('o'), shape, 32, At('p'), DType::kF32), std::nullopt},
          {"as many frequencies as threads have pairs", {Attention()}, Rope(At('o'), shape, 64), rule},
          {"more of them", {Attention()}, Rope(At('o'), shape, 65), std::nullopt},
          {"positions in the output", {Attention()}, Rope(At('o'), shape, 32, At('o', 256)), std::nullopt},
          {"rotated already", {Attention(), Rope(At('o'), shape)}, Rope(At('o'), shape), std::nullopt}});
}

}  // namespace
}  // namespace dsv4::backend::cuda
