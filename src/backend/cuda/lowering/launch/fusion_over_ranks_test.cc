// The rules over ranks and of packed tokens, from both sides.
#include "backend/cuda/lowering/launch/fusion_rules_testing.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kTopK = 512;
constexpr int64_t kCandidateBytes = kTopK * 8;
constexpr int64_t kDim = 512;
constexpr int64_t kOwnHeads = 16;
constexpr int64_t kQueryBytes = kOwnHeads * kDim * 2;
constexpr int64_t kPartBytes = kOwnHeads * (kDim + 2) * 4;

ChosenList Chosen(const void* selected, int64_t position = 4095, int64_t tokens = 1) {
  return {.list = {.selected = selected,
                   .num_tokens = tokens,
                   .top_k = kTopK,
                   .ratio = 4,
                   .sequences = {{0, tokens, position}}},
          .shard_index = 1,
          .shard_count = kRanks};
}

RecordedOp Candidates(int64_t tokens = 1) {
  constexpr char name = 'c';
  CandidatesWork work = {.params = {}, .chosen = Chosen(nullptr, 4095, tokens)};
  work.params.num_tokens = tokens;
  work.params.shard_index = 1;
  work.params.shard_count = kRanks;
  work.params.top_k = kTopK;
  work.params.candidates = As<uint64_t>(name);
  return {.kind = OpKind::kCandidates,
          .accesses = {.reads = {}, .writes = {Bytes(At(name), tokens * kCandidateBytes, Division::kOfRank)}},
          .work = work};
}
RecordedOp Exchange(OpKind kind, const void* mine, void* all, int64_t piece_bytes, int rank = 1,
                    int ranks = kRanks, int64_t tokens = 1) {
  ExchangeWork work = {
      .params = {}, .kernel = nullptr, .blocks = 1, .mine = mine, .all = all, .piece_bytes = piece_bytes};
  work.params.rank = rank;
  work.params.size = ranks;
  work.params.num_rows = tokens;
  const int64_t mine_bytes = tokens * (kind == OpKind::kGather ? piece_bytes : ranks * piece_bytes);
  const bool gathers = kind == OpKind::kGather;
  return {
      .kind = kind,
      .accesses = {.reads = {Bytes(mine, mine_bytes, gathers ? Division::kOfRank : Division::kPartsOfRank)},
                   .writes = {Bytes(all, tokens * ranks * piece_bytes,
                                    gathers ? Division::kOfAllRanks : Division::kPartsOfAllRanks)}},
      .work = work};
}
RecordedOp Gather(const void* mine, void* all, int64_t piece_bytes, int rank = 1, int ranks = kRanks,
                  int64_t tokens = 1) {
  return Exchange(OpKind::kGather, mine, all, piece_bytes, rank, ranks, tokens);
}
RecordedOp GatherRows(const void* mine, void* all, int64_t piece_bytes, int64_t tokens) {
  return Gather(mine, all, piece_bytes, 1, kRanks, tokens);
}
RecordedOp Merge(const void* candidates, void* selected, int64_t top_k = kTopK, int64_t tokens = 1) {
  return {.kind = OpKind::kMergeCandidates,
          .accesses = {.reads = {Bytes(candidates, tokens * kRanks * kCandidateBytes, Division::kOfAllRanks)},
                       .writes = {Bytes(selected, tokens * top_k * 4)}},
          .work = MergeCandidatesWork{.candidates = static_cast<const uint64_t*>(candidates),
                                      .shape = {tokens, kRanks * kTopK},
                                      .selected = static_cast<int32_t*>(selected),
                                      .selected_shape = {tokens, top_k}}};
}
RecordedOp RowsHere(const ChosenList& chosen) {
  return {.kind = OpKind::kRowsHere, .accesses = {}, .work = chosen};
}

TEST(FusionRules, CandidatesOverRanks) {
  const auto rule = FusionRule::kCandidatesOverRanks;
  const RecordedOp gather = Gather(At('c'), At('a'), kCandidateBytes);
  const std::vector<RecordedOp> merged = {Candidates(), gather, Merge(At('a'), At('s'))};
  RecordedOp queries = Gather(At('q'), At('Q'), kQueryBytes);
  std::get<ExchangeWork>(queries.work).chosen = Chosen(At('s'));
  const RecordedOp plain_queries = Gather(At('q'), At('Q'), kQueryBytes);
  const RecordedOp gather_eight = GatherRows(At('c'), At('a'), kCandidateBytes, 8);
  const std::vector<RecordedOp> merged_eight = {Candidates(8), gather_eight,
                                                Merge(At('a'), At('s'), kTopK, 8)};
  Expect({
      {"their gather", {Candidates()}, gather, rule},
      {"of something else", {Candidates()}, Gather(At('d'), At('a'), kCandidateBytes), std::nullopt},
      {"of a part", {Candidates()}, Gather(At('c'), At('a'), kCandidateBytes / 2), std::nullopt},
      {"as another rank", {Candidates()}, Gather(At('c'), At('a'), kCandidateBytes, 2), std::nullopt},
      {"of other ranks", {Candidates()}, Gather(At('c'), At('a'), kCandidateBytes, 1, 2), std::nullopt},
      {"in place", {Candidates()}, Gather(At('c'), At('c'), kCandidateBytes), std::nullopt},
      {"over them", {Candidates()}, Gather(At('c'), At('c', 64), kCandidateBytes), std::nullopt},
      {"their merge", {Candidates(), gather}, Merge(At('a'), At('s')), rule},
      {"of something else", {Candidates(), gather}, Merge(At('b'), At('s')), std::nullopt},
      {"of fewer", {Candidates(), gather}, Merge(At('a'), At('s'), kTopK / 2), std::nullopt},
      {"into what was gathered", {Candidates(), gather}, Merge(At('a'), At('a', 64)), std::nullopt},
      {"into the candidates", {Candidates(), gather}, Merge(At('a'), At('c')), std::nullopt},
      {"without candidates", {gather}, Merge(At('a'), At('s')), std::nullopt},
      {"its list", merged, RowsHere(Chosen(At('s'))), rule},
      {"another list", merged, RowsHere(Chosen(At('t'))), std::nullopt},
      {"of another token", merged, RowsHere(Chosen(At('s'), 4096)), std::nullopt},
      {"before it is merged", {Candidates(), gather}, RowsHere(Chosen(At('s'))), std::nullopt},
      {"behind the gather of queries", {queries}, RowsHere(Chosen(At('s'))), rule},
      {"another list behind it", {queries}, RowsHere(Chosen(At('t'))), std::nullopt},
      {"behind any gather", {plain_queries}, RowsHere(Chosen(At('s'))), std::nullopt},
      {"the gather of eight tokens", {Candidates(8)}, gather_eight, rule},
      {"of one of them", {Candidates(8)}, gather, std::nullopt},
      {"of more", {Candidates(7)}, gather_eight, std::nullopt},
      {"the merge of eight tokens", {Candidates(8), gather_eight}, Merge(At('a'), At('s'), kTopK, 8), rule},
      {"of seven of them", {Candidates(8), gather_eight}, Merge(At('a'), At('s'), kTopK, 7), std::nullopt},
      {"the lists of eight tokens", merged_eight, RowsHere(Chosen(At('s'), 4095, 8)), rule},
      {"of one token", merged_eight, RowsHere(Chosen(At('s'))), std::nullopt},
  });

  OpGroup group;
  group.ops = merged;
  RecordedOp next = plain_queries;
  const std::optional<Fusion> fusion = FindFusion(group, next, Room());
  ASSERT_TRUE(fusion.has_value());
  ASSERT_EQ(fusion->pattern->effect, Effect::kHandOver);
  fusion->pattern->hand_over(group, next);
  EXPECT_EQ(std::get<ExchangeWork>(next.work).chosen, Chosen(At('s')));
}

struct PartShape {
  int64_t tokens = 1;
  int64_t heads = kRanks * kOwnHeads;
  int64_t dim = kDim;
  int64_t max_keys = 640;
  DType dtype = DType::kBF16;
};
RecordedOp Part(const void* q = At('Q'), void* part = At('p'), const PartShape& shape = {}) {
  AttentionPartWork work = {
      .table = {}, .params = {}, .dtype = shape.dtype, .max_keys = shape.max_keys, .list = {}};
  work.params.q = q;
  work.params.part = static_cast<float*>(part);
  work.params.num_tokens = shape.tokens;
  work.params.num_heads = static_cast<int>(shape.heads);
  work.params.head_dim = static_cast<int>(shape.dim);
  return {.kind = OpKind::kAttentionPart,
          .accesses = {.reads = {Bytes(q, shape.tokens * shape.heads * shape.dim * 2, Division::kOfAllRanks)},
                       .writes = {Bytes(part, shape.tokens * shape.heads * (shape.dim + 2) * 4,
                                        Division::kPartsOfRank)}},
          .work = work};
}
RecordedOp Parts(const void* mine = At('p'), void* all = At('P'), int64_t piece_bytes = kPartBytes,
                 int64_t tokens = 1) {
  return Exchange(OpKind::kAllToAll, mine, all, piece_bytes, 1, kRanks, tokens);
}
RecordedOp MergeAttention(const void* parts = At('P'), void* o = At('o'), int64_t heads = kOwnHeads,
                          const void* sink = At('k'), DType dtype = DType::kBF16, int64_t tokens = 1) {
  return {.kind = OpKind::kMergeAttention,
          .accesses = {.reads = {Bytes(parts, tokens * kRanks * kPartBytes, Division::kPartsOfAllRanks),
                                 Bytes(sink, heads * 4)},
                       .writes = {Bytes(o, tokens * heads * kDim * 2, Division::kHeads)}},
          .work = MergeAttentionWork{.parts = static_cast<const float*>(parts),
                                     .shape = {kRanks, tokens, heads, kDim + 2},
                                     .sink = static_cast<const float*>(sink),
                                     .o = o,
                                     .dtype = dtype}};
}
RecordedOp Rope(const void* x = At('o'), const Shape& shape = {1, kOwnHeads, kDim}, int frequencies = 32,
                const void* positions = At('t')) {
  return {.kind = OpKind::kRope,
          .accesses = {.reads = {Bytes(At('f'), 128), Bytes(positions, 4)},
                       .writes = {Bytes(x, shape.num_elements() * 2, Division::kHeads)}},
          .work = RopeWork{.x = x,
                           .dtype = DType::kBF16,
                           .shape = shape,
                           .rotation = {.frequencies = As<const float>('f'),
                                        .positions = static_cast<const int32_t*>(positions),
                                        .fault = nullptr,
                                        .num_frequencies = frequencies,
                                        .inverse = true}}};
}

TEST(FusionRules, AttentionOverRanks) {
  const auto rule = FusionRule::kAttentionOverRanks;
  const RecordedOp queries = Gather(At('q'), At('Q'), kQueryBytes);
  const std::vector<RecordedOp> part = {queries, Part()};
  const std::vector<RecordedOp> exchanged = {queries, Part(), Parts()};
  const std::vector<RecordedOp> attended = {queries, Part(), Parts(), MergeAttention()};
  const auto queries_of = [](int64_t tokens) { return GatherRows(At('q'), At('Q'), kQueryBytes, tokens); };
  const auto part_of = [](int64_t tokens) { return Part(At('Q'), At('p'), {.tokens = tokens}); };
  const auto merge_of = [](int64_t tokens) {
    return MergeAttention(At('P'), At('o'), kOwnHeads, At('k'), DType::kBF16, tokens);
  };
  const RecordedOp parts_of_eight = Parts(At('p'), At('P'), kPartBytes, 8);
  Expect({
      {"part of the queries", {queries}, Part(), rule},
      {"of others", {queries}, Part(At('r')), std::nullopt},
      {"of two tokens", {queries}, part_of(2), std::nullopt},
      {"one of two tokens", {queries_of(2)}, Part(), std::nullopt},
      {"of eight tokens", {queries_of(8)}, part_of(8), rule},
      {"of nine", {queries_of(9)}, part_of(9), std::nullopt},
      {"the parts of eight", {queries_of(8), part_of(8)}, parts_of_eight, rule},
      {"the part of one of eight", {queries_of(8), part_of(8)}, Parts(), std::nullopt},
      {"eight merged", {queries_of(8), part_of(8), parts_of_eight}, merge_of(8), rule},
      {"seven of eight merged", {queries_of(8), part_of(8), parts_of_eight}, merge_of(7), std::nullopt},
      {"eight rotated",
       {queries_of(8), part_of(8), parts_of_eight, merge_of(8)},
       Rope(At('o'), {8, kOwnHeads, kDim}),
       rule},
      {"one of eight rotated",
       {queries_of(8), part_of(8), parts_of_eight, merge_of(8)},
       Rope(),
       std::nullopt},
      {"fp32", {queries}, Part(At('Q'), At('p'), {.dtype = DType::kF32}), std::nullopt},
      {"another width", {queries}, Part(At('Q'), At('p'), {.heads = 128, .dim = 256}), std::nullopt},
      {"heads of other ranks", {queries}, Part(At('Q'), At('p'), {.heads = 128}), std::nullopt},
      {"as many keys as a cluster holds", {queries}, Part(At('Q'), At('p'), {.max_keys = 2048}), rule},
      {"one more", {queries}, Part(At('Q'), At('p'), {.max_keys = 2049}), std::nullopt},
      {"three ranks",
       {Gather(At('q'), At('Q'), kQueryBytes, 1, 3)},
       Part(At('Q'), At('p'), {.heads = 48}),
       std::nullopt},
      {"8 heads a rank",
       {Gather(At('q'), At('Q'), kQueryBytes / 2)},
       Part(At('Q'), At('p'), {.heads = 32}),
       std::nullopt},
      {"queries not by 16 bytes", {Gather(At('q', 8), At('Q'), kQueryBytes)}, Part(), std::nullopt},
      {"into the queries", {queries}, Part(At('Q'), At('Q', 1024)), std::nullopt},
      {"into this rank's", {queries}, Part(At('Q'), At('q')), std::nullopt},
      {"the parts", part, Parts(), rule},
      {"others", part, Parts(At('x')), std::nullopt},
      {"some of them", part, Parts(At('p'), At('P'), kPartBytes / 2), std::nullopt},
      {"over the queries", part, Parts(At('p'), At('Q')), std::nullopt},
      {"over this rank's queries", part, Parts(At('p'), At('q')), std::nullopt},
      {"over the parts", part, Parts(At('p'), At('p', 1024)), std::nullopt},
      {"merged", exchanged, MergeAttention(), rule},
      {"others merged", exchanged, MergeAttention(At('x')), std::nullopt},
      {"of other heads", exchanged, MergeAttention(At('P'), At('o'), 32), std::nullopt},
      {"in fp32", exchanged, MergeAttention(At('P'), At('o'), kOwnHeads, At('k'), DType::kF32), std::nullopt},
      {"into the parts", exchanged, MergeAttention(At('P'), At('P', 64)), std::nullopt},
      {"into this rank's part", exchanged, MergeAttention(At('P'), At('p', 64)), std::nullopt},
      {"into the queries", exchanged, MergeAttention(At('P'), At('q')), std::nullopt},
      {"over the sink", exchanged, MergeAttention(At('P'), At('o'), kOwnHeads, At('o', 64)), std::nullopt},
      {"rotated", attended, Rope(), rule},
      {"something else rotated", attended, Rope(At('x')), std::nullopt},
      {"other heads rotated", attended, Rope(At('o'), {1, 8, 1024}), std::nullopt},
      {"by too many frequencies", attended, Rope(At('o'), {1, kOwnHeads, kDim}, 65), std::nullopt},
      {"positions in the result", attended, Rope(At('o'), {1, kOwnHeads, kDim}, 32, At('o', 64)),
       std::nullopt},
  });
}

RecordedOp Packed(OpKind kind, char x = 'x', int64_t cols = 4096, char y = 'y') {
  return {
      .kind = kind,
      .accesses = {.reads = {Bytes(At(x), 65 * cols * 2)}, .writes = {Bytes(At(y), 65 * 1024 * int64_t{2})}},
      .work = PackedTokensWork{.x = At(x),
                               .dtype = DType::kBF16,
                               .stride = cols,
                               .num_rows = 65,
                               .cols = cols,
                               .group = 128,
                               .kind = MatmulKind::kMmaFp8,
                               .packed = As<const uint16_t>('S'),
                               .packed_rows = 72}};
}

TEST(FusionRules, TokensThatTheLinearInFrontPacked) {
  const auto rule = FusionRule::kPackedTokens;
  const RecordedOp first = Packed(OpKind::kPackedLinear);
  const RecordedOp next = Packed(OpKind::kTokensToPack);
  RecordedOp as_they_are = next;
  std::get<PackedTokensWork>(as_they_are.work).group = 0;
  RecordedOp elsewhere = next;
  std::get<PackedTokensWork>(elsewhere.work).packed = As<const uint16_t>('T');
  Expect({{"the same", {first}, next, rule, true},
          {"that have yet to be packed", {first}, next, std::nullopt, false},
          {"others", {first}, Packed(OpKind::kTokensToPack, 'z'), std::nullopt, true},
          {"other columns", {first}, Packed(OpKind::kTokensToPack, 'x', 2048), std::nullopt, true},
          {"without rounding", {first}, as_they_are, std::nullopt, true},
          {"elsewhere in scratch", {first}, elsewhere, std::nullopt, true},
          {"it wrote over them", {Packed(OpKind::kPackedLinear, 'x', 4096, 'x')}, next, std::nullopt, true}});
}

// Each rule has a test above or in the files beside this one: what they name is what there is.
TEST(FusionRules, EveryRuleHasAPattern) {
  for (const FusionRow& row : FusionRows()) EXPECT_NE(row.patterns[0].fits, nullptr) << row.name;
}

}  // namespace
}  // namespace dsv4::backend::cuda
