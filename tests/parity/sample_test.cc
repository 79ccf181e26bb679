// The op sample: the judge's tokens against cases done by hand, and every backend's against the judge's, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/parity/backends.h"

namespace dsv4::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kLastBelowOne = std::nextafter(1.0, 0.0);

struct Sampled {
  std::vector<double> tokens;
  std::vector<double> faults;
};

// `logits`: [choices.size(), vocab_size]. `allowed` may be empty.
Sampled Sample(int64_t vocab_size, const std::vector<double>& logits, const std::vector<double>& allowed,
               const std::vector<sampling::ChoiceParams>& choices) {
  const auto num_rows = static_cast<int64_t>(choices.size());
  const TestTensor logits_tensor(DType::kF32, {num_rows, vocab_size}, logits);
  const TestTensor allowed_tensor(DType::kU8, {static_cast<int64_t>(allowed.size())}, allowed);
  const auto outputs = RunOnAll([&](const ops::Backend& backend) {
    TestTensor tokens(DType::kI32, {num_rows});
    TestTensor faults(DType::kI32, {num_rows});
    ops::SampleArgs args{
        .logits = logits_tensor, .allowed = {}, .choices = choices, .tokens = tokens, .faults = faults};
    if (!allowed.empty()) args.allowed = allowed_tensor;
    const Status status = backend.table.sample(*backend.context, args);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return Outputs(std::move(tokens), std::move(faults));
  });
  return {outputs[0].Values(), outputs[1].Values()};
}

// Sizes around a block of the CPU's loops, and around the pieces and threads of the GPU's; the release's vocabulary.
constexpr int64_t kVocabularies[] = {1, 2, 63, 64, 65, 1023, 1025, 8191, 8193, 33000, 129280};

TEST(SampleParity, GreedyTakesTheHighestAndTheLowestIdOnTies) {
  for (const int64_t vocab_size : kVocabularies) {
    Random random(1);
    std::vector<double> logits;
    std::vector<double> want;
    for (const int64_t first : {int64_t{0}, vocab_size / 2, vocab_size - 1}) {
      std::vector<double> row = Rounded(DType::kF32, random.Normals(vocab_size));
      row[static_cast<size_t>(first)] = row[static_cast<size_t>(vocab_size - 1)] = 100;
      logits.insert(logits.end(), row.begin(), row.end());
      want.push_back(static_cast<double>(first));
    }
    const Sampled got =
        Sample(vocab_size, logits, {}, {{.temperature = 0}, {.temperature = 0}, {.temperature = 0}});
    EXPECT_EQ(got.tokens, want) << vocab_size;
    EXPECT_EQ(got.faults, std::vector<double>(3, ops::kNoFault));
  }
}

TEST(SampleParity, ZerosOfBothSignsAndLowLogitsAreRankedAlike) {
  EXPECT_EQ(Sample(4, {-1, -0.0, 0.0, -2}, {}, {{.temperature = 0}}).tokens[0], 1);
  EXPECT_EQ(Sample(4, {-1, 0.0, -0.0, -2}, {}, {{.top_k = 1, .uniform = 0.9}}).tokens[0], 1);
  EXPECT_EQ(Sample(3, {-3e38, -3.4e38, -3.3e38}, {}, {{.temperature = 0}}).tokens[0], 0);
}

TEST(SampleParity, ADrawGoesThroughTheIdsInOrder) {
  // Weights 1, 1/2, 1/4 of 7/4 in all, with one token between them that has none.
  const std::vector<double> logits = {std::log(0.5), 0, -kInfinity, std::log(0.25)};
  const auto draw = [&](double uniform) { return Sample(4, logits, {}, {{.uniform = uniform}}).tokens[0]; };
  EXPECT_EQ(draw(0), 0);
  EXPECT_EQ(draw(0.285), 0);
  EXPECT_EQ(draw(0.287), 1);
  EXPECT_EQ(draw(0.857), 1);
  EXPECT_EQ(draw(0.858), 3);
  EXPECT_EQ(draw(kLastBelowOne), 3);
}

TEST(SampleParity, EachFilterKeepsWhatItSays) {
  const std::vector<double> logits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};
  const auto last = [&](sampling::ChoiceParams choice) {
    choice.uniform = kLastBelowOne;
    return Sample(4, logits, {}, {choice}).tokens[0];
  };
  EXPECT_EQ(last({}), 3);
  EXPECT_EQ(last({.top_k = 1}), 1);
  EXPECT_EQ(last({.top_p = 0.39F}), 1);
  EXPECT_EQ(last({.top_p = 0.65F}), 3);
  EXPECT_EQ(last({.min_p = 0.8F}), 1);
  EXPECT_EQ(last({.min_p = 0.7F}), 3);
  EXPECT_EQ(last({.top_k = 2, .top_p = 0.5F}), 1) << "of the two, 4/7 are enough";
}

TEST(SampleParity, EqualLogitsAtTheEdgeOfAFilterAreKeptByLowestId) {
  for (const int64_t vocab_size : {40, 5000, 129280}) {
    const std::vector<double> logits(static_cast<size_t>(vocab_size), -7.25);
    const auto last = [&](const sampling::ChoiceParams& choice) {
      return Sample(vocab_size, logits, {}, {choice}).tokens[0];
    };
    EXPECT_EQ(last({.top_k = 17, .uniform = kLastBelowOne}), 16);
    EXPECT_EQ(last({.top_p = 0.5F, .uniform = kLastBelowOne}), static_cast<double>(vocab_size) / 2 - 1);
    EXPECT_EQ(last({.top_k = 20, .top_p = 0.25F, .min_p = 0.99F, .uniform = kLastBelowOne}), 4);
  }
}

TEST(SampleParity, WhatIsNotAllowedIsNotChosen) {
  for (const int64_t vocab_size : {65, 9000}) {
    std::vector<double> logits(static_cast<size_t>(vocab_size), 1.0);
    std::vector<double> allowed(logits.size(), 0.0);
    logits[3] = 50;
    allowed[62] = allowed[64] = 1;
    const Sampled got = Sample(vocab_size, logits, allowed, {{.temperature = 0}});
    EXPECT_EQ(got.tokens[0], 62);
    EXPECT_EQ(Sample(vocab_size, logits, allowed, {{.uniform = 0.75}}).tokens[0], 64);
    EXPECT_EQ(Sample(vocab_size, logits, allowed, {{.top_k = 3, .uniform = 0.25}}).tokens[0], 62);
  }
}

// All that a row may ask for, on every backend: tokens and faults, then the scores of the rows that ask for any.
std::vector<TestTensor> SampleAll(int64_t vocab_size, const std::vector<double>& logits,
                                  const std::vector<double>& allowed,
                                  const std::vector<sampling::ChoiceParams>& choices,
                                  const std::vector<ops::RowChange>& changes,
                                  const std::vector<ops::RowRule>& rules,
                                  const std::vector<uint64_t>& masks) {
  const auto num_rows = static_cast<int64_t>(choices.size());
  const TestTensor logits_tensor(DType::kF32, {num_rows, vocab_size}, logits);
  const TestTensor allowed_tensor(DType::kU8, {static_cast<int64_t>(allowed.size())}, allowed);
  int32_t most_top = -1;
  for (const ops::RowRule& rule : rules) most_top = std::max(most_top, rule.num_top);
  return RunOnAll([&](const ops::Backend& backend) {
    TestTensor tokens(DType::kI32, {num_rows});
    TestTensor faults(DType::kI32, {num_rows});
    // Scores; zeros of rows that ask for none.
    const Shape shape = {num_rows, ops::ScoresWidth(std::max(most_top, 0))};
    TestTensor scores(DType::kI32, shape, std::vector<double>(static_cast<size_t>(shape.num_elements())));
    ops::SampleArgs args{.logits = logits_tensor,
                         .allowed = {},
                         .choices = choices,
                         .changes = changes,
                         .rules = rules,
                         .masks = masks,
                         .tokens = tokens,
                         .faults = faults};
    if (!allowed.empty()) args.allowed = allowed_tensor;
    if (most_top >= 0) args.scores = scores;
    const Status status = backend.table.sample(*backend.context, args);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return Outputs(std::move(tokens), std::move(faults), std::move(scores));
  });
}

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

TEST(SampleParity, ChangesAreOfTheirRowsAlone) {
  for (const int64_t vocab_size : {65, 9000, 129280}) {
    const int64_t last = vocab_size - 1;
    std::vector<double> logits(static_cast<size_t>(4 * vocab_size), 1.0);
    for (int64_t row = 0; row < 4; ++row) logits[static_cast<size_t>(row * vocab_size + 3)] = 2;
    std::vector<ops::RowChange> changes = {
        {0, 3, kMinusInfinity}, {0, 7, 0.5F}, {2, 3, -2.5F}, {2, static_cast<int32_t>(last), 1.25F}};
    for (int32_t token = 0; token < 60; ++token) changes.push_back({3, token, kMinusInfinity});
    const std::vector<sampling::ChoiceParams> greedy(4, {.temperature = 0});
    const auto outputs = SampleAll(vocab_size, logits, {}, greedy, changes, {}, {});
    EXPECT_EQ(outputs[0].Values(), (std::vector<double>{7, 3, static_cast<double>(last), 60}));
  }
}

TEST(SampleParity, PenaltiesTakeWhatWasSeenAndNothingElse) {
  // The first logit above zero, the second below.
  const std::vector<double> logits = {3, -1, 2.5, 0};
  const auto greedy = [&](const sampling::Penalties& penalties, const std::vector<ops::RowChange>& changes) {
    return SampleAll(4, logits, {}, {{.temperature = 0}}, changes, {{.penalties = penalties}}, {})[0]
        .Values()[0];
  };
  EXPECT_EQ(greedy({.repetition = 2.0F}, {}), 0);
  EXPECT_EQ(greedy({.repetition = 2.0F}, {{0, 0, 0.0F, 1}}), 2);
  EXPECT_EQ(greedy({.repetition = 0.1F}, {{0, 2, 0.0F, 1}}), 2);
  EXPECT_EQ(greedy({.presence = 0.5F}, {{0, 0, 0.0F, 9}}), 0) << "as high, and a lower id";
  EXPECT_EQ(greedy({.frequency = 0.2F}, {{0, 0, 0.0F, 2}}), 0);
  EXPECT_EQ(greedy({.frequency = 0.2F}, {{0, 0, 0.0F, 3}}), 2);
  EXPECT_EQ(greedy({.presence = 0.5F}, {{0, 0, 1.0F, 1}}), 0) << "a bias comes first";
  EXPECT_EQ(greedy({}, {{0, 1, std::numeric_limits<float>::infinity()}}), 1);
}

TEST(SampleParity, MasksAndScoresAreOfTheRowsThatNameThem) {
  for (const int64_t vocab_size : {70, 129280}) {
    std::vector<double> logits;
    for (int row = 0; row < 4; ++row) {
      for (int64_t id = 0; id < vocab_size; ++id) logits.push_back(static_cast<double>(id % 64) - 100);
    }
    const auto words = static_cast<size_t>((vocab_size + 63) / 64);
    std::vector<uint64_t> masks(3 * words);  // None; two tokens; all.
    masks[words] = 1 << 5;
    masks[words + 1] = 2;
    for (size_t i = 0; i < words; ++i) masks[2 * words + i] = ~uint64_t{0};
    const std::vector<ops::RowRule> rules = {
        {.mask = 1, .num_top = 3}, {.mask = 0, .num_top = 1}, {.mask = -1}, {.mask = 2, .num_top = 0}};
    const auto outputs = SampleAll(
        vocab_size, logits, {}, std::vector<sampling::ChoiceParams>(4, {.temperature = 0}), {}, rules, masks);
    EXPECT_EQ(outputs[0].Values(), (std::vector<double>{5, 0, 63, 63}));
    EXPECT_EQ(outputs[1].Values(), (std::vector<double>{-1, static_cast<double>(vocab_size), -1, -1}));
    const std::vector<double> scores = outputs[2].Values();
    EXPECT_EQ(scores[6], 63);
    EXPECT_EQ(scores[8], vocab_size > 127 ? 127 : 62);
    EXPECT_EQ(scores[10], vocab_size > 127 ? 191 : 61);
  }
}

TEST(SampleParity, AWrongRowIsNamedAndItsNeighboursAreChosen) {
  constexpr int64_t kVocab = 3000;
  for (const float temperature : {0.0F, 1.0F}) {
    std::vector<double> logits(5 * kVocab, 0.5);
    logits[1 * kVocab + 2900] = NAN;
    logits[1 * kVocab + 1400] = kInfinity;
    for (size_t i = 0; i < kVocab; ++i) logits[2 * kVocab + i] = -kInfinity;
    logits[3 * kVocab + 7] = NAN;  // Not allowed, and wrong all the same.
    std::vector<double> allowed(kVocab, 1.0);
    allowed[7] = 0;
    const Sampled got =
        Sample(kVocab, logits, allowed, std::vector<sampling::ChoiceParams>(5, {.temperature = temperature}));
    EXPECT_EQ(got.tokens, std::vector<double>(5, 0.0));
    EXPECT_EQ(got.faults, (std::vector<double>{-1, 1400, kVocab, 7, -1}));
  }
}

// Every backend takes the judge's token, whatever is asked for: RunOnAll compares.
TEST(SampleParity, AnyChoiceIsTheSameEverywhere) {
  for (const int64_t vocab_size : kVocabularies) {
    Random random(static_cast<uint32_t>(vocab_size));
    std::vector<double> logits;
    std::vector<sampling::ChoiceParams> choices;
    std::vector<double> allowed;
    for (int64_t i = 0; i < vocab_size; ++i) allowed.push_back(random.Below(10) == 0 && i > 0 ? 0 : 1);
    const int64_t num_rows = vocab_size > 10000 ? 12 : 40;
    for (int64_t row = 0; row < num_rows; ++row) {
      // A few tokens far above many, as a language model's, or all alike; some rounded, so that many are equal.
      const double sigma = row % 3 == 0 ? 0.3 : 3.0;
      std::vector<double> values = Rounded(DType::kF32, random.Normals(vocab_size, sigma));
      if (row % 2 == 0) values = Rounded(DType::kBF16, values);
      if (row % 3 == 1) values[static_cast<size_t>(random.Below(vocab_size))] += 12;
      if (row % 5 == 2) values[static_cast<size_t>(random.Below(vocab_size))] = -kInfinity;
      logits.insert(logits.end(), values.begin(), values.end());
      sampling::ChoiceParams choice{.temperature = static_cast<float>(0.2 + 1.6 * random.Uniform()),
                                    .uniform = random.Uniform()};
      if (row % 4 == 1) choice.top_k = static_cast<int32_t>(1 + random.Below(2 * vocab_size));
      if (row % 4 == 3) choice.top_k = static_cast<int32_t>(1 + random.Below(60));
      if (row % 8 >= 4) choice.top_p = static_cast<float>(0.01 + 0.98 * random.Uniform());
      if (row % 8 == 6 || row % 8 == 0) choice.min_p = static_cast<float>(0.2 * random.Uniform());
      if (row % 11 == 10) choice.temperature = 0;
      choices.push_back(choice);
    }
    Sample(vocab_size, logits, {}, choices);
    Sample(vocab_size, logits, allowed, choices);
  }
}

// With rules of every kind, and their mixes.
TEST(SampleParity, AnyRuleIsTheSameEverywhere) {
  for (const int64_t vocab_size : kVocabularies) {
    Random random(static_cast<uint32_t>(vocab_size) + 7);
    const int64_t num_rows = vocab_size > 10000 ? 10 : 40;
    const auto words = static_cast<size_t>((vocab_size + 63) / 64);
    std::vector<double> logits;
    std::vector<double> allowed;
    std::vector<sampling::ChoiceParams> choices;
    std::vector<ops::RowChange> changes;
    std::vector<ops::RowRule> rules;
    std::vector<uint64_t> masks;
    for (int64_t i = 0; i < vocab_size; ++i) allowed.push_back(random.Below(10) == 0 && i > 0 ? 0 : 1);
    for (int64_t row = 0; row < num_rows; ++row) {
      std::vector<double> values = Rounded(row % 2 == 0 ? DType::kBF16 : DType::kF32,
                                           random.Normals(vocab_size, row % 3 == 0 ? 0.3 : 4.0));
      if (row % 5 == 2) values[static_cast<size_t>(random.Below(vocab_size))] = -kInfinity;
      if (row % 9 == 8) values[static_cast<size_t>(random.Below(vocab_size))] = NAN;
      logits.insert(logits.end(), values.begin(), values.end());
      choices.push_back({.temperature = row % 4 == 0 ? 0.0F : static_cast<float>(0.3 + random.Uniform()),
                         .top_k = row % 3 == 1 ? static_cast<int32_t>(1 + random.Below(50)) : 0,
                         .top_p = row % 3 == 2 ? 0.8F : 1.0F,
                         .uniform = random.Uniform()});
      ops::RowRule rule;
      if (row % 2 == 1) rule.num_top = static_cast<int32_t>(random.Below(row % 7 == 1 ? 129 : 21));
      if (row % 3 != 0) {
        rule.mask = static_cast<int32_t>(masks.size() / words);
        for (size_t i = 0; i < words; ++i)
          masks.push_back(static_cast<uint64_t>(random.Below(int64_t{1} << 60)) * 17);
      }
      if (row % 4 < 2) {
        rule.penalties = {static_cast<float>(0.5 + random.Uniform()), static_cast<float>(random.Uniform()),
                          static_cast<float>(random.Uniform() - 0.5)};
      }
      rules.push_back(rule);
      for (int64_t token = random.Below(7); token < vocab_size;
           token += 1 + random.Below(1 + vocab_size / 50)) {
        changes.push_back({static_cast<int32_t>(row), static_cast<int32_t>(token),
                           random.Below(3) == 0 ? static_cast<float>(random.Uniform() * 8 - 4) : 0.0F,
                           static_cast<int32_t>(random.Below(4))});
      }
    }
    SampleAll(vocab_size, logits, {}, choices, changes, rules, masks);
    SampleAll(vocab_size, logits, allowed, choices, changes, rules, masks);
  }
}

TEST(SampleParity, NoRowsAreNothing) { EXPECT_TRUE(Sample(10, {}, {}, {}).tokens.empty()); }

}  // namespace
}  // namespace dsv4::test
