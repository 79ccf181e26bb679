// The goldens can fail. Each classic mistake of mistakes.json is seeded into the reference backend, a weight
// or the configuration. The comparison that passes without it must not pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "backend/reference/reference_backend.h"
#include "tests/golden/faults/fault.h"
#include "tests/golden/op_checks.h"

namespace dsv4::testing {
namespace {

struct Entry {
  std::string id;
  std::string golden;  // "<model>", "<model>:release", "<model>:mtp" or "ops/<file>"
  std::string file;    // The golden file that shows it, below tests/golden.
};

std::vector<Entry> Entries() {
  std::vector<Entry> entries;
  for (const Json& entry : ReadJson(GoldenDirectory() / "mistakes.json")) {
    entries.push_back({entry.at("id").get<std::string>(), entry.at("golden").get<std::string>(),
                       entry.at("file").get<std::string>()});
  }
  return entries;
}

std::vector<Entry> Seedable() {
  std::vector<Entry> entries = Entries();
  std::erase_if(entries, [](const Entry& entry) { return UnseedableMistakes().contains(entry.id); });
  return entries;
}

// Result of the golden for the engine with this mutation.
Comparison CompareOp(const std::string& file, const Mutation& mutation) {
  ops::Backend backend = backend::MakeReferenceBackend(2);
  if (mutation.ops) mutation.ops(backend.table);
  for (const OpResult& result : RunOpGolden(file, backend)) {
    if (!result.comparison.passed) return result.comparison;
  }
  Comparison passed;
  passed.passed = true;
  return passed;
}

Comparison CompareModel(const Entry& entry, const SeededMistake& mistake) {
  const std::string golden = entry.golden.substr(0, entry.golden.find(':'));
  const bool release = entry.golden.ends_with(":release");
  const std::vector<int32_t> tokens = GoldenTokens(golden);
  Mutation mutation = mistake.mutation;
  mutation.parts = [&](ModelParts& parts) {
    SetScene(parts, static_cast<int64_t>(tokens.size()));
    if (mistake.mutation.parts) mistake.mutation.parts(parts);
  };
  const bool drafts = entry.golden.ends_with(":mtp");
  const std::unique_ptr<model::Model> model = LoadGolden(
      golden, release ? model::Numerics::kRelease : model::Numerics::kPlain, mutation, "reference", drafts);
  const std::vector<float> want = ReadNpy(GoldenDirectory() / entry.file).values;
  const std::vector<float> got =
      drafts ? RunDrafts(*model, tokens, 1) : RunPieces(*model, tokens, mistake.pieces);
  if (got.size() != want.size()) throw std::runtime_error("the golden has another size");
  return CheckCosines(RowCosines(got, want, model->config().vocab_size),
                      release ? ReleaseBound() : PlainBound());
}

class Mutations : public ::testing::TestWithParam<Entry> {};

TEST_P(Mutations, FailTheirGolden) {
  const Entry& entry = GetParam();
  const SeededMistakes mistakes = AllSeededMistakes();
  ASSERT_TRUE(mistakes.contains(entry.id)) << "no one seeds " << entry.id;
  const SeededMistake& mistake = mistakes.at(entry.id);
  const bool op = entry.golden.starts_with("ops/");
  const Comparison comparison =
      op ? CompareOp(entry.golden.substr(4), mistake.mutation) : CompareModel(entry, mistake);
  EXPECT_FALSE(comparison.passed) << entry.id << " went unnoticed by " << entry.golden << ": "
                                  << comparison.message;
  std::cout << "  " << entry.id << ": " << comparison.message << "\n";
}

INSTANTIATE_TEST_SUITE_P(Mistakes, Mutations, ::testing::ValuesIn(Seedable()), [](const auto& entry) {
  std::string name = entry.param.id;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// The same paths without a mistake pass, so that a failure above is the mistake's.
TEST(NoMistake, PassesEveryGolden) {
  for (const Entry& entry : Seedable()) {
    static std::map<std::string, bool> done;
    if (std::exchange(done[entry.golden], true)) continue;
    const bool op = entry.golden.starts_with("ops/");
    const Comparison comparison = op ? CompareOp(entry.golden.substr(4), {}) : CompareModel(entry, {});
    EXPECT_TRUE(comparison.passed) << entry.golden << ": " << comparison.message;
  }
}

TEST(Mistakes, AreSeededOrSaidToBeUnseedable) {
  const SeededMistakes seeded = AllSeededMistakes();
  size_t known = 0;
  for (const Entry& entry : Entries()) {
    const bool unseedable = UnseedableMistakes().contains(entry.id);
    EXPECT_NE(seeded.contains(entry.id), unseedable) << entry.id;
    ++known;
  }
  EXPECT_EQ(known, seeded.size() + UnseedableMistakes().size()) << "an id that mistakes.json does not have";
}

}  // namespace
}  // namespace dsv4::testing
