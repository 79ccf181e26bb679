// Which steps on rows are one launch, and by which kernel.
#include "backend/cuda/lowering/launch/row_group.h"

#include <gtest/gtest.h>

#include "backend/cuda/lowering/launch/fusion_rules_testing.h"

namespace dsv4::backend::cuda {
namespace {

RowsOperand Rows(char name, int64_t num_rows = 1, int64_t width = 512) {
  return {.in = At(name),
          .in_stride = width,
          .out = At(name),
          .out_stride = width,
          .num_rows = num_rows,
          .width = width,
          .in_is_bf16 = true,
          .out_is_bf16 = true};
}
RowStep Norm() { return {.kind = RowStepKind::kRmsNorm, .factor = 1e-6F, .weight = As<const float>('W')}; }
RowStep HeadNorm() { return {.kind = RowStepKind::kHeadRmsNorm, .factor = 1e-6F}; }
RowStep Rope(int frequencies = 32, int group = 1) {
  return {.kind = RowStepKind::kRope,
          .num_columns = frequencies,
          .group = group,
          .weight = As<const float>('F'),
          .positions = As<const int32_t>('P')};
}
RowStep Fp8(int columns = 448, int group = 64) {
  return {.kind = RowStepKind::kSimulateFp8, .num_columns = columns, .group = group};
}
RowStep Scale() { return {.kind = RowStepKind::kScale, .factor = 0.5F}; }
RowStep Hadamard() { return {.kind = RowStepKind::kHadamardFp4}; }
RowStep Store() { return {.kind = RowStepKind::kStore, .runs = {As<const StoredRun>('T'), 1}}; }
RowStep Packed(CacheCode code, int columns, int group) {
  RowStep step = Store();
  step.code = code;
  step.num_columns = columns;
  step.group = group;
  return step;
}
RowStep StoreFp8(int columns = 448, int group = 64) { return Packed(CacheCode::kE4m3, columns, group); }
RowStep StoreFp4(int columns = 128, int group = 32) { return Packed(CacheCode::kE2m1, columns, group); }
RowStep Pool() { return {.kind = RowStepKind::kPool, .num_columns = 4, .group = 1}; }
RowStep History() { return {.kind = RowStepKind::kHistory, .num_columns = 4}; }

RowGroup GroupOf(const std::vector<RowsWork>& works) {
  RowGroup group;
  for (const RowsWork& work : works) group.Add(work);
  return group;
}

TEST(RowGroup, StepsThatShareALaunch) {
  struct Case {
    const char* what;
    std::vector<RowsWork> before;
    RowsWork next;
    bool wanted;
  };
  const std::vector<RowsWork> nothing;
  std::vector<RowsWork> eight;
  for (char name = 'a'; name < 'i'; ++name) eight.push_back({Rows(name), Norm(), {}});
  RowsOperand fp32 = Rows('a');
  fp32.in_is_bf16 = fp32.out_is_bf16 = false;
  RowsOperand strided = Rows('a', 2);
  strided.in_stride = strided.out_stride = 1024;
  RowsOperand none = Rows('v');
  none.out = nullptr;
  const MemoryRange ring = {At('r'), 4096};
  const std::vector<Case> cases = {
      {"the first", nothing, {Rows('a'), Norm(), {}}, true},
      {"the same rows", {{Rows('a'), Norm(), {}}}, {Rows('a'), Rope(), {}}, true},
      {"other rows", {{Rows('a'), Norm(), {}}}, {Rows('b'), Norm(), {}}, true},
      {"rows that overlap others", {{Rows('a', 2), Norm(), {}}}, {Rows('a', 1), Norm(), {}}, false},
      {"the same rows in another dtype", {{Rows('a'), Norm(), {}}}, {fp32, Scale(), {}}, false},
      {"the same rows with another stride", {{Rows('a', 2), Norm(), {}}}, {strided, Scale(), {}}, false},
      {"wide rows beside narrow ones",
       {{Rows('a', 1, 1024), Norm(), {}}},
       {Rows('b', 1, 1025), Norm(), {}},
       false},
      {"wide rows beside wide ones",
       {{Rows('a', 1, 4096), Norm(), {}}},
       {Rows('b', 1, 1536), Norm(), {}},
       true},
      {"a second rope of a row", {{Rows('a'), Rope(), {}}}, {Rows('a'), Rope(), {}}, false},
      {"the fifth step", {4, {Rows('a'), Scale(), {}}}, {Rows('a'), Scale(), {}}, true},
      {"the sixth", {5, {Rows('a'), Scale(), {}}}, {Rows('a'), Scale(), {}}, false},
      {"the ninth track", eight, {Rows('i'), Norm(), {}}, false},
      {"more for the eighth", eight, {Rows('h'), Rope(), {}}, true},
      {"a store where another track's rows are",
       {{Rows('a'), Norm(), {}}, {Rows('b'), Norm(), {}}},
       {Rows('b'), Store(), {{At('a', 100), 4}}},
       false},
      {"a store where its own rows are",
       {{Rows('a'), Norm(), {}}},
       {Rows('a'), Store(), {{At('a', 100), 4}}},
       true},
      {"rows where another track stores", {{Rows('a'), Store(), {ring}}}, {Rows('r'), Norm(), {}}, false},
      {"two that touch the same ring", {{Rows('a'), Pool(), {ring}}}, {none, History(), {ring}}, false},
      {"beside each other", {{Rows('a'), Pool(), {ring}}}, {none, History(), {ring}, At('a')}, true},
      {"beside another", {{Rows('a'), Pool(), {ring}}}, {none, History(), {ring}, At('b')}, false},
      {"what is left nowhere goes on with nothing", {{none, History(), {}}}, {Rows('v'), Norm(), {}}, false},
      {"1023 rows of heads beside others",
       {{Rows('a'), Norm(), {}}},
       {Rows('b', 1023), HeadNorm(), {}},
       true},
      {"1024 rows of heads stay alone", {{Rows('a'), Norm(), {}}}, {Rows('b', 1024), HeadNorm(), {}}, false},
      {"nothing comes beside them", {{Rows('a', 1024), HeadNorm(), {}}}, {Rows('b'), Norm(), {}}, false},
      {"256 rows beside others", {{Rows('a'), Norm(), {}}}, {Rows('b', 256), Norm(), {}}, true},
      {"257 rows stay alone", {{Rows('a'), Norm(), {}}}, {Rows('b', 257), Norm(), {}}, false},
      {"nothing comes beside those", {{Rows('a', 257), Norm(), {}}}, {Rows('b'), Scale(), {}}, false},
  };
  for (const Case& c : cases) EXPECT_EQ(GroupOf(c.before).Fits(c.next), c.wanted) << c.what;
}

TEST(RowGroup, TheKernelOfALaunch) {
  enum class Path : uint8_t { kTracks, kHeads, kMany };
  struct Case {
    const char* what;
    std::vector<RowsWork> works;
    Path wanted;
  };
  RowsOperand crooked = Rows('a', 1024);
  crooked.in = crooked.out = At('a', 2);
  RowsOperand crooked_rows = Rows('a', 257);
  crooked_rows.in = crooked_rows.out = At('a', 4);
  const std::vector<Case> cases = {
      {"one row", {{Rows('a'), Norm(), {}}}, Path::kTracks},
      {"1023 rows of heads", {{Rows('a', 1023), HeadNorm(), {}}}, Path::kTracks},
      {"1024 rows of heads", {{Rows('a', 1024), HeadNorm(), {}}}, Path::kHeads},
      {"normed and rotated",
       {{Rows('a', 1024), HeadNorm(), {}}, {Rows('a', 1024), Rope(32, 64), {}}},
       Path::kHeads},
      {"rotated, then normed",
       {{Rows('a', 1024), Rope(32, 64), {}}, {Rows('a', 1024), HeadNorm(), {}}},
       Path::kTracks},
      {"other frequencies", {{Rows('a', 1024), Rope(16, 64), {}}}, Path::kTracks},
      {"rows of a position that no warp has together", {{Rows('a', 1024), Rope(32, 6), {}}}, Path::kTracks},
      {"Hadamard", {{Rows('a', 1024, 128), Hadamard(), {}}}, Path::kHeads},
      {"a width without kernel", {{Rows('a', 1024, 256), HeadNorm(), {}}}, Path::kTracks},
      {"not by 4 bytes", {{crooked, HeadNorm(), {}}}, Path::kTracks},
      {"256 rows", {{Rows('a', 256, 4096), Norm(), {}}}, Path::kTracks},
      {"257 rows", {{Rows('a', 257, 4096), Norm(), {}}}, Path::kMany},
      {"257 rows of another width", {{Rows('a', 257, 2048), Norm(), {}}}, Path::kTracks},
      {"not by 8 bytes", {{crooked_rows, Norm(), {}}}, Path::kTracks},
      {"rotated, rounded and stored",
       {{Rows('a', 257), Norm(), {}},
        {Rows('a', 257), Rope(), {}},
        {Rows('a', 257), Fp8(), {}},
        {Rows('a', 257), Store(), {}}},
       Path::kMany},
      {"stored packed",
       {{Rows('a', 257), Norm(), {}},
        {Rows('a', 257), Rope(), {}},
        {Rows('a', 257), Fp8(), {}},
        {Rows('a', 257), StoreFp8(), {}}},
       Path::kMany},
      {"packed without having been rounded",
       {{Rows('a', 257), Norm(), {}}, {Rows('a', 257), StoreFp8(), {}}},
       Path::kTracks},
      {"packed further than rounded",
       {{Rows('a', 257), Norm(), {}}, {Rows('a', 257), Fp8(384), {}}, {Rows('a', 257), StoreFp8(448), {}}},
       Path::kTracks},
      {"packed in other groups",
       {{Rows('a', 257), Norm(), {}}, {Rows('a', 257), StoreFp8(512, 32), {}}},
       Path::kTracks},
      {"packed as FP4", {{Rows('a', 257), Norm(), {}}, {Rows('a', 257), StoreFp4(512), {}}}, Path::kTracks},
      {"stored, then rounded",
       {{Rows('a', 257), Norm(), {}}, {Rows('a', 257), Store(), {}}, {Rows('a', 257), Fp8(), {}}},
       Path::kTracks},
      {"rotated, of another width",
       {{Rows('a', 257, 1024), Norm(), {}}, {Rows('a', 257, 1024), Rope(), {}}},
       Path::kTracks},
  };
  for (const Case& c : cases) {
    const RowGroup group = GroupOf(c.works);
    EXPECT_EQ(group.AsHeadRows().has_value(), c.wanted == Path::kHeads) << c.what;
    EXPECT_EQ(group.AsManyRows().has_value(), c.wanted == Path::kMany) << c.what;
  }
}

TEST(RowGroup, WhereABlockHasItsRow) {
  const auto place_of = [](const std::vector<RowsWork>& works) {
    return GroupOf(works).tracks().tracks[0].place;
  };
  EXPECT_EQ(place_of({{Rows('a'), Norm(), {}}, {Rows('a'), Rope(), {}}, {Rows('a'), Fp8(), {}}}),
            RowPlace::kRegisters);
  EXPECT_EQ(place_of({{Rows('a', 1, 513), Norm(), {}}}), RowPlace::kShared)
      << "more than a thread's registers hold";
  EXPECT_EQ(place_of({{Rows('a'), Rope(), {}}, {Rows('a'), Norm(), {}}}), RowPlace::kShared)
      << "out of order";
  EXPECT_EQ(place_of({{Rows('a'), Norm(), {}}, {Rows('a'), HeadNorm(), {}}}), RowPlace::kShared)
      << "two sums";
  EXPECT_EQ(place_of({{Rows('a'), Fp8(448, 128), {}}}), RowPlace::kShared) << "another group";
  EXPECT_EQ(place_of({{Rows('a'), Rope(65), {}}}), RowPlace::kShared) << "columns of two registers";
  EXPECT_EQ(place_of({{Rows('a', 1, 256), Hadamard(), {}}}), RowPlace::kShared);
  EXPECT_EQ(place_of({{Rows('a'), Pool(), {}}}), RowPlace::kPooledInRegisters);
  EXPECT_EQ(place_of({{Rows('a'), Pool(), {}}, {Rows('a'), StoreFp8(), {}}}), RowPlace::kPooledInRegisters);
  EXPECT_EQ(place_of({{Rows('a', 1, 128), Hadamard(), {}}, {Rows('a', 1, 128), StoreFp4(), {}}}),
            RowPlace::kRegisters);
  EXPECT_EQ(place_of({{Rows('a'), Fp8(512, 32), {}}, {Rows('a'), StoreFp8(512, 32), {}}}),
            RowPlace::kRegisters);
  EXPECT_EQ(place_of({{Rows('a'), StoreFp8(512, 16), {}}}), RowPlace::kShared) << "another group of codes";
  const auto round = [](int group) {
    return RowsWork{Rows('a'), {.kind = RowStepKind::kRoundFp4, .group = group}, {}};
  };
  EXPECT_EQ(place_of({{Rows('a'), Rope(), {}}, round(16)}), RowPlace::kRegisters);
  EXPECT_EQ(place_of({{Rows('a'), Rope(), {}}, round(32)}), RowPlace::kRegisters);
  EXPECT_EQ(place_of({round(64)}), RowPlace::kShared);
  EXPECT_EQ(place_of({round(32), {Rows('a'), Rope(), {}}}), RowPlace::kShared) << "out of order";
  EXPECT_EQ(place_of({{Rows('a'), StoreFp4(448), {}}}), RowPlace::kShared) << "columns without codes";
  RowsOperand none = Rows('v');
  none.out = nullptr;
  EXPECT_EQ(place_of({{none, History(), {}}}), RowPlace::kNowhere);
}

TEST(FusionRules, RowSteps) {
  const auto record = [](const RowsOperand& rows) {
    return RecordedOp{.kind = OpKind::kRowStep, .accesses = {}, .work = RowsWork{rows, Norm(), {}}};
  };
  OpGroup group;
  group.Add(record(Rows('a')));
  const std::optional<Fusion> fusion = FindFusion(group, record(Rows('b')), Room());
  ASSERT_TRUE(fusion.has_value());
  EXPECT_EQ(fusion->rule, FusionRule::kRowSteps);
  EXPECT_FALSE(FindFusion(group, record(Rows('b', 257)), Room()).has_value());
}

}  // namespace
}  // namespace dsv4::backend::cuda
