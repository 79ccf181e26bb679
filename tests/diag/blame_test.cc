// Which op and which experts figures point at, from figures made by hand.
#include "diag/compare/blame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace dsv4::testing {
namespace {

using diag::Compared;

Compared Figure(int layer, const std::string& name, double error) {
  return {.layer = layer, .name = name, .sum_squared = 1, .sum_squared_difference = error * error};
}

TEST(BlameTest, WhereMostAgreeBitForBitTheFirstThatDoesNotIsUnusual) {
  std::vector<Compared> own = {Figure(0, "attn.out", 0), Figure(0, "ffn.routed", 1e-6),
                               Figure(1, "attn.out", 0), Figure(1, "ffn.routed", 1e-3),
                               Figure(2, "attn.out", 0)};
  EXPECT_EQ(diag::MostUnusual(own), &own[1]);
  own[1] = Figure(0, "ffn.routed", 0);
  EXPECT_EQ(diag::MostUnusual(own), &own[3]);
  own[3] = Figure(1, "ffn.routed", 0);
  EXPECT_EQ(diag::MostUnusual(own), nullptr);
}

TEST(BlameTest, ElseTheErrorIsSeenBesideThatOfOtherLayers) {
  std::vector<Compared> own;
  for (int layer = 0; layer < 5; ++layer) {
    own.push_back(Figure(layer, "attn.kv", 1e-2));  // Rounds coarsely everywhere.
    own.push_back(Figure(layer, "attn.out", layer == 3 ? 4e-3 : 1e-3));
  }
  EXPECT_EQ(diag::MostUnusual(own), &own[7]);
}

TEST(BlameTest, ExpertsAreNamedWhereTheirRowsAndNoOthersAreOff) {
  const std::vector<float> choices = {0, 1, 2, 3, 0, 3, 1, 2, 3, 1, 2, 0};
  const auto errors = [&](double quiet, double off, const std::vector<float>& guilty) {
    std::vector<double> rows;
    for (size_t row = 0; row < 6; ++row) {
      const auto begin = choices.begin() + static_cast<int64_t>(2 * row);
      const bool bad = std::find_first_of(begin, begin + 2, guilty.begin(), guilty.end()) != begin + 2;
      rows.push_back(bad ? off : quiet * (1 + 0.1 * static_cast<double>(row)));
    }
    return rows;
  };
  EXPECT_EQ(diag::ExpertsBehind(errors(0, 1e-6, {3}), choices), std::vector<int64_t>{3});
  EXPECT_EQ(diag::ExpertsBehind(errors(1e-3, 0.4, {3}), choices), std::vector<int64_t>{3});
  EXPECT_EQ(diag::ExpertsBehind(errors(0, std::numeric_limits<double>::infinity(), {1}), choices),
            std::vector<int64_t>{1});
  // Every row off, none off, and rows that are off for no expert's sake.
  EXPECT_TRUE(diag::ExpertsBehind(errors(1e-3, 1e-3, {3}), choices).empty());
  EXPECT_TRUE(diag::ExpertsBehind(std::vector<double>(6, 0), choices).empty());
  EXPECT_TRUE(diag::ExpertsBehind(std::vector<double>{1, 0, 0, 0, 0, 0}, choices).empty());
  EXPECT_TRUE(diag::ExpertsBehind({}, {}).empty());
}

}  // namespace
}  // namespace dsv4::testing
