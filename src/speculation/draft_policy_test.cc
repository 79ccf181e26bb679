#include "speculation/draft_policy.h"

#include <gtest/gtest.h>

namespace dsv4::speculation {
namespace {

constexpr int64_t kMost = 8;

std::vector<int64_t> LengthsOf(const DraftPolicy& policy, const AcceptanceRecord& record, int64_t count,
                               int evidence) {
  Draft draft = {.tokens = std::vector<int32_t>(kMost, 1), .evidence = evidence};
  const std::vector<Candidate> candidates(static_cast<size_t>(count), {&draft, &record});
  std::vector<int64_t> tokens;
  for (const Length& length : policy.Lengths(candidates, count, count * (kMost + 1)))
    tokens.push_back(length.tokens);
  return tokens;
}

// Steps that cost 1 and `row` for each row more.
DraftPolicy PolicyOf(double row) {
  DraftPolicy policy;
  for (int i = 0; i < 50; ++i) {
    for (int64_t rows = 2; rows <= kMost + 1; ++rows)
      policy.SawStep(rows, 1, 1.0 + row * static_cast<double>(rows - 1));
    policy.SawStep(1, 1, 1.0);
  }
  return policy;
}

TEST(DraftPolicy, VerifiesAllWhereRowsAreFreeAndDraftsAreRight) {
  DraftPolicy policy = PolicyOf(0.0);
  AcceptanceRecord record;
  for (int i = 0; i < 100; ++i) policy.SawDraft(record, 5, kMost, kMost);
  EXPECT_EQ(LengthsOf(policy, record, 1, 5), std::vector<int64_t>{kMost});
}

TEST(DraftPolicy, VerifiesNothingWhereARowCostsAStep) {
  DraftPolicy policy = PolicyOf(1.1);
  AcceptanceRecord record;
  for (int i = 0; i < 100; ++i) policy.SawDraft(record, 5, kMost, kMost - 1);
  EXPECT_EQ(LengthsOf(policy, record, 1, 5), std::vector<int64_t>{0});
}

TEST(DraftPolicy, VerifiesNothingThatIsNeverRight) {
  DraftPolicy policy = PolicyOf(0.3);
  AcceptanceRecord record;
  for (int i = 0; i < 100; ++i) policy.SawDraft(record, 5, 3, 0);
  EXPECT_EQ(LengthsOf(policy, record, 1, 5), std::vector<int64_t>{0});
}

TEST(DraftPolicy, StopsBeforeTheTokenThatIsMostlyWrong) {
  DraftPolicy policy = PolicyOf(0.2);
  AcceptanceRecord record;
  for (int i = 0; i < 200; ++i) policy.SawDraft(record, 5, kMost, 2);
  EXPECT_EQ(LengthsOf(policy, record, 1, 5), std::vector<int64_t>{2});
}

TEST(DraftPolicy, GivesRowsToTheSurerSequence) {
  DraftPolicy policy;
  for (int i = 0; i < 50; ++i) {
    policy.SawStep(2, 2, 1.0);
    for (int64_t rows = 3; rows <= 8; ++rows)
      policy.SawStep(rows, 2, 1.0 + 0.25 * static_cast<double>(rows - 2));
  }
  AcceptanceRecord sure;
  AcceptanceRecord unsure;
  for (int i = 0; i < 100; ++i) {
    policy.SawDraft(sure, 3, 4, 4);
    policy.SawDraft(unsure, 3, 4, 0);
  }
  const Draft draft = {.tokens = {1, 2, 3, 4}, .evidence = 3};
  const std::vector<Candidate> candidates = {{&draft, &unsure}, {&draft, &sure}};
  const std::vector<Length> lengths = policy.Lengths(candidates, 2, 18);
  EXPECT_EQ(lengths[0].tokens, 0);
  EXPECT_EQ(lengths[1].tokens, 4);
}

TEST(DraftPolicy, WhatOtherTextsTaughtIsWatchedFirst) {
  DraftPolicy policy = PolicyOf(0.3);
  AcceptanceRecord other;
  for (int i = 0; i < 100; ++i) policy.SawDraft(other, 3, kMost, kMost);
  AcceptanceRecord record;
  EXPECT_EQ(LengthsOf(policy, record, 1, 3), std::vector<int64_t>{0});
  AcceptanceRecord alike;
  for (int i = 0; i < 10; ++i) policy.SawDraft(alike, 3, 1, 1);
  EXPECT_EQ(LengthsOf(policy, alike, 1, 3), std::vector<int64_t>{kMost});
  // Drafts of other evidence count too.
  for (int i = 0; i < 10; ++i) policy.SawDraft(record, 1, 1, 0);
  EXPECT_LT(record.Trust(), 0.5);
  // A long repeat is no accident.
  AcceptanceRecord fresh;
  EXPECT_GT(LengthsOf(policy, fresh, 1, 9).front(), 0);
}

TEST(DraftPolicy, APriceThatIsDoubtedIsSetRightByOneStep) {
  DraftPolicy policy = PolicyOf(0.5);
  for (int i = 0; i < 3000; ++i) policy.SawStep(1, 1, 1.0);
  EXPECT_LT(policy.RelativeCost(2), 1.1);
  policy.SawStep(2, 1, 1.5);
  EXPECT_NEAR(policy.RelativeCost(2), 1.5, 0.05);
}

TEST(DraftPolicy, NeverGoesBeyondTheRowsThatThereAre) {
  DraftPolicy policy = PolicyOf(0.0);
  AcceptanceRecord record;
  const Draft draft = {.tokens = std::vector<int32_t>(kMost, 1), .evidence = 11};
  const std::vector<Candidate> candidates(3, {&draft, &record});
  int64_t sum = 0;
  for (const Length& length : policy.Lengths(candidates, 3, 5)) sum += length.tokens;
  EXPECT_LE(sum, 2);
}

// What the draft block is asked for, with nothing to quote or with a quote of such evidence.
Length OfMtp(const DraftPolicy& policy, const AcceptanceRecord& record, int64_t most, int quote = -1) {
  const Draft draft = quote < 0 ? Draft() : Draft{.tokens = {1, 2, 3, 4}, .evidence = quote};
  const std::vector<Candidate> candidates = {{&draft, &record, most}};
  return policy.Lengths(candidates, 1, kMost + 1).front();
}

TEST(DraftPolicy, TheDraftBlockIsAskedWhereItPaysForItsTime) {
  DraftPolicy policy = PolicyOf(0.1);
  AcceptanceRecord record;
  for (int i = 0; i < 200; ++i) policy.SawDraft(record, kMtpEvidence, 3, i % 10 == 0 ? 0 : 3);
  for (int64_t tokens = 1; tokens <= 3; ++tokens)
    policy.SawDrafting(tokens, 1, 0.05 * static_cast<double>(tokens));
  EXPECT_EQ(OfMtp(policy, record, 3), (Length{3, true}));
  // As often right, but as slow as the model: nothing.
  DraftPolicy slow = PolicyOf(0.1);
  for (int i = 0; i < 200; ++i) slow.SawDraft(record, kMtpEvidence, 3, 3);
  for (int64_t tokens = 1; tokens <= 3; ++tokens)
    slow.SawDrafting(tokens, 1, 1.1 * static_cast<double>(tokens));
  EXPECT_EQ(OfMtp(slow, record, 3).tokens, 0);
}

// A device that 64 sequences fill takes as long for a row of a draft as for a row of a sequence, so that a token that may be wrong costs more
// than it brings; one that 4 fill only in part does not.
TEST(DraftPolicy, IsOffWhereTheBatchIsFull) {
  for (const int64_t sequences : {4, 64}) {
    const bool full = sequences == 64;
    DraftPolicy policy;
    for (int i = 0; i < 50; ++i) {
      for (int64_t more = 0; more <= 8; ++more) {
        const double row = full ? 1.0 / static_cast<double>(sequences) : 0.05;
        policy.SawStep(sequences + more, sequences, 1.0 + row * static_cast<double>(more));
      }
    }
    AcceptanceRecord record;
    for (int i = 0; i < 200; ++i) policy.SawDraft(record, kMtpEvidence, 1, i % 10 < 8 ? 1 : 0);
    policy.SawDrafting(1, sequences, 0.1);
    const Draft none;
    const std::vector<Candidate> candidates(static_cast<size_t>(sequences), {&none, &record, 3});
    int64_t drafted = 0;
    for (const Length& length : policy.Lengths(candidates, sequences, sequences + 64))
      drafted += length.tokens;
    EXPECT_EQ(drafted > 0, !full) << sequences;
  }
}

TEST(DraftPolicy, TheDraftBlockStopsBeforeTheTokenThatIsMostlyWrong) {
  DraftPolicy policy = PolicyOf(0.2);
  AcceptanceRecord record;
  for (int i = 0; i < 200; ++i) policy.SawDraft(record, kMtpEvidence, 3, 1);
  policy.SawDrafting(1, 1, 0.1);
  EXPECT_EQ(OfMtp(policy, record, 3), (Length{1, true}));
}

TEST(DraftPolicy, ALongQuoteIsPreferredAndAShortOneIsNot) {
  DraftPolicy policy = PolicyOf(0.05);
  AcceptanceRecord record;
  for (int i = 0; i < 100; ++i) {
    policy.SawDraft(record, kMtpEvidence, 3, 1);
    policy.SawDraft(record, 10, 4, 4);
    policy.SawDraft(record, 1, 4, 0);
  }
  policy.SawDrafting(1, 1, 0.05);
  EXPECT_EQ(OfMtp(policy, record, 3, 10), (Length{4, false}));
  EXPECT_TRUE(OfMtp(policy, record, 3, 1).by_mtp);
  EXPECT_FALSE(OfMtp(policy, record, 0, 1).by_mtp);
}

TEST(DraftPolicy, TriesTheDraftBlockEverMoreSeldomWhereItDoesNotPay) {
  DraftPolicy policy;
  std::vector<int> tries;
  for (int step = 0; step < 2000; ++step) {
    if (policy.TriesMtp()) {
      tries.push_back(step);
      policy.SawDrafting(1, 1, 1.0);
    } else {
      policy.SawStepWithoutMtp();
    }
  }
  ASSERT_GE(tries.size(), 3U);
  EXPECT_LT(tries.size(), 8U);
  EXPECT_GT(tries[2] - tries[1], 3 * (tries[1] - tries[0]) / 2);
}

TEST(DraftPolicy, ABlockCostsTheSameWhateverIsWantedOfIt) {
  DraftPolicy blocks(/*drafts_blocks=*/true);
  DraftPolicy singles;
  for (DraftPolicy* policy : {&blocks, &singles}) {
    policy->SawStep(1, 1, 1.0);
    policy->SawDrafting(5, 1, 0.5);
  }
  EXPECT_DOUBLE_EQ(blocks.DraftingCost(1, 1), 0.5);
  EXPECT_DOUBLE_EQ(blocks.DraftingCost(5, 1), 0.5);
  EXPECT_DOUBLE_EQ(singles.DraftingCost(1, 1), 0.1);
}

// What a confidence head says decides how much of a block is verified, once it is known what that is worth.
TEST(DraftPolicy, VerifiesMoreOfABlockThatIsSurerOfItself) {
  DraftPolicy policy(/*drafts_blocks=*/true);
  AcceptanceRecord record;
  for (int i = 0; i < 50; ++i) {
    for (int64_t rows = 1; rows <= 6; ++rows)
      policy.SawStep(rows, rows, 1.0 + 0.3 * static_cast<double>(rows - 1));
    policy.SawDraft(record, DsparkEvidence(0.95F), 5, 5);
    policy.SawDraft(record, DsparkEvidence(0.1F), 5, 0);
  }
  EXPECT_EQ(LengthsOf(policy, record, 1, DsparkEvidence(0.95F)), std::vector<int64_t>{kMost});
  EXPECT_EQ(LengthsOf(policy, record, 1, DsparkEvidence(0.1F)), std::vector<int64_t>{0});
  EXPECT_LT(DsparkEvidence(1.0F), kMostEvidence);
  EXPECT_GT(DsparkEvidence(0.0F), kDsparkEvidence);
}

TEST(Choice, IsReadFromItsName) {
  EXPECT_TRUE(ParseChoice("auto")->suffix && ParseChoice("auto")->mtp);
  EXPECT_FALSE(ParseChoice("off")->any());
  EXPECT_TRUE(ParseChoice("suffix")->suffix && !ParseChoice("suffix")->mtp);
  EXPECT_EQ(ParseChoice("mtp")->always, 0);
  EXPECT_EQ(ParseChoice("mtp:3")->always, 3);
  EXPECT_EQ(ParseChoice("suffix:64")->always, 64);
  EXPECT_TRUE(ParseChoice("dspark")->dspark && !ParseChoice("dspark")->mtp && !ParseChoice("dspark")->suffix);
  EXPECT_EQ(ParseChoice("dspark:5")->always, 5);
  for (const char* name : {"auto", "off", "suffix", "mtp", "dspark"})
    EXPECT_EQ(ChoiceName(*ParseChoice(name)), name);
  for (const char* wrong :
       {"", "on", "mtp:", "mtp:0", "mtp:17", "mtp:3x", "mtp3", "suffix:65", "Auto", "dspark:0", "dspark:17"})
    EXPECT_FALSE(ParseChoice(wrong).has_value()) << wrong;
}

TEST(DraftPolicy, DoubtsAPriceThatItHasNotSeenForLong) {
  DraftPolicy policy;
  policy.SawStep(1, 1, 1.0);
  policy.SawStep(4, 1, 100.0);  // Once, by accident.
  EXPECT_GT(policy.RelativeCost(4), 50.0);
  for (int i = 0; i < 6000; ++i) policy.SawStep(1, 1, 1.0);
  EXPECT_LT(policy.RelativeCost(4), 1.5);
}

}  // namespace
}  // namespace dsv4::speculation
