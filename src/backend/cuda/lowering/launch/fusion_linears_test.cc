// The rules of linears and experts, from both sides.
#include "backend/cuda/lowering/launch/fusion_rules_testing.h"

namespace dsv4::backend::cuda {
namespace {

DeviceWeight Bf16(int64_t rows, int64_t cols) {
  return {.data = As<const uint8_t>('A'),
          .rows = rows,
          .cols = cols,
          .kind = MatmulKind::kMmaBf16,
          .exact_x = true};
}
DeviceWeight Fp8(int64_t rows, int64_t cols, bool quantized_x = true) {
  return {.data = As<const uint8_t>('A'),
          .scale = At('B'),
          .rows = rows,
          .cols = cols,
          .block_rows = 128,
          .block_cols = 128,
          .scale_cols = cols / 128,
          .block_rows_log2 = 7,
          .block_cols_log2 = 7,
          .kind = MatmulKind::kMmaFp8,
          .quantized_x = quantized_x,
          .x_group = quantized_x ? 128 : 0,
          .exact_x = true};
}
DeviceWeight NvFp4(int64_t rows, int64_t cols) {
  return {.data = As<const uint8_t>('A'),
          .scale = At('B'),
          .rows = rows,
          .cols = cols,
          .scale_cols = cols / 16,
          .kind = MatmulKind::kMmaNvFp4,
          .exact_x = true,
          .repacked = true};
}

struct Place {
  const void* x = At('x');
  void* y = At('y');
  int64_t x_stride = 0;  // 0: without gaps.
};
RecordedOp Record(const LinearWork& work) {
  const int64_t groups = work.num_groups - 1;
  return {.kind = work.num_groups == 1 ? OpKind::kLinear : OpKind::kGroupedLinear,
          .accesses = {.reads = {{RangeOfRows(work.x, work.x_stride,
                                              groups * work.x_group_stride + work.weight.cols, true,
                                              work.num_tokens)}},
                       .writes = {{RangeOfRows(work.y, work.y_stride,
                                               groups * work.y_group_stride + work.rows_per_group,
                                               work.y_is_bf16, work.num_tokens)}}},
          .work = work};
}
LinearWork Work(LinearPath path, const DeviceWeight& weight, int64_t num_tokens, const Place& place = {},
                int64_t num_groups = 1, bool y_is_bf16 = true) {
  return {.path = path,
          .weight = weight,
          .x = static_cast<const uint16_t*>(place.x),
          .x_stride = place.x_stride != 0 ? place.x_stride : num_groups * weight.cols,
          .x_group_stride = weight.cols,
          .y = place.y,
          .y_stride = weight.rows,
          .y_group_stride = weight.rows / num_groups,
          .y_is_bf16 = y_is_bf16,
          .rows_per_group = weight.rows / num_groups,
          .num_groups = num_groups,
          .num_tokens = num_tokens};
}
RecordedOp Gemv(const DeviceWeight& weight, int64_t num_tokens = 1, const Place& place = {}) {
  return Record(Work(LinearPath::kGemvStream, weight, num_tokens, place));
}
RecordedOp SplitK(const DeviceWeight& weight, int64_t num_tokens = 32, const Place& place = {}) {
  return Record(Work(LinearPath::kGemmSplitK, weight, num_tokens, place));
}

// 512 tokens, that gemm_splitk_wgmma and gemm_wgmma both take.
RecordedOp Either(const DeviceWeight& weight, const Place& place = {},
                  LinearPath path = LinearPath::kGemmWgmma) {
  LinearWork work = Work(path, weight, 512, place);
  work.either = true;
  return Record(work);
}

TEST(FusionRules, LinearsOfTheSameActivations) {
  const auto rule = FusionRule::kLinearsGemv;
  const DeviceWeight fp8 = Fp8(1024, 4096);
  const RecordedOp first = Gemv(fp8);
  const Place second = {.y = At('z')};
  std::vector<RecordedOp> seven;
  for (int i = 0; i < 7; ++i) seven.push_back(Gemv(fp8, 1, {.y = At(static_cast<char>('a' + i))}));
  std::vector<RecordedOp> eight = seven;
  eight.push_back(Gemv(fp8, 1, {.y = At('h')}));
  Expect({
      {"FP8 twice", {first}, Gemv(fp8, 1, second), rule},
      {"eight tokens", {Gemv(fp8, 8)}, Gemv(fp8, 8, second), rule},
      {"FP8 and BF16, the release's mixture", {first}, Gemv(Bf16(64, 4096), 1, second), rule},
      {"BF16 and FP8", {Gemv(Bf16(64, 4096))}, Gemv(fp8, 1, second), rule},
      {"FP8 and FP4", {first}, Gemv(NvFp4(1024, 4096), 1, second), std::nullopt},
      {"FP8 with and without rounding", {first}, Gemv(Fp8(1024, 4096, false), 1, second), std::nullopt},
      {"FP4 twice", {Gemv(NvFp4(1024, 4096))}, Gemv(NvFp4(512, 4096), 1, second), rule},
      {"other activations", {first}, Gemv(fp8, 1, {.x = At('w'), .y = At('z')}), std::nullopt},
      {"other columns", {first}, Gemv(Fp8(1024, 2048), 1, second), std::nullopt},
      {"another number of tokens", {Gemv(fp8, 2)}, Gemv(fp8, 1, second), std::nullopt},
      {"another stride", {Gemv(fp8, 2)}, Gemv(fp8, 2, {.y = At('z'), .x_stride = 8192}), std::nullopt},
      {"another stride of one token", {first}, Gemv(fp8, 1, {.y = At('z'), .x_stride = 8192}), rule},
      {"the same result", {first}, Gemv(fp8), std::nullopt},
      {"results that overlap", {first}, Gemv(fp8, 1, {.y = At('y', 2046)}), std::nullopt},
      {"results side by side", {first}, Gemv(fp8, 1, {.y = At('y', 2048)}), rule},
      {"the result goes where the activations are",
       {first},
       Gemv(fp8, 1, {.y = At('x', 8190)}),
       std::nullopt},
      {"the first's result is the activations",
       {Gemv(fp8, 1, {.y = At('x')})},
       Gemv(fp8, 1, second),
       std::nullopt},
      {"the eighth", seven, Gemv(fp8, 1, second), rule},
      {"the ninth", eight, Gemv(fp8, 1, second), std::nullopt},
      {"another kernel", {first}, SplitK(fp8, 1, second), std::nullopt},
      {"rows of two forms fit", {Gemv(Fp8(1024, 4096), 8)}, Gemv(Bf16(64, 4096), 8, second), rule},
      {"of more columns they do not",
       {Gemv(Fp8(1024, 4224), 8)},
       Gemv(Bf16(64, 4224), 8, second),
       std::nullopt},
  });
  Room ampere;
  ampere.bytes = size_t{163} * 1024;
  Expect(
      {{"rows of two forms fit in less", {Gemv(Fp8(1024, 2944), 8)}, Gemv(Bf16(64, 2944), 8, second), rule},
       {"and do not", {Gemv(Fp8(1024, 3072), 8)}, Gemv(Bf16(64, 3072), 8, second), std::nullopt}},
      ampere);
}

TEST(FusionRules, LinearsOfTheSameActivationsBySplitK) {
  const auto rule = FusionRule::kLinearsSplitK;
  const DeviceWeight fp8 = Fp8(1024, 4096);
  const Place second = {.y = At('z')};
  Expect({
      {"FP8 twice", {SplitK(fp8)}, SplitK(fp8, 32, second), rule},
      {"64 tokens", {SplitK(fp8, 64)}, SplitK(fp8, 64, second), rule},
      {"FP8 and BF16", {SplitK(fp8)}, SplitK(Bf16(64, 4096), 32, second), rule},
      {"FP8 with and without rounding",
       {SplitK(fp8)},
       SplitK(Fp8(1024, 4096, false), 32, second),
       std::nullopt},
      {"another kernel", {SplitK(fp8)}, Gemv(fp8, 32, second), std::nullopt},
      {"the same result", {SplitK(fp8)}, SplitK(fp8), std::nullopt},
      {"the last tile that slices can count",
       {SplitK(fp8)},
       SplitK(Fp8((960 - 16) * 64, 4096), 32, second),
       rule},
      {"one tile more", {SplitK(fp8)}, SplitK(Fp8((960 - 15) * 64, 4096), 32, second), std::nullopt},
      {"another kernel that both take",
       {Either(fp8)},
       Either(Bf16(64, 4096), second, LinearPath::kGemmSplitK),
       rule},
      {"the same", {Either(fp8, {}, LinearPath::kGemmSplitK)}, Either(fp8, second), rule},
      {"split-K alone beside either", {SplitK(fp8, 512)}, Either(fp8, second), std::nullopt},
      {"gemm_wgmma alone",
       {Record(Work(LinearPath::kGemmWgmma, fp8, 512))},
       Record(Work(LinearPath::kGemmWgmma, fp8, 512, second)),
       std::nullopt},
  });
}

TEST(FusionRules, GroupedLinearThenTheLinearOfItsResult) {
  const auto rule = FusionRule::kGroupedLinearPair;
  const auto groups = [](int64_t num_tokens = 1, bool y_is_bf16 = true) {
    return Record(
        Work(LinearPath::kGemvStream, Fp8(8192, 4096, false), num_tokens, {.y = At('m')}, 8, y_is_bf16));
  };
  const auto linear = [](int64_t num_tokens = 1, const void* x = At('m'), void* y = At('z'),
                         int64_t cols = 8192) { return Gemv(Fp8(4096, cols), num_tokens, {.x = x, .y = y}); };
  Expect({
      {"one token", {groups()}, linear(), rule},
      {"eight tokens", {groups(8)}, linear(8), rule},
      {"eight tokens, of which the linear alone would be split-K's",
       {groups(8)},
       SplitK(Fp8(4096, 8192), 8, {.x = At('m'), .y = At('z')}),
       rule},
      {"tiles that are not whole",
       {groups(8)},
       SplitK(Fp8(4104, 8192), 8, {.x = At('m'), .y = At('z')}),
       std::nullopt},
      {"another number of tokens", {groups(8)}, linear(4), std::nullopt},
      {"of something else", {groups()}, linear(1, At('x')), std::nullopt},
      {"of a part of it", {groups()}, linear(1, At('m'), At('z'), 4096), std::nullopt},
      {"fp32 between the two", {groups(1, false)}, linear(), std::nullopt},
      {"it writes what it reads", {groups()}, linear(1, At('m'), At('m', 16382)), std::nullopt},
      {"it writes behind that", {groups()}, linear(1, At('m'), At('m', 16384)), rule},
      {"the third", {groups(), linear()}, linear(), std::nullopt},
  });
  Room full;
  full.pair = false;
  Expect({{"blocks that do not run at once", {groups()}, linear(), std::nullopt}}, full);
}

RecordedOp Experts(int num_tokens = 1) {
  return {.kind = OpKind::kExperts,
          .accesses = {.reads = {Bytes(At('x'), num_tokens * 8192), Bytes(At('i'), 24), Bytes(At('w'), 24)},
                       .writes = {Bytes(At('e'), num_tokens * int64_t{16384})}},
          .work = JointExpertsWork{.w1 = NvFp4(2048, 4096),
                                   .w2 = NvFp4(4096, 2048),
                                   .weights = nullptr,
                                   .indices = As<const int32_t>('i'),
                                   .routing = As<const float>('w'),
                                   .x = As<const uint16_t>('x'),
                                   .y = As<float>('e'),
                                   .num_tokens = num_tokens,
                                   .num_experts = 256,
                                   .top_k = 6,
                                   .limit = 10}};
}

TEST(FusionRules, ExpertsThenTheSharedExpertsDown) {
  const auto rule = FusionRule::kExpertsAndLinear;
  const DeviceWeight down = Fp8(4096, 2048);
  DeviceWeight crooked = down;
  crooked.data += 8;
  Expect({
      {"FP8", {Experts()}, Gemv(down, 1, {.x = At('h')}), rule},
      {"the experts' own format", {Experts()}, Gemv(NvFp4(4096, 2048), 1, {.x = At('h')}), rule},
      {"BF16", {Experts()}, Gemv(Bf16(4096, 2048), 1, {.x = At('h')}), std::nullopt},
      {"two tokens", {Experts(2)}, Gemv(down, 2, {.x = At('h')}), rule},
      {"eight tokens", {Experts(8)}, Gemv(down, 8, {.x = At('h')}), rule},
      {"another number of tokens", {Experts(2)}, Gemv(down, 1, {.x = At('h')}), std::nullopt},
      {"tokens with gaps", {Experts(2)}, Gemv(down, 2, {.x = At('h'), .x_stride = 4096}), std::nullopt},
      {"one token with gaps", {Experts()}, Gemv(down, 1, {.x = At('h'), .x_stride = 4096}), rule},
      {"not by 16 bytes", {Experts()}, Gemv(crooked, 1, {.x = At('h')}), std::nullopt},
      {"of what the experts give", {Experts()}, Gemv(down, 1, {.x = At('e')}), std::nullopt},
      {"into what the experts give",
       {Experts()},
       Gemv(down, 1, {.x = At('h'), .y = At('e', 16000)}),
       std::nullopt},
      {"into what the experts read", {Experts()}, Gemv(down, 1, {.x = At('h'), .y = At('w')}), std::nullopt},
      {"a second linear",
       {Experts(), Gemv(down, 1, {.x = At('h')})},
       Gemv(down, 1, {.x = At('h'), .y = At('z')}),
       std::nullopt},
  });
  Room full;
  full.joint = false;
  Expect({{"no room", {Experts()}, Gemv(down, 1, {.x = At('h')}), std::nullopt}}, full);
}

RecordedOp RankSum(void* values, int64_t count) {
  const Access sum = Bytes(values, count * 4, Division::kFloatColumns);
  RankSumWork work = {.links = {},
                      .routed = static_cast<const float*>(values),
                      .added = nullptr,
                      .sum = static_cast<float*>(values),
                      .count = count};
  work.links.size = 2;
  return {.kind = OpKind::kRankSum, .accesses = {.reads = {sum}, .writes = {sum}}, .work = work};
}

TEST(FusionRules, PairSendsItsPartOfASum) {
  const auto rule = FusionRule::kPairSend;
  const RecordedOp groups =
      Record(Work(LinearPath::kGemvStream, Fp8(8192, 4096, false), 1, {.y = At('m')}, 8));
  const auto linear = [](bool y_is_bf16) {
    return Record(
        Work(LinearPath::kGemvStream, Fp8(4096, 8192), 1, {.x = At('m'), .y = At('z')}, 1, y_is_bf16));
  };
  Expect({{"its results", {groups, linear(false)}, RankSum(At('z'), 4096), rule},
          {"in bf16", {groups, linear(true)}, RankSum(At('z'), 4096), std::nullopt},
          {"something else", {groups, linear(false)}, RankSum(At('y'), 4096), std::nullopt},
          {"a part of it", {groups, linear(false)}, RankSum(At('z'), 2048), std::nullopt},
          {"of a linear alone", {linear(false)}, RankSum(At('z'), 4096), std::nullopt}});

  OpGroup group;
  group.ops = {groups, linear(false)};
  RecordedOp sum = RankSum(At('z'), 4096);
  const std::optional<Fusion> fusion = FindFusion(group, sum, Room());
  ASSERT_TRUE(fusion.has_value());
  ASSERT_EQ(fusion->pattern->effect, Effect::kHandOver);
  fusion->pattern->hand_over(group, sum);
  EXPECT_EQ(group.links.size, 2);
  EXPECT_EQ(group.links.pushed, 0);
  EXPECT_EQ(std::get<RankSumWork>(sum.work).links.pushed, 1) << "it is not sent twice";
}

// --- Between two sub-layers ------------------------------------------------------------------------------------------

constexpr int64_t kDim = 4096;

RecordedOp Combine(int64_t tokens = 1, void* y = At('y'), const void* routed = At('r'),
                   const void* shared = At('s'), DType dtype = DType::kBF16) {
  const Division columns = dtype == DType::kF32 ? Division::kFloatColumns : Division::kTokenColumns;
  const int64_t bytes = tokens * kDim * (dtype == DType::kF32 ? 4 : 2);
  return {.kind = OpKind::kCombine,
          .accesses = {.reads = {Bytes(routed, tokens * kDim * 4, Division::kFloatColumns),
                                 Bytes(shared, bytes, columns)},
                       .writes = {Bytes(y, bytes, columns)}},
          .work = CombineWork{.routed = static_cast<const float*>(routed),
                              .shared = shared,
                              .y = y,
                              .count = tokens * kDim,
                              .dtype = dtype,
                              .path = ElementsPath::kEach}};
}
struct PostPlaces {
  const void* y = At('y');
  const void* residual = At('R');
  void* out = At('R');
  const void* post = At('p');
  const void* comb = At('c');
};
RecordedOp Post(int64_t tokens = 1, const PostPlaces& at = {}, DType dtype = DType::kBF16) {
  return {.kind = OpKind::kHcPost,
          .accesses = {.reads = {Bytes(at.y, tokens * kDim * 2, Division::kTokenColumns),
                                 Bytes(at.residual, tokens * kDim * 8, Division::kStreamColumns),
                                 Bytes(at.post, tokens * 16, Division::kPost),
                                 Bytes(at.comb, tokens * 64, Division::kComb)},
                       .writes = {Bytes(at.out, tokens * kDim * 8, Division::kStreamColumns)}},
          .work = HcPostWork{.y = at.y,
                             .residual = at.residual,
                             .out = at.out,
                             .post = static_cast<const float*>(at.post),
                             .comb = static_cast<const float*>(at.comb),
                             .num_tokens = tokens,
                             .dim = kDim,
                             .dtype = dtype}};
}
struct PrePlaces {
  const void* streams = At('R');
  void* u = At('y');
  void* post = At('p');
  void* comb = At('c');
};
RecordedOp Pre(int tokens = 1, const PrePlaces& at = {}, HcPrePath path = HcPrePath::kCluster) {
  HcPreWork work = {.streams = at.streams,
                    .fn = As<const float>('F'),
                    .u = at.u,
                    .params = {},
                    .dots = nullptr,
                    .num_tokens = tokens,
                    .path = path};
  work.params.dim = kDim;
  return {.kind = OpKind::kHcPre,
          .accesses = {.reads = {Bytes(at.streams, tokens * kDim * 8, Division::kStreamColumns),
                                 Bytes(At('F'), kDim * 4 * 24 * 4)},
                       .writes = {Bytes(at.u, tokens * kDim * 2, Division::kTokenColumns),
                                  Bytes(at.post, tokens * 16, Division::kPost),
                                  Bytes(at.comb, tokens * 64, Division::kComb)}},
          .work = work};
}
RecordedOp Norm(int tokens = 1, void* x = At('y'), DType dtype = DType::kBF16, const void* weight = At('W')) {
  const Access rows = Bytes(x, tokens * kDim * 2, Division::kTokenColumns);
  return {.kind = OpKind::kNorm,
          .accesses = {.reads = {rows, Bytes(weight, kDim * 4)}, .writes = {rows}},
          .work = NormWork{.x = x,
                           .dtype = dtype,
                           .shape = {tokens, kDim},
                           .weight = static_cast<const float*>(weight),
                           .eps = 1e-6F}};
}

TEST(FusionRules, CombineThenPost) {
  const auto rule = FusionRule::kCombinePost;
  Expect({
      {"of its result", {Combine()}, Post(), rule},
      {"many tokens", {Combine(300)}, Post(300), rule},
      {"streams elsewhere", {Combine()}, Post(1, {.out = At('O')}), rule},
      {"of something else", {Combine()}, Post(1, {.y = At('z')}), std::nullopt},
      {"of some tokens", {Combine(2)}, Post(1), std::nullopt},
      {"the shared part is the result", {Combine(1, At('y'), At('r'), At('y'))}, Post(), rule},
      {"the shared part is not there", {Combine(1, At('y'), At('r'), nullptr)}, Post(), rule},
      {"routed not by 16 bytes", {Combine(1, At('y'), At('r', 8))}, Post(), std::nullopt},
      {"shared not by 16 bytes", {Combine(1, At('y'), At('r'), At('s', 8))}, Post(), std::nullopt},
      {"streams go where routed is", {Combine()}, Post(1, {.out = At('r')}), std::nullopt},
      {"streams go where shared is", {Combine()}, Post(1, {.out = At('s')}), std::nullopt},
      {"streams go where the result is", {Combine()}, Post(1, {.out = At('y', 8190)}), std::nullopt},
      {"old streams where the result goes", {Combine()}, Post(1, {.residual = At('y', 8190)}), std::nullopt},
      {"fp32", {Combine()}, Post(1, {}, DType::kF32), std::nullopt},
  });
}

TEST(FusionRules, PostThenPre) {
  const auto rule = FusionRule::kPostPre;
  Expect({
      {"of these streams", {Post()}, Pre(), rule},
      {"eight tokens", {Post(8)}, Pre(8), rule},
      {"64 tokens", {Post(64)}, Pre(64, {}, HcPrePath::kTokenTiles), rule},
      {"behind moe_combine", {Combine(), Post()}, Pre(), rule},
      {"of other streams", {Post()}, Pre(1, {.streams = At('O')}), std::nullopt},
      {"of the streams before", {Post(1, {.out = At('O')})}, Pre(), std::nullopt},
      {"of some tokens", {Post(2)}, Pre(1), std::nullopt},
      {"u elsewhere", {Post()}, Pre(1, {.u = At('u')}), rule},
      {"u half in y", {Post()}, Pre(1, {.u = At('y', 4096)}), std::nullopt},
      {"u in the old streams",
       {Post(1, {.out = At('O')})},
       Pre(1, {.streams = At('O'), .u = At('R')}),
       std::nullopt},
      {"u in the new streams", {Post()}, Pre(1, {.u = At('R', 4096)}), std::nullopt},
      {"u where post is", {Post()}, Pre(1, {.u = At('p')}), std::nullopt},
      {"post elsewhere", {Post()}, Pre(1, {.post = At('P'), .comb = At('C')}), rule},
      {"post where comb is", {Post()}, Pre(1, {.post = At('c')}), std::nullopt},
      {"post shifted", {Post(2)}, Pre(2, {.post = At('p', 16)}), std::nullopt},
      {"comb where post is", {Post()}, Pre(1, {.comb = At('p')}), std::nullopt},
      {"comb in y", {Post()}, Pre(1, {.comb = At('y')}), std::nullopt},
      {"u in routed", {Combine(), Post()}, Pre(1, {.u = At('r')}), std::nullopt},
      {"u is shared", {Combine(), Post()}, Pre(1, {.u = At('s')}), rule},
      {"u half in shared", {Combine(), Post()}, Pre(1, {.u = At('s', 4096)}), std::nullopt},
      {"post in shared", {Combine(), Post()}, Pre(1, {.post = At('s')}), std::nullopt},
      {"new streams half in the old ones",
       {Post(1, {.out = At('R', 8192)})},
       Pre(1, {.streams = At('R', 8192)}),
       std::nullopt},
      {"new streams where comb is",
       {Post(1, {.out = At('c')})},
       Pre(1, {.streams = At('c'), .comb = At('C')}),
       std::nullopt},
  });
}

TEST(FusionRules, PreThenNormThenTheMixGoesToALinear) {
  Expect({
      {"of u", {Pre()}, Norm(), FusionRule::kPreNorm},
      {"64 tokens", {Pre(64, {}, HcPrePath::kTokenTiles)}, Norm(64), FusionRule::kPreNorm},
      {"of all that", {Combine(), Post(), Pre()}, Norm(), FusionRule::kPreNorm},
      {"of something else", {Pre()}, Norm(1, At('z')), std::nullopt},
      {"of some tokens", {Pre(2)}, Norm(1), std::nullopt},
      {"fp32", {Pre()}, Norm(1, At('y'), DType::kF32), std::nullopt},
      {"its weight is what pre writes", {Pre()}, Norm(1, At('y'), DType::kBF16, At('p')), std::nullopt},
      {"twice", {Pre(), Norm()}, Norm(), std::nullopt},
  });
  const RecordedOp linear = Gemv(Fp8(1024, kDim), 1, {.x = At('y'), .y = At('z')});
  const RecordedOp grouped =
      Record(Work(LinearPath::kGemvStream, Fp8(1024, 512), 1, {.x = At('y'), .y = At('z')}, 8));
  const RecordedOp split_groups =
      Record(Work(LinearPath::kGemmSplitK, Fp8(1024, 512), 32, {.x = At('y'), .y = At('z')}, 8));
  const auto rule = FusionRule::kCombIntoLinear;
  Expect({
      {"the linear behind", {Pre(), Norm()}, linear, rule},
      {"any linear behind", {Pre(), Norm()}, Gemv(Fp8(1024, 512), 1, {.x = At('q'), .y = At('z')}), rule},
      {"split-K", {Pre(), Norm()}, SplitK(Fp8(1024, kDim), 32, {.x = At('y'), .y = At('z')}), rule},
      {"either", {Pre(), Norm()}, Either(Fp8(1024, kDim), {.x = At('y'), .y = At('z')}), rule},
      {"gemm_wgmma alone",
       {Pre(), Norm()},
       Record(Work(LinearPath::kGemmWgmma, Fp8(1024, kDim), 512, {.x = At('y'), .y = At('z')})),
       std::nullopt},
      {"groups", {Pre(), Norm()}, grouped, std::nullopt},
      {"groups by split-K", {Pre(), Norm()}, split_groups, rule},
      {"without a norm", {Pre()}, linear, std::nullopt},
  });

  OpGroup group;
  group.ops = {Post(8), Pre(8), Norm(8)};
  RecordedOp next = linear;
  const std::optional<Fusion> fusion = FindFusion(group, next, Room());
  ASSERT_TRUE(fusion.has_value());
  ASSERT_EQ(fusion->pattern->effect, Effect::kHandOver);
  fusion->pattern->hand_over(group, next);
  EXPECT_TRUE(group.leaves_mix);
  EXPECT_EQ(std::get<LinearWork>(next.work).mix.num_tokens, 8);
  EXPECT_FALSE(FindFusion(group, linear, Room()).has_value()) << "it is done once";
}

TEST(FusionRules, TheSumOverRanksBetweenTwoSubLayers) {
  const auto rule = FusionRule::kSumOverRanks;
  const RecordedOp partial = Combine(1, At('v'), At('r'), At('s'), DType::kF32);
  const RecordedOp sum = RankSum(At('v'), kDim);
  const RecordedOp rounded = Combine(1, At('y'), At('v'), nullptr);
  Expect({
      {"of what moe_combine gives", {partial}, sum, rule},
      {"in bf16", {Combine(1, At('v'))}, sum, std::nullopt},
      {"of something else", {partial}, RankSum(At('z'), kDim), std::nullopt},
      {"of a part of it", {partial}, RankSum(At('v'), kDim / 2), std::nullopt},
      {"rounded", {sum}, rounded, rule},
      {"rounded, behind moe_combine", {partial, sum}, rounded, rule},
      {"with something added", {sum}, Combine(1, At('y'), At('v'), At('s')), std::nullopt},
      {"in fp32", {sum}, Combine(1, At('y'), At('v'), nullptr, DType::kF32), std::nullopt},
      {"rounded in place", {sum}, Combine(1, At('v'), At('v'), nullptr), std::nullopt},
      {"then hc_post", {sum, rounded}, Post(), FusionRule::kCombinePost},
      {"hc_post of the sum itself", {sum}, Post(1, {.y = At('v')}), std::nullopt},
      {"streams go where the sum is", {sum, rounded}, Post(1, {.out = At('v')}), std::nullopt},
      {"streams go where routed is", {partial, sum, rounded}, Post(1, {.out = At('r')}), std::nullopt},
      {"then hc_pre", {sum, rounded, Post()}, Pre(), FusionRule::kPostPre},
      {"u where the sum is", {sum, rounded, Post()}, Pre(1, {.u = At('v')}), std::nullopt},
      {"post where the sum is", {sum, rounded, Post()}, Pre(1, {.post = At('v')}), std::nullopt},
      {"more tokens: another kernel, which sums nothing",
       {RankSum(At('v'), 9 * kDim), Combine(9, At('y'), At('v'), nullptr), Post(9)},
       Pre(9, {}, HcPrePath::kTokenTiles),
       std::nullopt},
  });
  Room full;
  full.cluster_over_ranks = false;
  Expect({{"no room over ranks", {sum, rounded, Post()}, Pre(), std::nullopt},
          {"room alone", {Post()}, Pre(), FusionRule::kPostPre}},
         full);
}

}  // namespace
}  // namespace dsv4::backend::cuda
