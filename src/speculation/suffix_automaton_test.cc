// Tests of the suffix automaton: longest repeats, latest occurrences, quotes, and evidence.
#include "speculation/suffix_automaton.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "speculation/drafter.h"

namespace dsv4::speculation {
namespace {

// By comparing every earlier position.
int64_t LongestRepeatOf(std::span<const int32_t> text) {
  const auto size = static_cast<int64_t>(text.size());
  int64_t longest = 0;
  for (int64_t end = 1; end < size; ++end) {
    int64_t length = 0;
    while (length < end &&
           text[static_cast<size_t>(end - 1 - length)] == text[static_cast<size_t>(size - 1 - length)])
      ++length;
    longest = std::max(longest, length);
  }
  return longest;
}

bool IsRepeat(std::span<const int32_t> text, const SuffixAutomaton::Repeat& repeat) {
  const auto length = static_cast<size_t>(repeat.length);
  const auto end = static_cast<size_t>(repeat.end);
  return end < text.size() && length <= end &&
         std::ranges::equal(text.subspan(end - length, length), text.last(length));
}

TEST(SuffixAutomaton, FindsTheLongestRepeatOfRandomTexts) {
  std::mt19937 random(3);
  for (const uint32_t alphabet : {1U, 2U, 3U, 5U, 40U}) {
    for (int text = 0; text < 20; ++text) {
      SuffixAutomaton automaton;
      for (int i = 0; i < 120; ++i) {
        automaton.Append(static_cast<int32_t>(random() % alphabet));
        const SuffixAutomaton::Repeat repeat = automaton.LongestRepeat();
        ASSERT_EQ(repeat.length, LongestRepeatOf(automaton.text()));
        ASSERT_TRUE(repeat.length == 0 || IsRepeat(automaton.text(), repeat));
      }
    }
  }
}

TEST(SuffixAutomaton, PrefersTheLatestPlace) {
  SuffixAutomaton automaton;
  for (const int32_t token : {1, 2, 7, 1, 2, 8, 1, 2}) automaton.Append(token);
  EXPECT_EQ(automaton.LongestRepeat().length, 2);
  EXPECT_EQ(automaton.LongestRepeat().end, 5);
}

TEST(SuffixDrafter, QuotesWhatFollowedBefore) {
  const std::vector<int32_t> text = {4, 5, 6, 7, 8, 9, 1, 4, 5, 6};
  const auto drafter = MakeSuffixDrafter();
  drafter->Read(text);
  EXPECT_EQ(drafter->Propose(4).tokens, (std::vector<int32_t>{7, 8, 9, 1}));
  EXPECT_TRUE(drafter->Propose(0).tokens.empty());
}

TEST(SuffixDrafter, GoesRoundWhereTheRepeatReachesItsOwnEnd) {
  const std::vector<int32_t> text = {1, 2, 3, 1, 2, 3};
  const auto drafter = MakeSuffixDrafter();
  drafter->Read(text);
  EXPECT_EQ(drafter->Propose(7).tokens, (std::vector<int32_t>{1, 2, 3, 1, 2, 3, 1}));
}

TEST(SuffixDrafter, HasNoIdeaOfANewToken) {
  const std::vector<int32_t> text = {1, 2, 3};
  const auto drafter = MakeSuffixDrafter();
  drafter->Read(text);
  EXPECT_TRUE(drafter->Propose(4).tokens.empty());
}

TEST(SuffixDrafter, IsSurerOfLongerRepeats) {
  int before = -1;
  for (const int length : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 500}) {
    std::vector<int32_t> text;
    for (int i = 0; i < length; ++i) text.push_back(i);
    text.push_back(-1);
    for (int i = 0; i < length; ++i) text.push_back(i);
    const auto drafter = MakeSuffixDrafter();
    drafter->Read(text);
    const int evidence = drafter->Propose(1).evidence;
    EXPECT_TRUE(evidence > before || evidence == kForcedEvidence - 1) << length;
    before = evidence;
  }
  EXPECT_EQ(before, kForcedEvidence - 1);
}

}  // namespace
}  // namespace dsv4::speculation
