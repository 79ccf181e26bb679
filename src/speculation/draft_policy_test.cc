// Tests of the draft policy: prices, acceptance, watched texts, doubted prices and credit.
#include "speculation/draft_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <random>

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

// Record of a sequence that has saved time enough to lose some.
AcceptanceRecord InCredit() {
  AcceptanceRecord record;
  record.Paid(100, 50, 0.0);
  return record;
}

// Steps that cost 1 and `row` for each row more.
DraftPolicy PolicyOf(double row) {
  DraftPolicy policy;
  for (int i = 0; i < 50; ++i) {
    for (int64_t rows = 2; rows <= kMost + 1; ++rows)
      policy.RecordStep(rows, 1, 1.0 + row * static_cast<double>(rows - 1));
    policy.RecordStep(1, 1, 1.0);
  }
  return policy;
}

TEST(DraftPolicy, VerifiesAllWhereRowsAreFreeAndDraftsAreRight) {
  DraftPolicy policy = PolicyOf(0.0);
  AcceptanceRecord record = InCredit();
  for (int i = 0; i < 100; ++i) policy.RecordDraft(record, 5, kMost, kMost);
  EXPECT_EQ(LengthsOf(policy, record, 1, 5), std::vector<int64_t>{kMost});
}

TEST(DraftPolicy, VerifiesNothingWhereARowCostsAStep) {
  DraftPolicy policy = PolicyOf(1.1);
  AcceptanceRecord record = InCredit();
  for (int i = 0; i < 100; ++i) policy.RecordDraft(record, 5, kMost, kMost - 1);
  EXPECT_EQ(LengthsOf(policy, record, 1, 5), std::vector<int64_t>{0});
}

TEST(DraftPolicy, VerifiesNothingThatIsNeverRight) {
  DraftPolicy policy = PolicyOf(0.3);
  AcceptanceRecord record = InCredit();
  for (int i = 0; i < 100; ++i) policy.RecordDraft(record, 5, 3, 0);
  EXPECT_EQ(LengthsOf(policy, record, 1, 5), std::vector<int64_t>{0});
}

TEST(DraftPolicy, StopsBeforeTheTokenThatIsMostlyWrong) {
  DraftPolicy policy = PolicyOf(0.2);
  AcceptanceRecord record = InCredit();
  for (int i = 0; i < 200; ++i) policy.RecordDraft(record, 5, kMost, 2);
  EXPECT_EQ(LengthsOf(policy, record, 1, 5), std::vector<int64_t>{2});
}

TEST(DraftPolicy, GivesRowsToTheSurerSequence) {
  DraftPolicy policy;
  for (int i = 0; i < 50; ++i) {
    policy.RecordStep(2, 2, 1.0);
    for (int64_t rows = 3; rows <= 8; ++rows)
      policy.RecordStep(rows, 2, 1.0 + 0.25 * static_cast<double>(rows - 2));
  }
  AcceptanceRecord sure = InCredit();
  AcceptanceRecord unsure = InCredit();
  for (int i = 0; i < 100; ++i) {
    policy.RecordDraft(sure, 3, 4, 4);
    policy.RecordDraft(unsure, 3, 4, 0);
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
  for (int i = 0; i < 100; ++i) policy.RecordDraft(other, 3, kMost, kMost);
  AcceptanceRecord record = InCredit();
  EXPECT_EQ(LengthsOf(policy, record, 1, 3), std::vector<int64_t>{0});
  AcceptanceRecord alike = InCredit();
  for (int i = 0; i < 10; ++i) policy.RecordDraft(alike, 3, 1, 1);
  EXPECT_EQ(LengthsOf(policy, alike, 1, 3), std::vector<int64_t>{kMost});
  // Drafts of other evidence count too.
  for (int i = 0; i < 10; ++i) policy.RecordDraft(record, 1, 1, 0);
  EXPECT_LT(record.Trust(), 0.5);
  // A long repeat is no accident.
  AcceptanceRecord fresh;
  EXPECT_GT(LengthsOf(policy, fresh, 1, 9).front(), 0);
}

TEST(DraftPolicy, APriceThatIsDoubtedIsSetRightByOneStep) {
  DraftPolicy policy = PolicyOf(0.5);
  for (int i = 0; i < 3000; ++i) policy.RecordStep(1, 1, 1.0);
  EXPECT_LT(policy.RelativeCost(2), 1.1);
  policy.RecordStep(2, 1, 1.5);
  EXPECT_NEAR(policy.RelativeCost(2), 1.5, 0.05);
}

TEST(DraftPolicy, NeverGoesBeyondTheRowsThatThereAre) {
  DraftPolicy policy = PolicyOf(0.0);
  AcceptanceRecord record = InCredit();
  const Draft draft = {.tokens = std::vector<int32_t>(kMost, 1), .evidence = 11};
  const std::vector<Candidate> candidates(3, {&draft, &record});
  int64_t sum = 0;
  for (const Length& length : policy.Lengths(candidates, 3, 5)) sum += length.tokens;
  EXPECT_LE(sum, 2);
}

// Length asked of the draft block, with nothing to quote or with a quote of such evidence.
Length OfMtp(const DraftPolicy& policy, const AcceptanceRecord& record, int64_t most, int quote = -1) {
  const Draft draft = quote < 0 ? Draft() : Draft{.tokens = {1, 2, 3, 4}, .evidence = quote};
  const std::vector<Candidate> candidates = {{&draft, &record, most}};
  return policy.Lengths(candidates, 1, kMost + 1).front();
}

TEST(DraftPolicy, TheDraftBlockIsAskedWhereItPaysForItsTime) {
  DraftPolicy policy = PolicyOf(0.1);
  AcceptanceRecord record = InCredit();
  for (int i = 0; i < 200; ++i) policy.RecordDraft(record, kMtpEvidence, 3, i % 10 == 0 ? 0 : 3);
  for (int64_t tokens = 1; tokens <= 3; ++tokens)
    policy.RecordDraftTime(tokens, 1, 0.05 * static_cast<double>(tokens));
  EXPECT_EQ(OfMtp(policy, record, 3), (Length{3, true}));
  // As often right, but as slow as the model: nothing.
  DraftPolicy slow = PolicyOf(0.1);
  for (int i = 0; i < 200; ++i) slow.RecordDraft(record, kMtpEvidence, 3, 3);
  for (int64_t tokens = 1; tokens <= 3; ++tokens)
    slow.RecordDraftTime(tokens, 1, 1.1 * static_cast<double>(tokens));
  EXPECT_EQ(OfMtp(slow, record, 3).tokens, 0);
}

// A device that 64 sequences fill takes as long for a row of a draft as for a row of a sequence. A token that
// may be wrong then costs more than it brings. A device that 4 sequences fill in part has rows to spare.
TEST(DraftPolicy, IsOffWhereTheBatchIsFull) {
  for (const int64_t sequences : {4, 64}) {
    const bool full = sequences == 64;
    DraftPolicy policy;
    for (int i = 0; i < 50; ++i) {
      for (int64_t more = 0; more <= 8; ++more) {
        const double row = full ? 1.0 / static_cast<double>(sequences) : 0.05;
        policy.RecordStep(sequences + more, sequences, 1.0 + row * static_cast<double>(more));
      }
    }
    AcceptanceRecord record = InCredit();
    for (int i = 0; i < 200; ++i) policy.RecordDraft(record, kMtpEvidence, 1, i % 10 < 8 ? 1 : 0);
    policy.RecordDraftTime(1, sequences, 0.1);
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
  AcceptanceRecord record = InCredit();
  for (int i = 0; i < 200; ++i) policy.RecordDraft(record, kMtpEvidence, 3, 1);
  policy.RecordDraftTime(1, 1, 0.1);
  EXPECT_EQ(OfMtp(policy, record, 3), (Length{1, true}));
}

TEST(DraftPolicy, ALongQuoteIsPreferredAndAShortOneIsNot) {
  DraftPolicy policy = PolicyOf(0.05);
  AcceptanceRecord record = InCredit();
  for (int i = 0; i < 100; ++i) {
    policy.RecordDraft(record, kMtpEvidence, 3, 1);
    policy.RecordDraft(record, 10, 4, 4);
    policy.RecordDraft(record, 1, 4, 0);
  }
  policy.RecordDraftTime(1, 1, 0.05);
  EXPECT_EQ(OfMtp(policy, record, 3, 10), (Length{4, false}));
  EXPECT_TRUE(OfMtp(policy, record, 3, 1).by_mtp);
  EXPECT_FALSE(OfMtp(policy, record, 0, 1).by_mtp);
}

TEST(DraftPolicy, TriesTheDraftBlockEverMoreSeldomWhereItDoesNotPay) {
  DraftPolicy policy;
  std::vector<int> tries;
  for (int step = 0; step < 2000; ++step) {
    if (policy.ShouldTryMtp()) {
      tries.push_back(step);
      policy.RecordDraftTime(1, 1, 1.0);
    } else {
      policy.RecordStepWithoutMtp();
    }
  }
  ASSERT_GE(tries.size(), 3U);
  EXPECT_LT(tries.size(), 8U);
  EXPECT_GT(tries[2] - tries[1], 3 * (tries[1] - tries[0]) / 2);
}

// Whether the draft block is asked for a token of an answer's beginning.
bool AsksTheBlock(const DraftPolicy& policy) {
  const AcceptanceRecord record;
  const Draft none;
  const Candidate candidate = {.draft = &none, .record = &record, .most_mtp = 1};
  return policy.Lengths(std::span(&candidate, 1), 1, 2).front() == Length{1, true};
}

// Nothing else shows that a drafter has become quicker.
TEST(DraftPolicy, ASlowDraftIsDoubtedAndBelievedWhenItWasSlowAgain) {
  DraftPolicy policy;
  policy.RecordDraftTime(1, 1, 2.0);
  for (int i = 0; i < 4000; ++i) policy.RecordStep(1, 1, 1.0);
  EXPECT_LT(policy.DraftingCost(1, 1), 0.3);
  EXPECT_TRUE(AsksTheBlock(policy));
  for (int i = 0; i < 10; ++i) policy.RecordDraftTime(1, 1, 2.0);
  EXPECT_GT(policy.DraftingCost(1, 1), 1.4);
  EXPECT_FALSE(AsksTheBlock(policy));
}

// Drafts that were timed while another process had the cores cost what steps cost: both are quick again at
// the same time.
TEST(DraftPolicy, DraftsBecomeCheaperWithSteps) {
  DraftPolicy policy;
  for (int i = 0; i < 50; ++i) {
    policy.RecordStep(1, 1, 8.0);
    policy.RecordStep(2, 1, 9.0);
    policy.RecordDraftTime(1, 1, 2.4);
  }
  EXPECT_NEAR(policy.DraftingCost(1, 1) / policy.RelativeCost(1), 0.3, 0.01);
  for (int i = 0; i < 50; ++i) policy.RecordStep(1, 1, 1.0);
  EXPECT_NEAR(policy.DraftingCost(1, 1) / policy.RelativeCost(1), 0.3, 0.03);
  EXPECT_TRUE(AsksTheBlock(policy));
}

TEST(DraftPolicy, ABlockCostsTheSameWhateverIsWantedOfIt) {
  DraftPolicy blocks(/*drafts_blocks=*/true);
  DraftPolicy singles;
  for (DraftPolicy* policy : {&blocks, &singles}) {
    policy->RecordStep(1, 1, 1.0);
    policy->RecordDraftTime(5, 1, 0.5);
  }
  EXPECT_DOUBLE_EQ(blocks.DraftingCost(1, 1), 0.5);
  EXPECT_DOUBLE_EQ(blocks.DraftingCost(5, 1), 0.5);
  EXPECT_DOUBLE_EQ(singles.DraftingCost(1, 1), 0.1);
}

// Confidence of a block decides how much of it is verified, once it is known what that is worth.
TEST(DraftPolicy, VerifiesMoreOfABlockThatIsSurerOfItself) {
  DraftPolicy policy(/*drafts_blocks=*/true);
  AcceptanceRecord record = InCredit();
  for (int i = 0; i < 50; ++i) {
    for (int64_t rows = 1; rows <= 6; ++rows)
      policy.RecordStep(rows, rows, 1.0 + 0.3 * static_cast<double>(rows - 1));
    policy.RecordDraft(record, DsparkEvidence(0.95F), 5, 5);
    policy.RecordDraft(record, DsparkEvidence(0.1F), 5, 0);
  }
  EXPECT_EQ(LengthsOf(policy, record, 1, DsparkEvidence(0.95F)), std::vector<int64_t>{kMost});
  EXPECT_EQ(LengthsOf(policy, record, 1, DsparkEvidence(0.1F)), std::vector<int64_t>{0});
  EXPECT_LT(DsparkEvidence(1.0F), kMostEvidence);
  EXPECT_GT(DsparkEvidence(0.0F), kDsparkEvidence);
}

// A sequence on a machine where one more row costs `row` of a step. The model's drafter costs `drafting` for
// a token, which is right with `by_mtp`. Repeated text is right with `quoted`.
struct Machine {
  double row = 0.2;
  double drafting = 0.1;
  bool blocks = false;
};
struct Text {
  double by_mtp = -1;  // < 0: the model has no drafter.
  double quoted = 0.0;
  int quote_evidence = 3;
  int64_t tokens = 200;
};

// Its time without drafts divided by that with them, as the engine drafts. The policy goes on learning.
double RatioOf(DraftPolicy& policy, const Machine& machine, const Text& text, uint32_t seed,
               const std::function<void(Text&, int64_t)>& change = {}) {
  std::mt19937 random(seed);
  const auto is = [&](double chance) { return std::uniform_real_distribution<double>()(random) < chance; };
  AcceptanceRecord record;
  double seconds = 0.0;
  Text now = text;
  const int head = machine.blocks ? kDsparkEvidence : kMtpEvidence;
  for (int64_t done = 0; done < text.tokens;) {
    if (change) change(now, done);
    const Draft quote = {.tokens = std::vector<int32_t>(7, 1), .evidence = now.quote_evidence};
    const std::vector<Candidate> candidates = {{&quote, &record,
                                                now.by_mtp < 0   ? 0
                                                : machine.blocks ? 5
                                                                 : 3}};
    Length length = policy.Lengths(candidates, 1, 8).front();
    if (length.tokens == 0 && now.by_mtp >= 0 && policy.ShouldTryMtp() &&
        policy.Price(1, 1, 1, 1, 1) <= record.Credit(head)) {
      length = {1, true};
    }
    const double drafting =
        length.by_mtp && length.tokens > 0
            ? machine.drafting * (machine.blocks ? 1.0 : static_cast<double>(length.tokens))
            : 0.0;
    const double step = 1.0 + machine.row * static_cast<double>(length.tokens);
    int64_t accepted = 0;
    while (accepted < length.tokens && is(length.by_mtp ? now.by_mtp : now.quoted)) ++accepted;
    if (drafting > 0) policy.RecordDraftTime(length.tokens, 1, drafting);
    record.Paid(1 + accepted, accepted,
                policy.Price(length.tokens, length.tokens, 1, length.by_mtp ? length.tokens : 0, 1));
    if (length.tokens > 0) {
      policy.RecordDraft(record, length.by_mtp ? head : now.quote_evidence, length.tokens, accepted);
    }
    // A quote that no step has verified is watched.
    if (length.tokens == 0 || length.by_mtp)
      policy.RecordDraft(record, now.quote_evidence, 1, is(now.quoted) ? 1 : 0);
    policy.RecordStep(1 + length.tokens, 1, step);
    if (length.tokens == 0) policy.RecordStepWithoutMtp();
    seconds += step + drafting;
    done += 1 + accepted;
  }
  return static_cast<double>(text.tokens) / seconds;
}

TEST(DraftPolicy, DraftsThatAreWrongCostNoSequenceThreeInAHundred) {
  double worst = 2.0;
  for (const double row : {0.05, 0.2, 0.35, 0.6}) {
    for (const double drafting : {0.05, 0.2, 0.45, 0.6, 1.0}) {
      for (const bool blocks : {false, true}) {
        for (const int evidence : {2, 6, 9, 11}) {
          for (const double quoted : {0.0, 0.2, 0.5}) {
            for (const double by_mtp : {-1.0, 0.0, 0.3, 0.6}) {
              DraftPolicy policy(blocks);
              // Others have taught it that drafts are right.
              AcceptanceRecord other;
              for (int i = 0; i < 50; ++i) {
                policy.RecordDraft(other, evidence, 7, 7);
                policy.RecordDraft(other, blocks ? kDsparkEvidence : kMtpEvidence, 3, 3);
              }
              for (int64_t rows = 1; rows <= 8; ++rows)
                policy.RecordStep(rows, 1, 1.0 + row * static_cast<double>(rows - 1));
              policy.RecordDraftTime(1, 1, drafting);
              const Machine machine = {.row = row, .drafting = drafting, .blocks = blocks};
              const Text text = {
                  .by_mtp = by_mtp, .quoted = quoted, .quote_evidence = evidence, .tokens = 100};
              DraftPolicy changed = policy;
              const double of_changed = RatioOf(changed, machine, text, 2, [&](Text& now, int64_t done) {
                if (done < 50) return;
                now.by_mtp = std::min(now.by_mtp, 0.1);
                now.quoted = 0.0;
              });
              EXPECT_GE(of_changed, 0.97) << "row " << row << ", drafting " << drafting;
              const double ratio = RatioOf(policy, machine, text, 1);
              worst = std::min(worst, ratio);
              EXPECT_GE(ratio, 0.97) << "row " << row << ", drafting " << drafting << ", blocks " << blocks
                                     << ", evidence " << evidence << ", quoted " << quoted << ", mtp "
                                     << by_mtp;
            }
          }
        }
      }
    }
  }
  std::cout << "  worst " << worst << "\n";
}

TEST(DraftPolicy, IsHardlySlowerThanTheBestLengthWhereDraftsAreRight) {
  for (const double row : {0.05, 0.2, 0.35}) {
    for (const double chance : {0.7, 0.85, 0.95}) {
      for (const bool by_mtp : {false, true}) {
        const Machine machine = {.row = row, .drafting = 0.08};
        DraftPolicy policy;
        const Text text = {.by_mtp = by_mtp ? chance : -1.0, .quoted = by_mtp ? 0.0 : chance, .tokens = 300};
        double ratio = 0.0;
        for (uint32_t seed = 0; seed < 20; ++seed) ratio = RatioOf(policy, machine, text, seed) + ratio;
        ratio /= 20;
        double best = 1.0;
        double tokens = 1.0;
        double reaches = 1.0;
        for (int64_t length = 1; length <= (by_mtp ? 3 : 7); ++length) {
          reaches *= chance;
          tokens += reaches;
          const double cost = 1.0 + (row + (by_mtp ? machine.drafting : 0.0)) * static_cast<double>(length);
          best = std::max(best, tokens / cost);
        }
        EXPECT_GT(ratio, 1.0 + 0.85 * (best - 1.0))
            << "row " << row << ", right " << chance << ", mtp " << by_mtp;
        std::cout << "  row " << row << " right " << chance << " mtp " << by_mtp << ": " << ratio << " of "
                  << best << "\n";
      }
    }
  }
}

// A block costs much before its first token is there, and is worth it with several. In an answer of 63
// tokens, after ten of others.
TEST(DraftPolicy, ABlockIsTriedInAShortAnswerToo) {
  for (const double drafting : {0.45, 0.72}) {
    const Machine machine = {.row = 0.23, .drafting = drafting, .blocks = true};
    const Text text = {.by_mtp = 0.87, .tokens = 63};
    DraftPolicy policy(/*drafts_blocks=*/true);
    double inverse = 0.0;
    for (uint32_t seed = 0; seed < 50; ++seed) {
      const double ratio = RatioOf(policy, machine, text, seed);
      if (seed >= 10) inverse += 1.0 / ratio;
    }
    const double best = (1.0 - std::pow(0.87, 6)) / 0.13 / (1.0 + 5 * machine.row + drafting);
    EXPECT_GT(40.0 / inverse, 1.0 + 0.6 * (best - 1.0)) << "drafting " << drafting << ", best " << best;
    std::cout << "  drafting " << drafting << ": " << 40.0 / inverse << " of " << best << "\n";
  }
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
  policy.RecordStep(1, 1, 1.0);
  policy.RecordStep(4, 1, 100.0);  // Once, by accident.
  EXPECT_GT(policy.RelativeCost(4), 50.0);
  for (int i = 0; i < 6000; ++i) policy.RecordStep(1, 1, 1.0);
  EXPECT_LT(policy.RelativeCost(4), 1.5);
}

}  // namespace
}  // namespace dsv4::speculation
